from __future__ import annotations

import operator
import pickle
import threading

import pytest

from pillarbox import (
    AggregateFunction,
    CheckpointMismatchError,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeyTypeError,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    OperatorError,
    OutputTag,
    ProcessFunction,
    ProgramError,
    ReduceFunction,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox.testing import (
    OneInputStreamOperatorTestHarness,
    ProcessFunctionTestHarnesses,
    ProgramTestHarness,
    StreamRecord,
    harness_for,
    row,
    simulate,
)
from tests.support.nodes import node

LATE = OutputTag("late")


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]


class Count(KeyedProcessFunction):
    """Counts records. "t<ms>" and "p<ms>" set event-time and processing-time timers. Emits "late" to a side output."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.words = runtime_context.get_list_state(ListStateDescriptor("words"))

    def process_element(self, value, ctx):
        key, word = value
        self.count.update((self.count.value() or 0) + 1)
        if word.startswith("t"):
            ctx.timer_service().register_event_time_timer(int(word[1:]))
        elif word.startswith("p"):
            ctx.timer_service().register_processing_time_timer(int(word[1:]))
        elif word == "late":
            ctx.output(LATE, key)
        elif word == "boom":
            raise RuntimeError("boom")
        elif word == "clear":
            self.count.clear()
            self.words.clear()
        else:
            self.words.add(word)
        yield key, self.count.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), ctx.time_domain().name, timestamp


def keyed(**options):
    return ProcessFunctionTestHarnesses.for_keyed_process_function(Count(), lambda value: value[0], **options)


def test_records_timestamps_watermarks_and_side_outputs():
    with keyed() as harness:
        harness.push(("a", "x"), 5)
        harness.process_element(("a", "late"))
        harness.process_watermark(9)
        assert harness.get_output() == [("a", 1), ("a", 2)]
        assert harness.get_records() == [StreamRecord(("a", 1), 5), StreamRecord(("a", 2), None)]
        assert harness.get_watermarks() == [9]
        assert harness.get_side_output(LATE) == harness.get_side_output("late") == ["a"]
        assert harness.get_side_output("never") == []
        harness.clear_output()
        assert harness.get_output() == harness.get_watermarks() == harness.get_side_output(LATE) == []


def test_push_all_is_one_run():
    runs = []

    class Runs(StreamOperator):
        def process_records(self, records):
            runs.append((records.values, records.timestamps))

    with OneInputStreamOperatorTestHarness(node(Runs, "runs")) as harness:
        harness.push_all(iter([1, 2]), [7, None])
        harness.push_all([3])
        with pytest.raises(ValueError, match="1 values, but 2 timestamps"):
            harness.push_all([1], [1, 2])
    assert runs == [([1, 2], [7, None]), ([3], None)]


def test_event_and_processing_time_timers():
    with keyed(processing_time=100) as harness:
        harness.push_all([("a", "t20"), ("b", "t10"), ("a", "p130"), ("b", "p120")])
        assert (harness.num_event_time_timers(), harness.num_processing_time_timers()) == (2, 2)
        harness.clear_output()
        harness.push_watermark(20)
        assert harness.get_records() == [(("b", "EVENT_TIME", 10), 10), (("a", "EVENT_TIME", 20), 20)]
        harness.clear_output()
        harness.advance_processing_time(19)
        assert harness.get_output() == []
        harness.set_processing_time(130)
        assert harness.get_records() == [(("b", "PROCESSING_TIME", 120), None), (("a", "PROCESSING_TIME", 130), None)]
        assert (harness.num_event_time_timers(), harness.num_processing_time_timers()) == (0, 0)


def test_a_processing_time_timer_in_the_past_fires_at_the_next_look_at_the_clock():
    with keyed(processing_time=100) as harness:
        harness.push(("a", "p50"))
        assert harness.num_processing_time_timers() == 1
        harness.advance_processing_time(0)
        assert harness.get_output()[-1] == ("a", "PROCESSING_TIME", 50)


def test_event_time_does_not_go_back():
    with keyed() as harness:
        harness.push_watermark(5)
        harness.push_watermark(5)
        with pytest.raises(ValueError, match="cannot go back from 5 to 4"):
            harness.push_watermark(4)


def test_end_of_input_fires_all_event_time_timers():
    with keyed() as harness:
        harness.push(("a", "t999999"))
        harness.end_input()
        assert harness.get_output()[-1] == ("a", "EVENT_TIME", 999999)
        assert harness.get_watermarks() == [MAX_WATERMARK]


def test_no_processing_time_timer_fires_behind_the_end_of_input():
    """In a task, nothing follows the maximum watermark."""
    with keyed(processing_time=100) as harness:
        harness.push(("a", "p150"))
        harness.end_input(time_passes=100)
        harness.advance_processing_time(100)
        assert harness.get_output() == [("a", 1)]
        assert harness.get_watermarks() == [MAX_WATERMARK]


def test_a_look_at_state_is_a_copy():
    with keyed() as harness:
        harness.push(("a", "x"))
        assert harness.state_of("a") == {"count": 1, "words": ["x"]}
        harness.state_of("a")["words"].append("y")
        assert harness.state_of("a")["words"] == ["x"]
        assert harness.state_of("b") == {}
        assert harness.num_keyed_state_entries() == 2
        harness.push(("a", "clear"))
        assert harness.num_keyed_state_entries() == 0


def test_snapshot_and_restore():
    with keyed() as harness:
        harness.push_all([("a", "x"), ("a", "t50"), ("a", "p60")])
        harness.push_watermark(30)
        snapshot = harness.snapshot()
        harness.push(("a", "y"))  # after the snapshot: not in it
        assert harness.snapshot() != snapshot
    with keyed(snapshot=pickle.loads(pickle.dumps(snapshot))) as restored:
        assert restored.state_of("a") == {"count": 3, "words": ["x"]}
        with pytest.raises(ValueError, match="go back from 30"):
            restored.push_watermark(29)
        restored.push_watermark(50)
        restored.set_processing_time(60)
        assert restored.get_output() == [("a", "EVENT_TIME", 50), ("a", "PROCESSING_TIME", 60)]


def test_a_snapshot_of_another_operator_is_refused():
    class Other(ReduceFunction):
        def reduce(self, value1, value2):
            return value1 + value2

    with keyed() as harness:
        harness.push(("a", "x"))
        snapshot = harness.snapshot()
    with pytest.raises(CheckpointMismatchError, match=r"'process'.*'Other'"):
        harness_for(Other(), key_by=lambda value: value, snapshot=snapshot)


def test_a_snapshot_of_another_kind_of_harness_is_refused():
    with keyed() as harness, ProgramTestHarness(running_sum) as program:
        of_operator, of_program = harness.snapshot(), program.snapshot()
    with pytest.raises(ProgramError, match=r"starts from an operator harness's snapshot\(\), not from ProgramSnapshot"):
        keyed(snapshot=of_program)
    with pytest.raises(ProgramError, match=r"starts from another harness's snapshot\(\), not from OperatorSnapshot"):
        ProgramTestHarness(running_sum, snapshot=of_operator)


def test_a_harness_that_is_closed_takes_no_records():
    with keyed() as harness:
        harness.push(("a", "x"))
    with pytest.raises(ProgramError, match="the harness and its function are closed"):
        harness.push(("a", "x"))
    assert harness.get_output() == [("a", 1)]


def test_keys_that_cannot_be_routed_do_not_pass():
    with harness_for(Count(), key_by=lambda value: value[0]) as harness:
        for key in ([], {}, object(), float("nan")):
            with pytest.raises(KeyTypeError):
                harness.push((key, "x"))


def test_errors_come_out_and_the_function_is_closed():
    closed = []

    class Closing(Count):
        def close(self):
            closed.append(True)

    with pytest.raises(OperatorError, match=r"'Closing' failed at the record \('a', 'boom'\): RuntimeError: boom"):  # noqa: SIM117
        with harness_for(Closing(), key_by=lambda value: value[0]) as harness:
            harness.push(("a", "boom"))
    harness.close()
    assert closed == [True]


def test_harness_for_all_kinds():
    class Double(MapFunction):
        def map(self, value):
            return 2 * value

    class Twice(FlatMapFunction):
        def flat_map(self, value):
            return [value, value]

    class Odd(FilterFunction):
        def filter(self, value):
            return value % 2 == 1

    class Halves(ProcessFunction):
        def process_element(self, value, ctx):
            yield value // 2
            yield LATE, value % 2

    class Sum(ReduceFunction):
        def reduce(self, value1, value2):
            return value1 + value2

    def run(function, **options):
        with harness_for(function, **options) as harness:
            harness.push_all([1, 2, 3])
            return harness.get_output()

    assert run(Double()) == [2, 4, 6]
    assert run(Twice()) == [1, 1, 2, 2, 3, 3]
    assert run(Odd()) == [1, 3]
    assert run(Halves()) == [0, 1, 1]
    assert run(Sum(), key_by=lambda value: value % 2) == [1, 2, 4]
    with pytest.raises(ProgramError, match=r"pass key_by=... to harness_for"):
        harness_for(Sum())
    for wrong in (lambda value: value, 5, Mean()):
        with pytest.raises(ProgramError, match=r"pass an instance of a function class.* use a ProgramTestHarness"):
            harness_for(wrong)  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match=r"got the class Double: pass an instance: Double\(\)"):
        harness_for(Double)  # type: ignore[call-overload]
    with pytest.raises(ProgramError, match=r"broadcast= must be a list of descriptors, such as broadcast=\[RULES\]"):
        harness_for(Halves(), broadcast=MapStateDescriptor("rules"))


def test_mails_from_other_threads_run_in_the_harness_thread():
    ran = []

    class Posting(StreamOperator):
        def process_records(self, records):
            executor = self.context.mailbox_executor
            post = threading.Thread(target=executor.execute, args=(lambda: ran.append(threading.get_ident()), "mail"))
            post.start()
            post.join()

    with OneInputStreamOperatorTestHarness(node(Posting, "posting")) as harness:
        harness.push(1)
    assert ran == [threading.get_ident()]


# -- whole programs --


def running_sum(env, numbers):
    return numbers.key_by(lambda value: value % 3).reduce(lambda a, b: a + b)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_program_epochs(parallelism):
    with ProgramTestHarness(running_sum, parallelism=parallelism) as harness:
        harness.push("numbers", 1, 2)
        assert sorted(harness.run_epoch()["output"]) == [1, 2]
        assert harness.run_epoch() == {"output": []}
        harness.push_all("numbers", [4], partition=2)
        assert harness.run_epoch() == {"output": [5]}
        assert sorted(harness.get_output()) == [1, 2, 5]
        assert harness.epoch == 3
        harness.clear_output()
        assert harness.get_output() == []


def test_program_snapshot_restore_and_failure():
    with ProgramTestHarness(running_sum, parallelism=2) as harness:
        harness.push("numbers", 1, 4)
        harness.run_epoch()
        snapshot = pickle.loads(pickle.dumps(harness.snapshot()))
        harness.push("numbers", 7)
        harness.fail_epoch()
        assert (harness.epoch, harness.get_output()) == (1, [1, 5])
        assert harness.run_epoch()["output"] == [12]
        harness.restore(snapshot)
        harness.push("numbers", 10)
        assert harness.run_epoch()["output"] == [15]
    with ProgramTestHarness(running_sum, parallelism=2, snapshot=snapshot) as other:
        assert other.epoch == 1
        other.push("numbers", 1)
        assert other.end_input()["output"] == [6]
    with ProgramTestHarness(running_sum, parallelism=3, snapshot=snapshot) as wider:
        wider.push("numbers", 1)
        with pytest.raises(CheckpointMismatchError, match="written with 2 subtasks, the program runs with 3"):
            wider.run_epoch()
    with pytest.raises(CheckpointMismatchError, match="but the program has no such subtask"):
        ProgramTestHarness(lambda env, s: s.map(str), snapshot=snapshot)


def test_an_epoch_that_raises_leaves_no_trace():
    def build(env, words):
        counted = words.key_by(lambda value: value[0]).process(Count())
        return {"main": counted, "late": counted.get_side_output(LATE)}

    with ProgramTestHarness(build) as harness:
        harness.push("words", ("a", "p100"), ("a", "late"))
        harness.run_epoch()
        harness.push("words", ("a", "p90"), ("a", "late"), ("a", "boom"))
        with pytest.raises(OperatorError, match="boom"):
            harness.run_epoch()
        # The dead task's timer at 90 must not fire.
        harness.set_processing_time(95)
        assert harness.run_epoch() == {"main": [], "late": []}
        harness.push("words", ("a", "x"))
        harness.set_processing_time(100)
        assert harness.run_epoch()["main"] == [("a", 3), ("a", "PROCESSING_TIME", 100)]
        assert harness.get_output("late") == ["a"]


def test_program_event_time_is_the_strategys():
    def build(env, left, right):
        strategy = WatermarkStrategy.for_bounded_out_of_orderness(10).with_timestamp_assigner(lambda v: int(v[1][1:]))
        return left.union(right).assign_timestamps_and_watermarks(strategy).key_by(lambda v: v[0]).process(Count())

    with ProgramTestHarness(build, parallelism=2) as harness:
        harness.push("left", ("a", "t100"))
        harness.push("right", ("b", "t100"))
        harness.run_epoch()
        harness.clear_output()
        harness.push("left", ("c", "t500"))
        harness.run_epoch()
        assert harness.get_output() == [("c", 1)]  # the right source holds event time back
        harness.push("right", ("c", "t112"))
        assert sorted(harness.run_epoch()["output"], key=str) == [
            ("a", "EVENT_TIME", 100),
            ("b", "EVENT_TIME", 100),
            ("c", 2),
        ]


def test_wrong_names_and_builders():
    with ProgramTestHarness(lambda env, used, unused: used) as harness:
        with pytest.raises(ProgramError, match="no source 'other'; the sources are used, unused"):
            harness.push("other", 1)
        with pytest.raises(ProgramError, match="no output depends on the source 'unused'"):
            harness.push("unused", 1)
        with pytest.raises(ProgramError, match="no output 'main'; the outputs are output"):
            harness.get_output("main")
        assert harness.get_plan().startswith("Program 'test'")
    with pytest.raises(ProgramError, match="has no parameter for a source"):
        ProgramTestHarness(lambda env: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ProgramError, match="returned None for the output 'output'"):
        ProgramTestHarness(lambda env, s: None)  # type: ignore[arg-type, return-value]


def test_parameters_with_a_default_are_no_sources():
    with ProgramTestHarness(lambda env, s, factor=3: s.map(lambda x: x * factor)) as harness:
        harness.push("s", 2)
        assert harness.run_epoch()["output"] == [6]


def test_row():
    record = row(card="c1", amount=2)
    assert (record.card, record["amount"], record._fields) == ("c1", 2, ("card", "amount"))


class EchoTime(KeyedProcessFunction):
    """Sets a timer at the record's second field, and yields this time when the timer fires."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        yield timestamp


class Same(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


@pytest.mark.parametrize("restarted", [False, True])
def test_event_time_behind_a_shuffle_goes_on_after_silence_and_a_restart(restarted):
    def build(env, a):
        strategy = (
            WatermarkStrategy.for_monotonous_timestamps()
            .with_timestamp_assigner(lambda value: value[1])
            .with_idleness("1 second")
        )
        keyed = a.key_by(lambda value: value[0]).process(Same()).assign_timestamps_and_watermarks(strategy)
        return keyed.key_by(lambda value: value[0]).process(EchoTime())

    with ProgramTestHarness(build) as harness:
        harness.push("a", ("k", 10))
        harness.run_epoch()
        for _ in range(5):
            harness.advance_processing_time(600)
            harness.run_epoch()
        if restarted:
            harness.restore(harness.snapshot())
        fired = []
        for at in (1000, 2000, 3000):
            harness.push("a", ("k", at))
            fired.append(harness.run_epoch()["output"])
    assert fired == [[10], [1000], [2000]]


def test_two_inputs():
    class Join(KeyedCoProcessFunction):
        def open(self, runtime_context):
            self.left = runtime_context.get_state(ValueStateDescriptor("left"))

        def process_element1(self, value, ctx):
            self.left.update(value)
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

        def process_element2(self, value, ctx):
            yield ctx.get_current_key(), self.left.value(), value

        def on_timer(self, timestamp, ctx):
            yield "forget", self.left.value()
            self.left.clear()

    by_first = operator.itemgetter(0)
    with harness_for(Join(), key_by=(by_first, str.lower)) as harness:
        harness.push1(("a", 1), 5)
        harness.process_element2("A")
        harness.push2("b")
        assert harness.get_output() == [("a", ("a", 1), "A"), ("b", None, "b")]
        assert harness.state_of("a") == {"left": ("a", 1)}
        snapshot = harness.snapshot()
    with harness_for(Join(), key_by=(by_first, str.lower), snapshot=snapshot) as harness:
        harness.push_watermark(15)
        harness.push2("a")
        assert harness.get_output() == [("forget", ("a", 1)), ("a", None, "a")]
        for push in (harness.push, harness.push_all):
            with pytest.raises(TypeError, match=r"has two inputs: use push1\(\)"):
                push(["a"])
        with pytest.raises(KeyTypeError):
            harness.push1(([], 1))
    for key_by in (None, "a", ("a",)):
        with pytest.raises(ProgramError, match=r"key_by=\(first_key, second_key\)"):
            harness_for(Join(), key_by=key_by)


def test_a_record_that_cannot_be_copied_is_named_with_its_source_and_the_remedies():
    lock = threading.Lock()
    advice = r"pillarbox\.immutable\(lock\).*env\.enable_object_reuse\(\)"
    refused = pytest.raises(ProgramError, match=rf"'payments' emitted \(1, <unlocked .*cannot be copied.*{advice}")

    def build(env, payments, limits):
        return payments.union(limits).map(len)

    with ProgramTestHarness(build) as harness, refused:
        harness.push("payments", (1, lock))
    with refused:
        simulate(build, {"payments": [(1, lock)], "limits": []}, seeds=1)


def test_records_that_cannot_be_copied_are_accepted_with_object_reuse():
    def build(env, payments):
        env.enable_object_reuse()
        return payments.map(lambda payment: type(payment).__name__)

    with ProgramTestHarness(build) as harness:
        harness.push("payments", threading.Lock())
        harness.fail_epoch()
        assert harness.run_epoch() == {"output": ["lock"]}
