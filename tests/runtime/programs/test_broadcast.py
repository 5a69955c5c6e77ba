from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorError,
    OutputTag,
    ProgramError,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._state.heap.namespace_rows import NamespaceRows
from pillarbox.testing import ProgramTestHarness, StreamRecord, check_operator, harness_for, row

PARALLELISM = st.integers(1, 4)
LIMITS = MapStateDescriptor("limits")
CHANGED = OutputTag("changed")


class Over(KeyedBroadcastProcessFunction):
    """Emits a key's spending with the key's limit. A broadcast limit for all keys makes each key emit its spending."""

    def open(self, runtime_context):
        self.spent = runtime_context.get_state(ValueStateDescriptor("spent"))

    def process_element(self, payment, ctx):
        self.spent.update((self.spent.value() or 0) + payment.amount)
        limit = ctx.get_broadcast_state(LIMITS).get(payment.kind)
        yield payment.card, self.spent.value(), limit
        ctx.timer_service().register_event_time_timer(payment.at + 10)

    def process_broadcast_element(self, limit, ctx):
        state = ctx.get_broadcast_state(LIMITS)
        if limit.amount is None:
            state.remove(limit.kind)
        else:
            state.put(limit.kind, limit.amount)
        if limit.kind == "reset":
            ctx.apply_to_keyed_state(ValueStateDescriptor("spent"), lambda key, spent: spent.clear())
        yield CHANGED, (limit.kind, sorted(state.items()))

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "silent", dict(ctx.get_broadcast_state(LIMITS).items()).get("k0")


def program(env, payments, limits):
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    both = (
        payments.assign_timestamps_and_watermarks(at)
        .key_by("card")
        .connect(limits.assign_timestamps_and_watermarks(at).broadcast(LIMITS))
    )
    out = both.process(Over())
    return {"out": out, "changed": out.get_side_output(CHANGED)}


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("pay"), st.integers(0, 4), st.integers(0, 2), st.integers(1, 9)),
        st.tuples(st.just("limit"), st.sampled_from(["k0", "k1", "reset"]), st.none() | st.integers(0, 9)),
    ),
    max_size=25,
)


@pytest.mark.slow("a model")
@given(EVENTS, PARALLELISM, st.lists(st.booleans(), max_size=25))
def test_equal_to_plain_python(events, parallelism, restarts):
    harness = ProgramTestHarness(program, parallelism=parallelism)
    spent: Counter[int] = Counter()
    limits: dict[str, int] = {}
    try:
        for at, event in enumerate(events):
            restart = at < len(restarts) and restarts[at]
            if event[0] == "pay":
                _, card, kind, amount = event
                harness.push("payments", row(card=card, kind=f"k{kind}", amount=amount, at=0))
                spent[card] += amount
                expected: tuple[list[Any], list[Any]] = [(card, spent[card], limits.get(f"k{kind}"))], []
            else:
                _, name, limit = event
                harness.push("limits", row(kind=name, amount=limit, at=0))
                limits.pop(name, None) if limit is None else limits.update({name: limit})
                if name == "reset":
                    spent.clear()
                expected = [], [(name, sorted(limits.items()))] * parallelism
            if restart:
                harness.fail_epoch()
            out = harness.run_epoch()
            assert (out["out"], out["changed"]) == expected
            if restart:
                snapshot = harness.snapshot()
                harness.close()
                harness = ProgramTestHarness(program, parallelism=parallelism, snapshot=snapshot)
        cards = {event[1] for event in events if event[0] == "pay"}
        assert Counter(harness.end_input()["out"]) == Counter((card, "silent", limits.get("k0")) for card in cards)
    finally:
        harness.close()


class WordLimits(BroadcastProcessFunction):
    def process_element(self, word, ctx):
        yield word, ctx.get_broadcast_state(LIMITS).get(word), ctx.timestamp()

    def process_broadcast_element(self, word, ctx):
        state = ctx.get_broadcast_state(LIMITS)
        state[word] = (state.get(word) or 0) + 1


def test_without_key_each_subtask_sees_all_broadcast_records_once():
    def build(env, words, limits):
        return words.connect(limits.broadcast(LIMITS)).process(WordLimits())

    with ProgramTestHarness(build, parallelism=3) as harness:
        harness.push("limits", "to", "be", "to")
        assert harness.run_epoch()["output"] == []
        harness.push("words", *["to", "be", "or"] * 4)
        harness.fail_epoch()
        out = Counter(harness.run_epoch()["output"])
    assert out == Counter({("to", 2, None): 4, ("be", 1, None): 4, ("or", None, None): 4})


def test_a_broadcast_stream_without_state_comes_once_to_each_subtask():
    env = StreamExecutionEnvironment().set_parallelism(3)
    words = env.from_collection(["to", "be"]).broadcast().map(str.upper)
    assert Counter(words.execute_and_collect()) == Counter({"TO": 3, "BE": 3})


def test_a_large_broadcast_state_is_stored_once_a_subtask_and_written_by_its_changes():
    def build(env, words, limits):
        return words.connect(limits.broadcast(LIMITS)).process(WordLimits())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push_all("limits", [f"word {number}" for number in range(25_000)])
        harness.run_epoch()
        whole = [report for report in harness._job.reports if report.level == 1]
        harness.push("limits", "word 5")
        harness.push_all("words", [f"word {number}" for number in range(10)])
        out = harness.run_epoch()["output"]
        small = [report for report in harness._job.reports if report.level == 1]
        snapshot = harness.snapshot()
    assert len(out) == 10
    assert all(250_000 < (report.state_bytes or 0) < 1_000_000 and report.keys == 0 for report in whole)
    assert all((report.state_bytes_written or 0) < 10_000 for report in small)
    logs = [sum(map(len, store.chunks.values())) for store in snapshot.stores.values()]
    assert len(logs) == 2 and all(250_000 < log < 1_000_000 for log in logs)
    with ProgramTestHarness(build, parallelism=2, snapshot=snapshot) as harness:
        harness.push("words", "word 5", "word 24999", "word 25000")
        assert sorted(harness.run_epoch()["output"]) == sorted(
            [("word 5", 2, None), ("word 24999", 1, None), ("word 25000", None, None)]
        )


class Looks(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.get_broadcast_state(LIMITS).get(value)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(LIMITS).put(value, value + 1)


def test_a_read_of_broadcast_state_looks_for_no_row(monkeypatch):
    looked = []
    find = NamespaceRows.find

    def noted(self: NamespaceRows, address: Any) -> Any:
        looked.append(address)
        return find(self, address)

    monkeypatch.setattr(NamespaceRows, "find", noted)
    snapshot = None
    for number in range(2):
        with harness_for(Looks(), broadcast=[LIMITS], snapshot=snapshot) as harness:
            for _ in range(2):
                harness.push2(number)
                looked.clear()
                for _ in range(100):
                    harness.push1(number)
                assert looked == []
                assert harness.get_output() == [number + 1] * 100
                harness.clear_output()
                snapshot = harness.snapshot()


def test_the_laws_of_operators():
    check_operator(
        lambda **options: harness_for(WordLimits(), broadcast=[LIMITS], **options),
        [StreamRecord("to", 1), StreamRecord("be", 2)],
    )


class Writes(BroadcastProcessFunction):
    def __init__(self, write):
        self.write = write

    def process_element(self, word, ctx):
        self.write(ctx.get_broadcast_state(LIMITS))

    def process_broadcast_element(self, word, ctx):
        ctx.get_broadcast_state(LIMITS)[word] = 1


@pytest.mark.parametrize(
    "write",
    [
        lambda state: state.put("a", 1),
        lambda state: state.remove("a"),
        lambda state: state.clear(),
        lambda state: state.put_all({}),
        lambda state: state.__setitem__("a", 1),
        lambda state: state.__delitem__("a"),
    ],
)
def test_the_other_side_cannot_write(write):
    with harness_for(Writes(write), broadcast=[LIMITS]) as harness:
        harness.push2("a")
        with pytest.raises(Exception, match=r"broadcast state is read-only here") as caught:
            harness.push1("b")
    assert "operator 'Writes'" in str(caught.value)


class Asks(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, word, ctx):
        ctx.get_broadcast_state(MapStateDescriptor("other"))

    def process_broadcast_element(self, word, ctx):
        if word == "state":
            self.count.value()
        else:
            ctx.apply_to_keyed_state(ValueStateDescriptor("unknown"), lambda key, state: None)


SIZE = ValueStateDescriptor("size", int, default=0)
RECENT = ListStateDescriptor("recent")
RECENT.enable_time_to_live(StateTtlConfig("1 minute"))


class Walk(KeyedBroadcastProcessFunction):
    """Iterates over a state's keys, and changes this state and another state while it iterates."""

    def open(self, runtime_context):
        self.size, self.recent = runtime_context.get_state(SIZE), runtime_context.get_list_state(RECENT)

    def process_element(self, word, ctx):
        self.size.update(self.size.value() + 1)
        self.recent.add(word.number)

    def process_broadcast_element(self, command, ctx):
        seen = []

        def look(key, state):
            seen.append((key, state.value() if command != "recent" else list(state)))
            if command == "halve":
                ctx.output(CHANGED, key)
                state.update(state.value() // 2 or None)
                self.recent.update(list(self.recent)[-state.value() :])
            elif command == "fail" and key == "c":
                raise ValueError("no c")

        ctx.apply_to_keyed_state(RECENT if command == "recent" else SIZE, look)
        yield seen


def walk(**options: Any) -> Any:
    return harness_for(Walk(), key_by="text", broadcast=[LIMITS], **options)


def test_a_command_goes_over_the_keys_of_a_state():
    with walk() as harness:
        for number, text in enumerate("abcdabca"):
            harness.push1(row(text=text, number=number))
        harness.push2("halve")
        harness.push2("halve")
        harness.push2("recent")
        snapshot = harness.snapshot()
        outputs = harness.get_output()
        assert [sorted(entries) for entries in outputs] == [
            [("a", 3), ("b", 2), ("c", 2), ("d", 1)],
            [("a", 1), ("b", 1), ("c", 1)],
            [("a", [7]), ("b", [5]), ("c", [6]), ("d", [3])],
        ]
        assert harness.get_side_output(CHANGED) == [key for entries in outputs[:2] for key, _ in entries]
        harness.push1(row(text="e", number=9))
        harness.push2("recent")
        order = harness.get_output()[-1]
    with walk(snapshot=snapshot) as harness:  # where the rows lie otherwise in memory
        harness.push1(row(text="e", number=9))
        harness.push2("recent")
        assert harness.get_output() == [order]
        harness.set_processing_time(59_999)
        harness.push1(row(text="c", number=10))
        harness.set_processing_time(60_000)
        harness.push2("recent")
        assert harness.get_output()[-1] == [("c", [10])]  # [("c", 10)] only: the other one has expired
        with pytest.raises(OperatorError, match=r"failed in apply_to_keyed_state\(\) at the key 'c'.*no c"):
            harness.push1(row(text="c", number=10))
            harness.push2("fail")


def test_states_that_are_not_there_are_named():
    with harness_for(Asks(), key_by=str, broadcast=[LIMITS]) as harness:
        with pytest.raises(Exception, match=r"there is no broadcast state 'other' \(there are 'limits'"):
            harness.push1("a")
        with pytest.raises(Exception, match="uses the value state 'count' where there is no current key"):
            harness.push2("state")
        with pytest.raises(Exception, match="asks for the state 'unknown' while records are processed"):
            harness.push2("other")


def test_broadcast_state_has_no_time_to_live():
    timed = MapStateDescriptor("timed")
    timed.enable_time_to_live(StateTtlConfig(5))
    with pytest.raises(ProgramError, match=r"broadcast\(\): the state 'timed' has a time-to-live"):
        StreamExecutionEnvironment().from_collection([1]).broadcast(timed)


def test_wrong_uses_are_refused():
    env = StreamExecutionEnvironment()
    words, rules = env.from_collection(["a"]), env.from_collection(["b"])
    with pytest.raises(ProgramError, match=r"broadcast\(\) takes MapStateDescriptors, not 'rules'"):
        rules.broadcast("rules")  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match="two states have the name 'limits'"):
        rules.broadcast(LIMITS, MapStateDescriptor("limits"))
    with pytest.raises(ProgramError, match="from the same StreamExecutionEnvironment"):
        words.connect(StreamExecutionEnvironment().from_collection([1]).broadcast(LIMITS))
    broadcast = rules.broadcast(LIMITS)
    with pytest.raises(ProgramError, match="the stream has no key: pass a BroadcastProcessFunction, or put key_by"):
        words.connect(broadcast).process(Asks())
    with pytest.raises(ProgramError, match="has a key: pass a KeyedBroadcastProcessFunction"):
        words.key_by(str).connect(broadcast).process(WordLimits())
    with pytest.raises(ProgramError, match=r"pass an instance: WordLimits\(\)"):
        words.connect(broadcast).process(WordLimits)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="pass a BroadcastProcessFunction"):
        words.connect(broadcast).process(print)  # type: ignore[arg-type]
