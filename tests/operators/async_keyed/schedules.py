"""Random programs of async keyed functions, compared with the same functions without ``await``.

A seed determines records, watermarks, barriers, crashes and waits. These must be equal: each key's results in order,
with the state and watermark at their calls; the results between two watermarks; each key's dead letters in order; the
final state and timers, in memory and after a restart.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple
from unittest.mock import patch

from pillarbox import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProgramError,
    ValueStateDescriptor,
)
from pillarbox._elements.elements import Watermark
from pillarbox._elements.records import Records
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.async_keyed.options import WAITING
from pillarbox._state.log import large_collections
from pillarbox.testing import KeyedOneInputStreamOperatorTestHarness as Harness
from pillarbox.testing import harness_for
from tests.operators.async_keyed.charges import Charges, is_paid, is_reconciled, payments
from tests.operators.async_keyed.gates import BAD

_PRIME = (1 << 61) - 1
Step = tuple[Any, ...]
Outcome = dict[str, Any]


RULES: MapStateDescriptor[str, int] = MapStateDescriptor("rules")


def first(record: Any) -> Any:
    return record[0]


class FailedError(Exception): ...


class _Steps:
    """Reads and changes state of all kinds. An async function may wait at each ``yield``."""

    def open(self, runtime_context: Any) -> None:
        self.key = runtime_context.get_state(ValueStateDescriptor("key"))
        self.hash = runtime_context.get_state(ValueStateDescriptor("hash"))
        self.object = runtime_context.get_state(ValueStateDescriptor("object"))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list"))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map"))

    def own(self, ctx: Any) -> str:
        key: str = ctx.get_current_key()
        owner = self.key.value()
        if owner is None:
            self.key.update(key)
        elif owner != key:
            raise SystemExit(f"state of {owner!r} under {key!r}")
        return key

    def element(self, value: Any, ctx: Any, results: list[Any]) -> Iterator[None]:
        key, x = value
        self.own(ctx)
        before = self.hash.value() or 7
        holder = self.object.value()
        if holder is None:
            holder = {"count": 0, "last": []}
            self.object.update(holder)
        holder["count"] += 1
        yield
        self.own(ctx)
        if (self.hash.value() or 7) != before:
            raise SystemExit("another element has changed the state")
        self.hash.update((before * 1_000_003 + x) % _PRIME)
        holder["last"].append(x)
        del holder["last"][:-3]
        self.object.update(holder)
        if x % 3 == 0:
            self.list.add(x)
        yield
        self.own(ctx)
        if x % 11 < 3:
            self.map.remove(x % 7)
        if x % 5 < 3:
            self.map.put(x % 7, [x])
        yield
        if x % 10 == 0 and self.map.contains(x % 7):
            entry = self.map.get(x % 7)
            entry.append(-x)
            self.map.put(x % 7, entry)
        if x % 7 < 3:
            self.map.remove(x % 5)
            self.map.put((x + 1) % 7, [x])
        if x % 13 == 0:
            self.list.update([x])
        if x % 97 == 0:
            self.map.clear()
            self.object.clear()
        yield
        timers, stamp = ctx.timer_service(), ctx.timestamp()
        if x % 4 == 0:
            timers.register_event_time_timer(stamp + x % 50)
        if x % 9 == 0:
            timers.delete_event_time_timer(stamp + x % 50)
        if x % 17 == 0:
            timers.register_event_time_timer(stamp - 1000)
        yield
        self.own(ctx)
        if x % 29 == 0:
            raise FailedError(f"{key} {x}")
        state = self.hash.value(), tuple(self.list.get())[-4:], repr(self.map.items()), repr(self.object.value())
        results.append((key, "element", x, state, timers.current_watermark(), stamp))
        if x % 8 == 0:
            results.append((key, "more", x))

    def timer(self, timestamp: int, ctx: Any, results: list[Any]) -> Iterator[None]:
        key = self.own(ctx)
        before = self.hash.value() or 7
        self.hash.update((before * 31 + timestamp) % _PRIME)
        yield
        self.own(ctx)
        self.list.add(timestamp)
        if before % 3 == 0:
            ctx.timer_service().register_event_time_timer(timestamp + 5)
        if before % 7 == 0:
            ctx.timer_service().delete_event_time_timer(timestamp + 5)
        yield
        if before % 11 == 0:
            raise FailedError(f"{key} timer {timestamp}")
        results.append((key, "timer", timestamp, self.hash.value(), ctx.timer_service().current_watermark()))


class _Sequential(_Steps):
    def process_element(self, value: Any, ctx: Any) -> Any:
        results: list[Any] = []
        for _ in self.element(value, ctx, results):
            pass
        return results

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        results: list[Any] = []
        for _ in self.timer(timestamp, ctx, results):
            pass
        return results


class _Awaiting(_Steps):
    """Takes the model's steps, with random waits and service calls."""

    def __init__(self, seed: int, charges: Charges) -> None:
        self._rng = random.Random(seed)
        self._charges = charges

    async def pay(self, ctx: Any, payer: int, x: int, step: int) -> None:
        if is_paid(x, step):
            arguments = ctx.get_current_key(), x, step // 2
            reconcile = self._charges.find if is_reconciled(x) else None
            calls = [ctx.call(self._charges.charge, *arguments, reconcile=reconcile) for _ in range(payments(x))]
            for charged, idempotency_key in await asyncio.gather(*calls):
                if charged != arguments:
                    raise SystemExit("the answer to another call")
                self._charges.use(idempotency_key, (ctx.get_current_key(), payer))

    async def pause(self, ctx: Any) -> None:
        kind = self._rng.random()
        if kind < 0.3:
            return
        if kind < 0.6:
            await asyncio.sleep(0)
        elif kind < 0.8:
            await asyncio.sleep(self._rng.randrange(1, 40) / 1000)
        elif kind < 0.86:
            loop = asyncio.get_running_loop()
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await future
        elif kind < 0.92:
            await asyncio.gather(self.look(ctx, 1), self.look(ctx, 2))
        elif kind < 0.975:
            await asyncio.wait_for(asyncio.sleep(0), 5)
        elif kind < 0.98:
            thread = threading.Thread(target=self.change)
            thread.start()
            thread.join()
        else:
            asyncio.get_running_loop().create_task(asyncio.sleep(0.001))

    async def look(self, ctx: Any, times: int) -> None:
        for _ in range(times):
            await asyncio.sleep(0)
            self.own(ctx)

    def change(self) -> None:
        try:
            self.hash.update(-1)
        except ProgramError:
            pass

    async def process_element(self, value: Any, ctx: Any) -> Any:
        results: list[Any] = []
        for step, _ in enumerate(self.element(value, ctx, results)):
            await self.pause(ctx)
            await self.pay(ctx, value[1], value[1], step)
        return results

    async def on_timer(self, timestamp: int, ctx: Any) -> Any:
        results: list[Any] = []
        for step, _ in enumerate(self.timer(timestamp, ctx, results)):
            await self.pause(ctx)
            await self.pay(ctx, timestamp, -(timestamp % 3), step)
        for result in results:
            yield result


class Sequential(_Sequential, KeyedProcessFunction[str, Any, Any]): ...


class Awaiting(_Awaiting, KeyedProcessFunction[str, Any, Any]): ...


def shifted(value: Any, by: int) -> Any:
    return value[0], value[1] + by


class SequentialOfTwo(_Sequential, KeyedCoProcessFunction[str, Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return self.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return self.process_element(shifted(value, 3), ctx)


class AwaitingOfTwo(_Awaiting, KeyedCoProcessFunction[str, Any, Any, Any]):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return self.process_element(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return self.process_element(shifted(value, 3), ctx)


class SequentialRuled(_Sequential, KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    def process_element(self, value: Any, ctx: Any) -> Any:
        rule = ctx.get_broadcast_state(RULES).get("rule") or 0
        return super().process_element(shifted(value, rule), ctx)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("rule", value)


class AwaitingRuled(_Awaiting, KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    async def process_element(self, value: Any, ctx: Any) -> Any:
        await self.pause(ctx)
        rule = ctx.get_broadcast_state(RULES).get("rule") or 0
        return await super().process_element(shifted(value, rule), ctx)

    async def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        await asyncio.sleep(0)
        ctx.get_broadcast_state(RULES).put("rule", value)


class Kind(NamedTuple):
    """A kind of function: its model and its harness arguments."""

    awaiting: Any
    sequential: Any
    key_by: Any
    arguments: dict[str, Any]


KINDS = {
    "one input": Kind(Awaiting, Sequential, first, {}),
    "two inputs": Kind(AwaitingOfTwo, SequentialOfTwo, (first, first), {}),
    "broadcast": Kind(AwaitingRuled, SequentialRuled, first, {"broadcast": [RULES]}),
}


def steps_of(rng: random.Random, records: int, keys: int, kind: str) -> list[Step]:
    steps: list[Step] = []
    now = 10_000
    runs, barriers = rng.choice([([1, 5, 20, 60], 0.3), ([1, 2, 5], 0.6)])
    while records > 0:
        count = min(records, rng.choice(runs))
        records -= count
        values: list[Any] = []
        stamps: list[int] = []
        for _ in range(count):
            key = f"k{rng.randrange(keys)}" if rng.random() < 0.7 else f"hot{rng.randrange(2)}"
            again = bool(values) and rng.random() < 0.1
            values.append(values[-1] if again else (key, rng.randrange(1, 100_000)))
            stamps.append(now + rng.randrange(-40, 60))
        steps.append(("push", rng.randrange(2) if kind == "two inputs" else 0, values, stamps))
        if kind == "broadcast" and rng.random() < 0.2:
            steps.append(("broadcast", rng.randrange(10)))
        if rng.random() < 0.5:
            now += rng.randrange(0, 80)
            steps.append(("watermark", now))
        if rng.random() < 0.4:
            steps.append(("time", rng.randrange(1, 60)))
        if rng.random() < barriers:
            steps.append(("barrier",))
    return [*steps, ("barrier",)]


def take_outcome(harness: Harness, elements: list[Any], letters: list[Any]) -> None:
    elements += harness.get_elements()
    letters += harness.get_side_records(BAD)
    harness.clear_output()


def outcome(elements: list[Any], letters: list[Any], harness: Harness) -> Outcome:
    by_key, by_stretch, bad = defaultdict(list), [Counter[Any]()], defaultdict(list)
    for element in elements:
        if isinstance(element, Watermark):
            by_stretch.append(Counter({("watermark", element.timestamp): 1}))
        else:
            by_key[element.value[0]].append(element)
            by_stretch[-1][element] += 1
    for letter, stamp in letters:
        bad[letter.key].append((letter.value, letter.timestamp, letter.error, letter.timer, stamp))
    state = {key: (repr(harness.state_of(key)), harness.event_time_timers_of(key)) for key in harness.get_keys()}
    return {"results by key": by_key, "results by stretch": by_stretch, "letters": bad, "state": state}


def differences(
    seed: int,
    *,
    carry: bool,
    records: int = 150,
    keys: int = 10,
    crashes: float = 0.1,
    kind: str = "one input",
    journal: str | None = None,
) -> list[str]:
    rng = random.Random(seed)
    steps = steps_of(rng, records, rng.choice([2, keys]), kind)
    ordered, large = rng.random() < 0.2, rng.choice([40, 32 * 1024])
    capacity = rng.choice([1, 3, 100])
    charges = Charges(seed, has_journal=journal is not None)
    with patch.object(large_collections, "_LARGE", large):
        expected = _expected(steps, KINDS[kind])

        def opened(number: int, snapshot: Any, now: int) -> Harness:
            harness: Harness = harness_for(
                KINDS[kind].awaiting(seed * 1000 + number, charges),
                KINDS[kind].key_by,
                **KINDS[kind].arguments,
                on_error=BAD,
                capacity=capacity,
                ordered=ordered,
                on_barrier="carry" if carry else "drain",
                **({} if journal is None else {"journal": journal}),
                snapshot=snapshot,
                processing_time=now,
            )
            commit = harness._log.commit

            def counted(*arguments: Any, **options: Any) -> None:
                commit(*arguments, **options)
                charges.commits += 1
                take_outcome(harness, elements, letters)

            harness._log.commit = counted  # type: ignore[method-assign]
            return harness

        elements: list[Any] = []
        letters: list[Any] = []
        at, number, snapshot, position = 0, 0, None, 0
        harness = opened(0, None, 0)
        try:
            while position < len(steps):
                what, *arguments = steps[position]
                position += 1
                if what == "barrier":
                    if position == len(steps):
                        with harness._patience.time_passes("1 hour"):
                            harness.operator.end_input()
                    snapshot = harness.snapshot(time_passes=0 if carry else "1 hour")
                    harness.notify_of_completed_checkpoint(charges.commits)
                    at = position
                else:
                    _do(harness, what, arguments)
                if position < len(steps) and rng.random() < crashes:
                    now = harness.get_processing_time()
                    harness.close()
                    charges.crash()
                    number += 1
                    harness, position = opened(number, snapshot, now), at
            actual = outcome(elements, letters, harness)
            unfinished = ["unfinished elements"] if harness.operator.is_unfinished else []
            with opened(number + 1, snapshot, harness.get_processing_time()) as restored:
                actual["restored state"] = outcome([], [], restored)["state"]
            expected["restored state"] = expected["state"]
        finally:
            harness.close()
    return (
        unfinished
        + charges.faults
        + charges.wrong_keys(records_of(steps, kind))
        + [_difference(name, actual[name], expected[name]) for name in actual if actual[name] != expected[name]]
    )


def _difference(name: str, actual: Any, expected: Any) -> str:
    if isinstance(actual, dict):
        for key in sorted(set(actual) | set(expected)):
            if actual.get(key) != expected.get(key):
                return f"{name} of {key}:\n  {actual.get(key)}\n  {expected.get(key)}"
    return name


def records_of(steps: list[Step], kind: str) -> Counter[Any]:
    records: Counter[Any] = Counter()
    for what, *content in steps:
        if what == "push" and kind != "broadcast":
            records.update((key, x + 3 * content[0]) for key, x in content[1])
    return records


def _do(harness: Harness, what: str, arguments: list[Any]) -> None:
    if what == "push":
        operator = harness.operator
        # The clock of a harness stands still while the input waits for room.
        while isinstance(operator, AsyncKeyedOperator) and len(operator._queue) > WAITING // 2:
            harness.advance_processing_time(20)
        index, values, stamps = arguments
        harness.push_records(Records(values, stamps), index)
    elif what == "broadcast":
        with harness._patience.time_passes("1 hour"):
            harness.push_records(Records(arguments), 1)
    elif what == "watermark":
        harness.push_watermark(*arguments)
    else:
        harness.advance_processing_time(*arguments)


def _expected(steps: list[Step], kind: Kind) -> Outcome:
    with harness_for(kind.sequential(), kind.key_by, on_error=BAD, **kind.arguments) as harness:
        for what, *arguments in steps:
            if what != "barrier":
                _do(harness, what, arguments)
        return outcome(harness.get_elements(), harness.get_side_records(BAD), harness)
