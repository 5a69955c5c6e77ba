from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, KeyedProcessFunction, ProgramError, ValueStateDescriptor
from pillarbox._runtime.spark.reading import key_life as module
from pillarbox._runtime.spark.reading.key_life import describe_key, key_life
from pillarbox._runtime.spark.reading.key_text import keys_of_text, possible_keys
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox.testing import ProgramTestHarness, row
from tests.operators.async_keyed.gates import Gate, Stateful, opened

# Until then no request is answered: all of them are carried into the next epoch.
ANSWERING = threading.Event()
# Requests that the service has got.
ASKED = threading.Semaphore(0)


@pytest.fixture(autouse=True)
def _unanswered() -> Iterator[None]:
    ANSWERING.clear()
    yield
    ANSWERING.set()


async def ask(value: Any) -> Any:
    ASKED.release()
    while not ANSWERING.is_set():
        await asyncio.sleep(0.002)
    return value


@dataclass
class Payment:
    card: str
    amount: int


class Count(KeyedProcessFunction):
    def __init__(self, form: Any) -> None:
        self.form = form

    def open(self, ctx: Any) -> None:
        self.seen = ctx.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(5_000)
        yield self.form(value)


def looks(build: Any, text: str, *records: Any) -> list[dict[str, Any]]:
    with ProgramTestHarness(build, parallelism=2) as harness:
        for record in records:
            harness.push("rows", record)
        harness.run_epoch()
        for _ in records:
            ASKED.acquire()
        harness.run_epoch()
        stores = [store for store in harness.snapshot().stores.values() if store.get(0) is not None]
        ANSWERING.set()
    keys = keys_of_text(text)
    return [
        json.loads(batch.to_pylist()[0]["facts"]) for store in stores for batch in module._log_facts(3, keys, 0, store)
    ]


PAYMENTS = [row(card="ann", amount=5), row(card="bob", amount=7), row(card="ann", amount=9)]


@pytest.mark.parametrize(
    ("form", "shown"),
    [
        (lambda value: value.card, ['"ann"', '"ann"']),
        (lambda value: value, ['{"card":"ann","amount":5}', '{"card":"ann","amount":9}']),
        (lambda value: (value.amount, value.card), ['[5,"ann"]', '[9,"ann"]']),
        (lambda value: {"card": value.card}, ['{"card":"ann"}', '{"card":"ann"}']),
        (lambda value: Payment(value.card, value.amount), ['["ann",5]', '["ann",9]']),
    ],
)
def test_pending_calls_of_a_key_are_those_with_the_key_in_their_record(form: Any, shown: list[str]) -> None:
    def build(env: Any, rows: Any) -> Any:
        return rows.key_by("card").process(Count(form)).uid("count").map_async(ask, on_barrier="carry").uid("ask")

    result = looks(build, "ann", *PAYMENTS)
    calls = [call for look in result for call in look["calls"]]
    assert [call["uid"] for call in calls] == ["ask", "ask"]
    assert [json.loads(call["record"]) for call in calls] == [json.loads(record) for record in shown]
    assert all(isinstance(call["asked"], int) for call in calls)
    assert sum(look["carried"].get("ask", 0) for look in result) == 3
    [of_key] = [look for look in result if look["rows"]]
    assert of_key["rows"][0]["states"] == {"seen": "2"}
    assert of_key["rows"][0]["timers"] == [["event", 5_000]]
    # They are listed as calls of the subtask of the key.
    description = describe_key("ann", 3, [3], result)
    assert description["calls"] == calls
    count = of_key["carried"]["ask"]
    assert f"{count} records of 'ask' in this subtask are carried into the next epoch" in description["messages"]


def test_the_key_of_an_asynchronous_operator_itself() -> None:
    def build(env: Any, rows: Any) -> Any:
        return rows.key_by("card", "amount").map_async(ask, on_barrier="carry").uid("ask")

    more = [row(card="ann", shop=payment.card, amount=payment.amount) for payment in PAYMENTS]
    calls = [call for look in looks(build, '["ann", 9]', *more) for call in look["calls"]]
    assert [json.loads(call["record"]) for call in calls] == [{"card": "ann", "shop": "ann", "amount": 9}]


def test_records_and_timers_of_an_async_keyed_function(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate()
    messages: list[str] = []

    class Charge(Stateful):
        async def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(5)
            await ctx.call(self.paid, value[1], key=f"pay {value[1]}")
            await ctx.call(self.paid, value[1])
            await gate(value)

        async def paid(self, amount: int) -> int:
            return amount

        async def on_timer(self, timestamp: int, ctx: Any) -> Any:
            await gate(("timer", ctx.get_current_key()))

    def pending(harness: Any, key: str) -> tuple[list[list[Any]], list[str]]:
        store = MemoryChunkStore()
        store.chunks = harness.snapshot().chunks
        facts = module._calls_of({"charge": LogView(store, 0).task_state()["operator"]}, ["?", key])
        [timers] = [row["timers"] for rows in LogView(store, 0).rows() for row in module._rows_of(rows, [key])] or [[]]
        of_key = {**_row("1", timers=timers), "states": {}}
        history = describe_key(key, 1, [1], [json.loads(json.dumps(_look(1, rows=[of_key], **facts)))])
        messages[:] = history["messages"]
        calls = [[call["record"], call["arrived"], call["waits"], call["recorded"]] for call in history["calls"]]
        return calls, [timer["waits"] for timer in history["timers"]]

    with opened(Charge(), on_barrier="carry") as harness:
        harness.push_all([("ann", 1), ("bob", 1), ("ann", 2)], [1, 1, 2])
        paid = ["pay 1: result", "call without a key: result"]
        first = ['["ann",1]', 1, "the end of its function", paid]
        assert pending(harness, "ann") == ([first, ['["ann",2]', 1, "1 earlier records of its key", []]], [])
        assert pending(harness, "cat") == ([], [])
        monkeypatch.setattr(module, "_QUEUE", 1)
        assert pending(harness, "ann") == ([first], [])
        assert messages[-1] == "1 more records wait for their turn of this key"
        harness.push_watermark(9)
        gate.open(harness, ("ann", 1))
        gate.open(harness, ("ann", 2))
        timers = ["timers of event time", 4, "the end of its function", []]
        assert pending(harness, "ann") == ([timers], ["the end of its function, or earlier records of its key"])


def test_records_that_cannot_be_compared_with_a_key_have_none() -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise ValueError("no")

        __hash__ = None  # type: ignore[assignment]

    assert not module._contains_key((Odd(), 1), "ann")
    assert module._contains_key((Odd(), "ann"), "ann")
    # (True equals 1, and they are two keys.)
    assert not module._contains_key((True,), 1)
    assert not module._contains_key(("ann", 5), ("ann", 6))
    assert not module._contains_key(object(), "ann")


def _look(epoch: int, **values: Any) -> dict[str, Any]:
    empty = {
        "subtask": 1,
        "watermark": 4_000,
        "by_columns": False,
        "rows": [],
        "carried": {},
        "calls": [],
        "more_calls": 0,
        "visits": [],
    }
    return {"epoch": epoch, **empty, **values}


def _row(seen: str, **values: Any) -> dict[str, Any]:
    return {"key": "'ann'", "namespace": None, "states": {"seen": seen}, "timers": [], **values}


def test_the_epoch_that_changed_a_state_last() -> None:
    description = describe_key(
        "ann", 5, [2, 3, 4, 5], [_look(epoch, rows=[_row(value)]) for epoch, value in zip((2, 3, 4, 5), "1223")]
    )
    assert (description["key"], description["subtask"], description["epochs"]) == ("'ann'", 1, [2, 3, 4, 5])
    assert description["state"] == [{"name": "seen", "value": "3", "changed": 5, "values": ["1", "2", "2", "3"]}]
    description = describe_key("ann", 5, [4, 5], [_look(epoch, rows=[_row("2")]) for epoch in (4, 5)])
    assert description["state"] == [{"name": "seen", "value": "2", "changed": None, "values": ["2", "2"]}]


def test_descriptions_of_pending_timers() -> None:
    timers = [["event", 3_000], ["event", 9_500], ["processing", 7_000]]

    def waits(watermark: int | None) -> list[str]:
        rows = [_row("1", timers=timers, namespace="(0, 60000)")]
        description = describe_key("ann", 5, [5], [_look(5, watermark=watermark, rows=rows)])
        assert [state["name"] for state in description["state"]] == ["seen of (0, 60000)"]
        return [timer["waits"] for timer in description["timers"]]

    clock = "an epoch after this time on the worker's clock"
    ahead = "event time, which must advance by 5.5 s in this subtask"
    assert waits(4_000) == ["the next epoch", ahead, clock]
    none = "the first watermark in this subtask"
    assert waits(None) == waits(MIN_TIMESTAMP) == [none, none, clock]


def test_a_key_without_state() -> None:
    description = describe_key("ann", 5, [4, 5], [_look(4, rows=[_row("1")]), _look(5)])
    assert description["messages"] == ["epoch 5 has no state and no timers of this key", "it last had some in epoch 4"]
    assert describe_key("ann", 5, [5], [])["subtask"] is None


@pytest.mark.parametrize("damaged", [[], [3], [2, 4], [5], [3, 5]])
def test_damaged_epochs_are_named_and_the_others_are_shown(damaged: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    head = SimpleNamespace(key=KeyNote(), subtask=1, max_parallelism=8, parallelism=2)
    files: Any = SimpleNamespace(epoch=5, is_copy=False)
    jobs: list[list[int]] = []

    def looks_at(files: Any, operator: Any, epochs: list[int], heads: Any, keys: Any) -> list[dict[str, Any]]:
        jobs.append(epochs)
        for epoch in epochs:
            if epoch in damaged:
                raise CheckpointMismatchError(f"state/0/0/{epoch}.delta is damaged")
        return [_look(epoch, rows=[_row(str(epoch), reading=0)]) for epoch in epochs]

    monkeypatch.setattr(module, "read_epoch", lambda spark, checkpoint, epoch, read: read(files))
    monkeypatch.setattr(module, "operator_with", lambda files, uid: (SimpleNamespace(first=2), {0: head}))
    monkeypatch.setattr(module, "_subtask", lambda key, head: 1)
    monkeypatch.setattr(module, "_looks", looks_at)
    no_spark: Any = None
    if 5 in damaged:
        with pytest.raises(CheckpointMismatchError, match=r"state/0/0/5\.delta is damaged"):
            module._read(no_spark, "/checkpoint", "count", "ann")
        return
    history = module._read(no_spark, "/checkpoint", "count", "ann")
    assert history["epochs"] == [epoch for epoch in (2, 3, 4, 5) if epoch not in damaged]
    assert history["state"][0]["values"] == [*map(str, history["epochs"])]
    assert history["messages"] == [
        f"epoch {epoch} cannot be read: state/0/0/{epoch}.delta is damaged" for epoch in damaged
    ]
    assert jobs[0] == [2, 3, 4, 5] and jobs[1:] == ([[2], [3], [4], [5]] if damaged else [])


def test_one_key_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    no_spark: Any = None

    def meanwhile(*arguments: Any) -> dict[str, Any]:
        with pytest.raises(ProgramError, match="the state of another key is being read"):
            key_life(no_spark, "/checkpoint", "count", "bob")
        return {"key": "ann"}

    monkeypatch.setattr(module, "_read", meanwhile)
    assert key_life(no_spark, "/checkpoint", "count", "ann")["key"] == "ann"
    # Also after one that fails.
    monkeypatch.setattr(module, "_read", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        key_life(no_spark, "/checkpoint", "count", "ann")
    monkeypatch.setattr(module, "_read", meanwhile)
    assert key_life(no_spark, "/checkpoint", "count", "ann")["key"] == "ann"


@pytest.mark.parametrize(
    ("text", "more"),
    [("ann", 0), ("42", 1), ("true", 1), ('["ann", 42]', 1), ("2026-05-01", 2), ("4.1", 2), ("{", 0), ("null", 0)],
)
def test_a_text_may_stand_for_several_keys(text: str, more: int) -> None:
    result = keys_of_text(text)
    assert result[0] == text
    assert len(result) == 1 + more


@pytest.mark.parametrize(
    ("types", "text", "key"),
    [
        (["string"], "10040", "10040"),
        (["varchar(9)"], "2026-05-01", "2026-05-01"),
        (["string"], '"c3"', '"c3"'),
        (["bigint"], "10040", 10040),
        (["double"], "4", 4.0),
        (["decimal(10,2)"], "4.10", Decimal("4.10")),
        (["boolean"], "True", True),
        (["date"], "2026-05-01", dt.date(2026, 5, 1)),
        (["timestamp"], "2026-05-01T12:00:00", dt.datetime(2026, 5, 1, 12)),
        (["string", "bigint"], '["10040", 10040]', ("10040", 10040)),
        (["string", "decimal(10,2)", "date"], '["a", 4.1, null]', ("a", Decimal("4.1"), None)),
    ],
)
def test_a_text_is_a_key_of_the_declared_type(types: list[str], text: str, key: Any) -> None:
    (result,) = possible_keys(text, [KeyNote(types=types)])
    assert (type(result), result) == (type(key), key)


@pytest.mark.parametrize(
    ("types", "text"),
    [(["bigint"], "c3"), (["date"], "10040"), (["string", "bigint"], "c3"), (["string", "bigint"], '["c3"]')],
)
def test_a_text_that_is_no_key_is_refused(types: list[str], text: str) -> None:
    with pytest.raises(ProgramError, match=f"is not a key of the operator, whose keys are {', '.join(types).upper()}"):
        possible_keys(text, [KeyNote(types=types)])


@pytest.mark.parametrize("notes", [[None], [KeyNote(function="f")], [KeyNote(types=["struct<a:int>"])]])
def test_keys_of_no_known_type_may_be_several(notes: list[KeyNote | None]) -> None:
    assert possible_keys("42", notes) == ["42", 42]


class Heads:
    """A fake checkpoint with an operator's state: one state log per subtask."""

    def __init__(self, *records: Any) -> None:
        with ProgramTestHarness(
            lambda env, rows: rows.key_by(lambda value: value).process(Count(lambda value: value)).uid("count"),
            parallelism=2,
        ) as harness:
            harness.push("rows", *records)
            harness.run_epoch()
            self.stores = [store for store in harness.snapshot().stores.values() if store.get(0) is not None]

    def looks(self, keys: list[Any]) -> list[dict[str, Any]]:
        return [
            json.loads(batch.to_pylist()[0]["facts"])
            for store in self.stores
            for batch in module._keys_of_log(keys, 0, store)
        ]


@pytest.mark.parametrize(
    ("records", "chosen"),
    [(["42", "x"], "42"), ([42, 7], 42), (["x", "y"], "42"), ([1, 2], 42), (["42", 42], None), ([(1, 2)], None)],
)
def test_the_state_decides_which_key_a_text_is(records: list[Any], chosen: Any) -> None:
    keys = keys_of_text("42")
    looks = Heads(*records).looks(keys)
    if chosen is None:
        with pytest.raises(ProgramError, match="of 'count' may be '42' as text or 42 as a whole number, and"):
            module.chosen_key("42", "count", keys, looks)
    else:
        assert module.chosen_key("42", "count", keys, looks) is keys[keys.index(chosen)]
