"""A task after a shuffle: state and timers over several epochs, and resident tasks that take turns."""

from __future__ import annotations

import threading

import pytest

from pillarbox._elements.buffers import channel_code
from pillarbox._elements.elements import Barrier, EndOfData, Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._errors import (
    CheckpointMismatchError,
    ExchangeError,
    OperatorError,
    ProgramError,
)
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.functions.basic import KeyedProcessFunction
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ValueStateDescriptor
from pillarbox._task.lifecycle import TaskState
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from tests.support.nodes import node
from tests.task.tasks import (
    Notes,
    Noting,
    kinds,
    report_of,
    run_shuffled,
    sent,
    share,
    shuffled_task,
    threaded,
    vertex_of,
)


class Sum(KeyedProcessFunction):
    """Sums by parity. Numbers from 100 set an event-time timer, "p<ms>" sets a processing-time timer, "boom" raises."""

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        if value == "boom":
            raise RuntimeError("boom")
        if isinstance(value, str):
            ctx.timer_service().register_processing_time_timer(int(value[1:]))
            return
        if value >= 100:
            ctx.timer_service().register_event_time_timer(value)
            return
        self.sum.update((self.sum.value() or 0) + value)
        yield self.sum.value()

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.time_domain().name[0]}{timestamp}", self.sum.value()


def parity(value):
    return value % 2 if isinstance(value, int) else 0


def sum_task(*tail, **options):
    return shuffled_task(node(KeyedProcessOperator, "sum", Sum(), Keying(parity, "key_by")), *tail, **options)


def test_state_and_timers_live_from_epoch_to_epoch():
    store = MemoryChunkStore()
    task = sum_task()
    first = run_shuffled(task, store, Records([1, 2, 3, 100, 101]))
    assert sent(first) == [1, 2, 4]
    assert report_of(first) | {"records_in": 5, "keys": 2, "event_time_timers": 2, "epoch": 1} == report_of(first)
    second = run_shuffled(task, store, Records([2]), Watermark(100))
    assert sent(second) == [4, ("E100", 4)]
    assert [type(element) for element in sent(second, 5)[2:]] == [Watermark, Barrier]
    task.close()
    again = sum_task()
    third = run_shuffled(again, store, Records([1]), Watermark(200))
    assert sent(third) == [5, ("E101", 5)]
    assert report_of(third)["state_sync"] == "loaded"
    again.close()


def test_a_failing_epoch_leaves_no_trace():
    store = MemoryChunkStore()
    task = sum_task()
    run_shuffled(task, store, Records([1]))
    before = dict(store.chunks)
    assert task.restore(store)
    with pytest.raises(OperatorError, match=r"'sum' failed at the record 'boom': RuntimeError: boom"):
        list(task.run_epoch([share(Records([1, "boom"]))], store))
    assert store.chunks == before
    assert task.state is TaskState.FAILED
    again = sum_task()
    assert sent(run_shuffled(again, store, Records([1]))) == [2]
    again.close()


def test_a_task_that_missed_an_epoch_is_refused():
    store = MemoryChunkStore()
    first, second = sum_task(), sum_task()
    assert sent(run_shuffled(first, store, Records([1]))) == [1]
    assert sent(run_shuffled(second, store, Records([1]))) == [2]
    assert first.restore(store) is False
    again = sum_task()
    got = run_shuffled(again, store, Records([1]))
    assert sent(got) == [3] and report_of(got)["state_sync"] == "loaded"
    again.close()
    second.close()


def test_a_task_whose_epoch_was_not_committed_is_refused():
    store = MemoryChunkStore()
    task = sum_task()
    run_shuffled(task, store, Records([1]))
    run_shuffled(task, store.copy(), Records([1]))  # this attempt is not committed
    assert task.restore(store) is False
    task.cancel()
    again = sum_task()
    assert sent(run_shuffled(again, store, Records([1]))) == [2]
    again.close()


def test_operators_are_told_of_commits_and_get_their_own_state_back():
    notes: Notes = []
    store = MemoryChunkStore()

    def tail():
        return node(Noting, "tail", notes, snapshot=lambda operator, checkpoint: {"epoch": checkpoint})

    task = sum_task(tail())
    run_shuffled(task, store, Records([1]))
    assert kinds(notes, "open", "restore", "complete", "record", "snapshot") == [
        ("open", "tail"),
        ("restore", "tail", None),
        ("record", "tail", 1),
        ("snapshot", "tail", 1),
    ]
    notes.clear()
    run_shuffled(task, store, Records([1]))
    assert kinds(notes, "restore", "complete", "record", "snapshot") == [
        ("complete", "tail", 1),
        ("record", "tail", 2),
        ("snapshot", "tail", 2),
    ]
    notes.clear()
    task.close()
    again = sum_task(tail())
    run_shuffled(again, store)
    assert kinds(notes, "restore", "complete") == [("restore", "tail", {"epoch": 2}), ("complete", "tail", 2)]
    again.close()


@pytest.mark.parametrize("declared", [True, False])
def test_overdue_processing_time_timers_fire_after_the_records_of_an_epoch(declared):
    store, clock = MemoryChunkStore(), ManualProcessingTimeService(0)
    operator = node(KeyedProcessOperator, "sum", Sum(), Keying(parity, "key_by"))
    task = MultipleInputStreamTask(vertex_of(operator, shuffled=True, uses_processing_time=declared), 0, clock=clock)
    run_shuffled(task, store, Records(["p50", "p70", "p90"]))
    assert task.next_wake_up == 50
    assert clock.active_timer_timestamps() == []  # between epochs nothing may fire
    clock.set_current_time(70)
    assert sent(run_shuffled(task, store, Records([2]))) == [2, ("P50", 2), ("P70", 2)]
    assert task.next_wake_up == 90
    task.close()
    again = MultipleInputStreamTask(vertex_of(operator, shuffled=True), 0, clock=clock)
    clock.set_current_time(90)
    assert sent(run_shuffled(again, store)) == [("P90", 2)]
    assert again.next_wake_up is None
    again.close()


def test_overdue_timers_fire_before_the_input_is_idle():
    store, clock = MemoryChunkStore(), ManualProcessingTimeService(0)
    task = sum_task(clock=clock)
    run_shuffled(task, store, Records(["p50"]))
    clock.set_current_time(60)
    elements = Records([2]), Watermark(7), WatermarkStatus(True)
    got = sent(run_shuffled(task, store, *elements), target=5)
    assert got == [2, ("P50", 2), Watermark(7), WatermarkStatus(True), Barrier(2)]
    task.close()


def test_a_timer_fires_within_an_epoch():
    store, clock = MemoryChunkStore(), ManualProcessingTimeService(0)
    task = sum_task(clock=clock)
    assert task.restore(store)

    def batches():
        parts = share(Records(["p50"]), Records([2]))
        yield parts[:1]
        clock.set_current_time(50)
        yield parts[1:]

    got = [buffer for part in task.run_epoch(batches(), store) for buffer in part]
    assert sent(got) == [2, ("P50", 2)]  # a mail, so it runs after the current input
    task.close()


def test_the_clock_of_a_dead_task_is_quiet():
    store, clock = MemoryChunkStore(), ManualProcessingTimeService(0)
    task = sum_task(clock=clock)
    assert task.restore(store)
    batches = [share(Records(["p50"])), share(Records(["boom"]), channel=channel_code(0, 1))]
    with pytest.raises(OperatorError):
        list(task.run_epoch(batches, store))
    clock.set_current_time(100)


def test_the_end_of_all_channels_ends_event_time():
    notes: Notes = []
    task = sum_task(node(Noting, "tail", notes))
    got = run_shuffled(task, MemoryChunkStore(), Records([200]), end=(Watermark(MAX_WATERMARK), EndOfData()))
    assert sent(got) == [("E200", None)]
    assert kinds(notes, "finish") == [("finish", "tail")]
    assert EndOfData() in sent(got, 5)
    task.close()


def test_missing_input_fails_the_task():
    store = MemoryChunkStore()
    task = sum_task()
    assert task.restore(store)
    with pytest.raises(ExchangeError, match="task 'vertex', epoch 1: no barrier from channel 0"):
        list(task.run_epoch([share(Records([1]))[:-1]], store))
    assert task.state is TaskState.FAILED
    assert not store.chunks


def test_keyed_state_outside_of_a_keyed_stream():
    class Greedy(Noting):
        def open(self):
            from pillarbox._operators.functions.contexts import RuntimeContext

            RuntimeContext(self.context).get_state(ValueStateDescriptor("s"))

    task = sum_task(node(Greedy, "tail", []))
    with pytest.raises(ProgramError, match=r"'tail' uses the keyed state 's' on a stream without keys"):
        task.restore(MemoryChunkStore())
    assert task.state is TaskState.FAILED


def test_a_task_without_key_has_no_keyed_state():
    notes: Notes = []
    store = MemoryChunkStore()

    def make():
        return shuffled_task(node(Noting, "a", notes, snapshot=lambda operator, checkpoint: checkpoint))

    task = make()
    assert task.chain.head.context.keyed is None and not list(task.chain.timer_services())
    run_shuffled(task, store, Records([1]), Watermark(5))
    task.close()
    again = make()
    got = run_shuffled(again, store, Records([2]))
    assert kinds(notes, "restore") == [("restore", "a", None), ("restore", "a", 1)]
    assert report_of(got)["watermark"] == 5 and report_of(got)["keys"] == 0
    again.close()


def test_an_epoch_can_be_run_by_another_thread():
    store = MemoryChunkStore()
    task = sum_task()
    results = []

    def epoch():
        results.append(sent(run_shuffled(task, store, Records([1]))))

    for _ in range(3):
        thread = threading.Thread(target=epoch)
        thread.start()
        thread.join()
    assert results == [[1], [2], [3]]
    epoch()
    assert results[-1] == [4]
    task.close()


@pytest.mark.parametrize("is_threaded", [False, True])
def test_keyed_task_with_an_input_thread(is_threaded):
    store = MemoryChunkStore()
    sums = node(KeyedProcessOperator, "sum", Sum(), Keying(parity, "key_by"))
    task = shuffled_task(threaded(sums) if is_threaded else sums)
    for _ in range(2):
        assert task.restore(store)
        buffers = share(*[Records([2])] * 20)
        got = [b for part in task.run_epoch(([buffer] for buffer in buffers), store) for b in part]
    assert sent(got) == [2 * n for n in range(21, 41)]
    task.close()


def test_a_store_of_something_else_fails_the_task():
    notes: Notes = []
    store = MemoryChunkStore()
    store.put(0, b"not pillarbox's")
    task = sum_task(node(Noting, "tail", notes))
    with pytest.raises(CheckpointMismatchError):
        task.restore(store)
    assert task.state is TaskState.FAILED and isinstance(task.failure, CheckpointMismatchError)
    assert kinds(notes, "close") == [("close", "tail")]


def test_event_time_is_known_from_the_first_record_after_a_restart():
    class Clock(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timer_service().current_watermark()

    def clock_task():
        return shuffled_task(node(KeyedProcessOperator, "clock", Clock(), Keying(parity, "key_by")))

    store = MemoryChunkStore()
    first, second, third = clock_task(), clock_task(), clock_task()
    run_shuffled(first, store, Records([1]), Watermark(70))
    assert sent(run_shuffled(second, store, Records([1]), Watermark(80))) == [70]
    assert sent(run_shuffled(third, store, Records([1]))) == [80]
    for task in (first, second, third):
        task.close()
