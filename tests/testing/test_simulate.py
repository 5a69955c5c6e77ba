"""``simulate()`` finds and shrinks bugs in users' programs, and accepts correct programs."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from traceback import walk_tb

import pytest

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    ProcessFunction,
    ProgramError,
    RuntimeExecutionMode,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import SimulationError, StreamRecord, check_operator, harness_for, row, simulate

pytestmark = pytest.mark.slow("each test runs a program under many schedules")
_OTHER_FAULT = pytest.mark.long("two faults show how one is found alone, and the next test has all of them")

CARDS = {"cards": [f"c{n % 3}" for n in range(12)]}
COUNT = ValueStateDescriptor("count")


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, card, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield card, self.count.value()


class CountInField(KeyedProcessFunction):
    """Counts in a field, so the count is lost with its worker."""

    def open(self, runtime_context):
        self.counts: Counter[str] = Counter()

    def process_element(self, card, ctx):
        self.counts[card] += 1
        yield card, self.counts[card]


class ForgetsAtRestart(KeyedProcessFunction):
    """Changes a list in its state in place, without an update."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, card, ctx):
        if self.seen.value() is None:
            self.seen.update([])
        self.seen.value().append(card)
        yield card, len(self.seen.value())


class InOrder(KeyedProcessFunction):
    def open(self, runtime_context):
        self.before = runtime_context.get_state(ValueStateDescriptor("before"))

    def process_element(self, record, ctx):
        yield record, self.before.value()
        self.before.update(record["n"])


class Timeout(KeyedProcessFunction):
    def open(self, runtime_context):
        self.until = runtime_context.get_state(ValueStateDescriptor("until"))

    def process_element(self, card, ctx):
        timers = ctx.timer_service()
        if self.until.value() is not None:
            timers.delete_processing_time_timer(self.until.value())
        self.until.update(timers.current_processing_time() + 100_000)
        timers.register_processing_time_timer(self.until.value())

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "silent"


@pytest.fixture
def shrinks_little(monkeypatch):
    monkeypatch.setattr("pillarbox.testing._simulation.simulate._SHRINKING_RUNS", 4)


def by_card(function):
    return lambda env, cards: cards.key_by(lambda card: card).process(function()).uid("count")


def test_a_right_program_passes_and_agrees_with_an_oracle():
    def oracle(inputs):
        counted: Counter[str] = Counter()
        return {"output": [(card, counted.update([card]) or counted[card]) for card in inputs["cards"]]}

    simulate(by_card(Count), CARDS, seeds=4, oracle=oracle)


def test_an_oracle_that_says_something_else_is_told():
    with pytest.raises(SimulationError, match="oracle") as caught:
        simulate(by_card(Count), CARDS, seeds=3, oracle=lambda inputs: {"output": [("c0", 99)]})
    assert caught.value.inputs == {"cards": []}  # it shows without any record
    assert caught.value.faults == ()


@pytest.mark.usefixtures("shrinks_little")
def test_a_seed_that_failed_fails_again_and_so_does_the_smaller_case():
    with pytest.raises(SimulationError) as caught:
        simulate(by_card(CountInField), CARDS, seeds=50)
    with pytest.raises(SimulationError) as again:
        simulate(by_card(CountInField), CARDS, seeds=[caught.value.seed])
    assert str(again.value) == str(caught.value)
    assert "seeds=[" in str(again.value) and "should be" in str(again.value)


@pytest.mark.usefixtures("shrinks_little")
def test_state_that_is_changed_in_place_is_found():
    with pytest.raises(SimulationError):
        simulate(by_card(ForgetsAtRestart), CARDS, seeds=50)


def test_without_faults_these_bugs_do_not_show():
    simulate(by_card(CountInField), CARDS, seeds=4, faults=())


@pytest.mark.usefixtures("shrinks_little")
@pytest.mark.parametrize(
    "fault",
    [*(pytest.param(fault, marks=_OTHER_FAULT) for fault in ("move", "fail", "retry", "restart")), "kill", "rescale"],
)
def test_each_kind_of_fault_alone_loses_what_is_in_a_field(fault):
    with pytest.raises(SimulationError) as caught:
        simulate(by_card(CountInField), CARDS, seeds=200, faults=[fault])
    assert caught.value.faults == (fault,)


@pytest.mark.parametrize("fault", ["move", "fail", "retry", "kill", "restart", "rescale", "reorder", "delay"])
def test_each_kind_of_fault_alone_leaves_state_as_it_is(fault):
    simulate(by_card(Count), CARDS, seeds=3, faults=[fault])


@pytest.mark.usefixtures("shrinks_little")
def test_a_dependency_on_the_order_of_arrival_is_detected():
    def build(env, events):
        return events.key_by("card").process(InOrder()).uid("order")

    events = {"events": [row(card=f"c{n % 3}", n=n) for n in range(12)]}
    with pytest.raises(SimulationError):
        simulate(build, events, seeds=50)
    simulate(build, events, seeds=5, key_by="card")
    simulate(build, events, seeds=5, key_by={"events": "card"}, ordered_by=lambda result: result[0]["card"])


@pytest.mark.usefixtures("shrinks_little")
def test_the_order_of_an_output_is_compared_when_asked_for():
    def build(env, cards):
        return cards.map(lambda card: (card, "seen")).rebalance().map(lambda pair: pair)

    numbered = {"cards": [(f"c{n % 2}", n) for n in range(40)]}
    simulate(build, numbered, seeds=5)
    with pytest.raises(SimulationError):
        simulate(build, numbered, seeds=50, ordered_by=lambda pair: 0)


@pytest.mark.usefixtures("shrinks_little")
def test_windows_fire_at_the_end_of_the_input():
    def build(env, events):
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
        timed = events.assign_timestamps_and_watermarks(strategy)
        return timed.key_by("card").process(Sessions()).uid("sessions")

    class Sessions(KeyedProcessFunction):
        def open(self, runtime_context):
            self.events = runtime_context.get_list_state(ListStateDescriptor("events"))

        def process_element(self, event, ctx):
            self.events.add(event["at"])
            ctx.timer_service().register_event_time_timer(10**9)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), sorted(self.events)

    def oracle(inputs):
        times = defaultdict(list)
        for event in inputs["events"]:
            times[event["card"]].append(event["at"])
        return {"output": [(card, sorted(times_of_card)) for card, times_of_card in times.items()]}

    events = {"events": [row(card=f"c{n % 3}", at=n * 10) for n in range(12)]}
    simulate(build, events, seeds=4, oracle=oracle)
    with pytest.raises(SimulationError, match="oracle"):
        simulate(build, events, seeds=1, oracle=oracle, end_input=False)


def test_timers_of_the_clock_fire_after_the_last_record():
    def oracle(inputs):
        return {"output": [(card, "silent") for card in set(inputs["cards"])]}

    simulate(by_card(Timeout), CARDS, seeds=4, time_passes="10 minutes", oracle=oracle)


def test_asynchronous_functions_take_turns_with_the_task():
    async def ask(card):
        await asyncio.sleep(0.5)
        return card, "answered"

    def build(env, cards):
        return cards.map_async(ask, capacity=3).key_by(lambda pair: pair[0]).process(Pairs()).uid("pairs")

    class Pairs(ProcessFunction):
        def process_element(self, pair, ctx):
            yield pair

    simulate(build, CARDS, seeds=4, oracle=lambda inputs: {"output": [(card, "answered") for card in inputs["cards"]]})


def test_a_function_that_raises_is_told_with_its_error():
    def build(env, cards):
        return cards.map(lambda card: 1 // (card != "c2"))

    with pytest.raises(SimulationError, match="ZeroDivisionError") as caught:
        simulate(build, CARDS, seeds=5)
    assert caught.value.inputs == {"cards": ["c2"]}


def test_programs_in_batch_mode_are_simulated():
    def build(env, cards):
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
        return cards.key_by(lambda card: card).process(Count()).uid("count")

    simulate(build, CARDS, seeds=4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"faults": ["earthquake"]}, "unknown fault 'earthquake': choose from move, fail"),
        ({"inputs": {"payments": []}}, "sources are cards, but inputs= has payments"),
        ({"inputs": {}}, "inputs= has none"),
        ({"key_by": {"payments": "card"}}, "key_by= has the unknown name 'payments'; valid names are cards"),
        ({"ordered_by": {"late": "card"}}, "ordered_by= has the unknown name 'late'; valid names are output"),
        ({"key_by": 7}, "key_by= must be a column name or a function, not 7"),
        ({"parallelism": 0}, "parallelism= must be from 1 to 16, not 0"),
        ({"parallelism": []}, "parallelism= must be from 1 to 16"),
        ({"parallelism": True}, "parallelism= must be from 1 to 16, not True"),
        ({"parallelism": ["2"]}, "parallelism= must be from 1 to 16"),
    ],
)
def test_wrong_arguments_are_refused(arguments, says):
    with pytest.raises(ProgramError, match=says):
        simulate(by_card(Count), **{"inputs": CARDS, "seeds": 1, **arguments})


def test_pytest_shows_no_frames_of_a_check():
    class Field(KeyedProcessFunction):
        def open(self, runtime_context):
            self.count = 0

        def process_element(self, value, ctx):
            self.count += 1
            yield self.count

    def simulated():
        simulate(lambda env, n: n.key_by(lambda value: 0).process(Field()), {"n": [1, 2]}, seeds=50)

    def checked():
        check_operator(
            lambda **options: harness_for(Field(), key_by=lambda n: 0, **options),
            [StreamRecord(n, None) for n in (1, 2, 3)],
        )

    for check in (simulated, checked):
        with pytest.raises(AssertionError) as caught:
            check()
        frames = [frame.f_locals for frame, _ in walk_tb(caught.value.__traceback__)][2:]
        assert frames and all(names.get("__tracebackhide__") for names in frames)


def test_a_program_without_state() -> None:
    simulate(lambda env, cards: cards.map(str.upper), CARDS, seeds=30)


def test_a_function_may_change_its_records_but_not_the_inputs() -> None:
    def count(record: dict[str, int]) -> dict[str, int]:
        record["seen"] = record.get("seen", 0) + 1
        return record

    records = [{"card": n % 2} for n in range(6)]
    simulate(
        lambda env, cards: cards.map(count),
        {"cards": records},
        oracle=lambda inputs: {"output": [{"card": n % 2, "seen": 1} for n in range(6)]},
        seeds=20,
    )
    assert records == [{"card": n % 2} for n in range(6)]
