"""Operators do not depend on the rows of keyed state: they also run on a backend with different rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from pillarbox import KeyedProcessFunction, ValueState, ValueStateDescriptor
from pillarbox._elements.records import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import KeyedContext, OperatorContext
from pillarbox._operators.keyed.deduplicate import DeduplicateOperator
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox._time.internal_timer_service import InternalTimeServiceManager
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.mailbox import MailboxProcessor


class Store:
    """A backend with a dictionary per state, like a database."""

    operator = "op"
    is_declared = True

    def __init__(self) -> None:
        self.key: Any = None
        self.row: Any = None
        self.rows = _Themselves()
        self.tables: dict[str, dict[Any, Any]] = defaultdict(dict)

    def get_state(self, descriptor: Any, *, namespaced: bool = False, late: bool = False) -> Any:
        assert descriptor.kind == "value"
        return _Value(self, self.tables[descriptor.name])

    def create_timers(self, name: str, *, namespaced: bool = False) -> Timers:
        return Timers(self)

    def set_current_key(self, key: Any) -> None:
        self.key = key

    def seal(self) -> None: ...

    def leave_key(self) -> None:
        self.key = None


class _Themselves(dict[Any, Any]):
    def __missing__(self, key: Any) -> Any:
        return key


class _Value(ValueState[Any]):
    def __init__(self, store: Store, table: dict[Any, Any]) -> None:
        self.store, self.table = store, table

    def value(self) -> Any:
        return self.table.get(self.store.key)

    def update(self, value: Any) -> None:
        self.table[self.store.key] = value

    def clear(self) -> None:
        self.table.pop(self.store.key, None)


class Timers:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.set: set[tuple[int, Any]] = set()

    def __len__(self) -> int:
        return len(self.set)

    def register(self, timestamp: int, namespace: Any = None) -> None:
        self.set.add((timestamp, self.store.key))

    def delete(self, timestamp: int, namespace: Any = None) -> None:
        self.set.discard((timestamp, self.store.key))

    def next_timestamp(self) -> int | None:
        return min((timestamp for timestamp, _ in self.set), default=None)

    def fire(self, limit: int, trigger: Callable[[int, Any], None]) -> None:
        while self.set and min(self.set)[0] <= limit:
            timestamp, key = min(self.set)
            self.set.discard((timestamp, key))
            self.store.set_current_key(key)
            trigger(timestamp, None)


class Counting(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        ctx.timer_service().register_event_time_timer(10)
        return [(ctx.get_current_key(), count)]

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "timer", self.count.value()


class Collected:
    def __init__(self) -> None:
        self.values: list[Any] = []

    def process_records(self, records: Records) -> None:
        self.values += records.values

    def process_watermark(self, timestamp: int) -> None: ...

    def process_status(self, idle: bool) -> None: ...


def run(make, watermark, *records):
    backend: Any = Store()
    clock = ManualProcessingTimeService()
    executor = MailboxProcessor(lambda controller: controller.suspend_default_action()).get_mailbox_executor(0)
    collector = Collected()
    keyed = KeyedContext(backend, InternalTimeServiceManager(backend, clock))
    operator = make(OperatorContext("op", "op", 0, 1, executor, clock, collector, keyed=keyed))
    operator.open()
    backend.seal()
    operator.process_records(Records(list(records), list(range(len(records)))))
    operator.process_watermark(watermark)
    operator.process_records(Records(list(records[:1]), [100]))
    operator.close()
    return collector.values


def by_first(value):
    return value[0]


def test_operators_run_on_a_backend_without_rows():
    records = ("a1", "b1", "a2", "c1")
    keying = Keying(by_first, "op")
    assert run(lambda context: KeyedProcessOperator(context, Counting(), keying), 10, *records) == [
        *(("a", 1), ("b", 1), ("a", 2), ("c", 1)),
        *(("a", "timer", 2), ("b", "timer", 1), ("c", "timer", 1)),
        ("a", 3),
    ]
    joined = run(lambda context: ReduceOperator(context, lambda value, other: value + other, keying), 10, *records)
    assert joined == ["a1", "b1", "a1a2", "c1", "a1a2a1"]
    assert run(lambda context: DeduplicateOperator(context, keying, 5), 10, *records) == ["a1", "b1", "c1", "a1"]
