"""A subtask's life cycle and checkpoints."""

from __future__ import annotations

import gc
import threading

import pytest

from pillarbox._elements.elements import Barrier, EndOfData, Watermark
from pillarbox._elements.records import Records
from pillarbox._errors import TaskCanceledError
from pillarbox._task.lifecycle import TaskState
from pillarbox._task.network import record_writer
from pillarbox._task.network.task_input import EXHAUSTED, DataInputStatus, ThreadedInputReader
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox.mailbox import MailboxProcessor
from tests.support.nodes import node
from tests.task.tasks import (
    Notes,
    Noting,
    kinds,
    report_of,
    run_source,
    sent,
    source_task,
    threaded,
    vertex_of,
)

# -- life --


def test_p6_opened_from_the_tail_finished_from_the_head():
    notes: Notes = []
    task = source_task(*(node(Noting, name, notes) for name in "abc"))
    task.restore()
    assert notes == [("open", "c"), ("open", "b"), ("open", "a")]
    notes.clear()
    buffers = run_source(task, [1, 2], bounded=True)
    assert notes[:6] == [("record", name, value) for name in "abc" for value in (1, 2)]
    assert notes[6:9] == [("watermark", name, MAX_WATERMARK) for name in "abc"]
    assert kinds(notes, "finish") == [("finish", name) for name in "abc"]
    assert [note[0] for note in notes[9:]] == ["finish"] * 3 + ["prepare"] * 3 + ["snapshot"] * 3
    assert sent(buffers) == [1, 2]
    assert sent(buffers, 5) == [1, 2, Watermark(MAX_WATERMARK), EndOfData(), Barrier(1)]
    task.close()
    assert kinds(notes, "close") == [("close", name) for name in "abc"]


def test_p6_executors_have_the_chain_index_as_priority():
    task = source_task(*(node(Noting, name, []) for name in "abc"))
    assert [operator.context.mailbox_executor.priority for operator in task.chain.operators] == [0, 1, 2]
    task.close()


def test_functions_stay_open_between_epochs():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    for epoch in range(3):
        run_source(task, [epoch], epoch=epoch, subtask=epoch)
        assert task.state is TaskState.RESTORED
        assert task.chain.head.context.subtask == epoch
    task.close()
    assert task.state is TaskState.FINISHED
    assert [len(kinds(notes, what)) for what in ("open", "close", "record", "finish")] == [1, 1, 3, 0]


@pytest.mark.parametrize("where", ["record", "watermark", "finish", "prepare", "snapshot"])
def test_p1_a_failure_closes_the_operators_once_and_keeps_its_cause(where, caplog):
    notes: Notes = []
    cause = ValueError("first")
    tail = node(Noting, "b", notes, **{where: cause, "close": RuntimeError("second")})
    task = source_task(node(Noting, "a", notes), tail)
    task.restore()
    with pytest.raises(ValueError, match="first"):
        run_source(task, [1], bounded=True)
    assert task.state is TaskState.FAILED and task.failure is cause
    assert kinds(notes, "close") == [("close", "a"), ("close", "b")]
    notes_or_log = [*getattr(cause, "__notes__", ()), caplog.text]
    assert any("second" in text for text in notes_or_log)
    task.handle_async_exception(ValueError("late"))
    task.cancel()
    task.close()
    assert task.failure is cause and task.state is TaskState.FAILED
    assert len(kinds(notes, "close")) == 2


def test_p1_a_failure_in_open():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes), node(Noting, "b", notes, open=ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        task.restore()
    assert task.state is TaskState.FAILED
    assert len(kinds(notes, "close")) == 2


def test_p1_close_reports_what_went_wrong():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes, close=ValueError("a")), node(Noting, "b", notes, close=ValueError("b")))
    task.restore()
    with pytest.raises(ValueError, match="a"):
        task.close()
    assert kinds(notes, "close") == [("close", "a"), ("close", "b")]


def test_p1_cancel_between_epochs():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    run_source(task, [1])
    task.cancel()
    assert task.state is TaskState.CANCELED and task.failure is None
    assert kinds(notes, "finish", "close") == [("close", "a")]


def test_p1_cancel_from_another_thread():
    """P1: the operators are closed in the mailbox thread."""
    notes: Notes = []
    task = source_task(threaded(node(Noting, "a", notes)))
    task.chain.head.thread = threading.get_ident()
    task.restore()
    reached, give_up = threading.Event(), threading.Event()

    def endless():
        yield Records([1])
        reached.set()
        give_up.wait(30)

    def cancel():
        reached.wait(30)
        task.cancel()

    canceller = threading.Thread(target=cancel)
    canceller.start()
    with pytest.raises(TaskCanceledError, match="'vertex' was cancelled"):
        list(task.run_epoch(endless(), subtask=0, checkpoint_id=1, bounded=False))
    give_up.set()
    canceller.join()
    assert task.state is TaskState.CANCELED and task.failure is None
    assert kinds(notes, "close") == [("close", "a")]


def test_giving_up_the_output_fails_the_task(monkeypatch):
    monkeypatch.setattr(record_writer, "_QUEUE_BYTES", 10)
    monkeypatch.setattr(record_writer, "_BUFFER_RECORDS", 1)
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    epoch = task.run_epoch(map(Records, [[1], [2], [3]]), subtask=0, checkpoint_id=1, bounded=False)
    next(epoch)
    epoch.close()
    assert task.state is TaskState.FAILED
    assert kinds(notes, "close") == [("close", "a")]


def test_the_garbage_collector_is_as_before():
    before = gc.get_threshold()
    task = source_task(node(Noting, "a", [], record=ValueError()))
    task.restore()
    with pytest.raises(ValueError):
        run_source(task, [1])
    assert gc.get_threshold() == before


# -- the default action --


class Answering(SourceStreamTask):
    answers: list[DataInputStatus]

    def _emit_next(self):
        self.seen = [*getattr(self, "seen", []), threading.get_ident()]
        answer = self.answers.pop(0) if self.answers else DataInputStatus.END_OF_INPUT
        # The end of input arrives with the epoch's checkpoint.
        return self._end_epoch() if answer is DataInputStatus.END_OF_INPUT else answer


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (DataInputStatus.MORE_AVAILABLE, []),
        (DataInputStatus.END_OF_DATA, [("watermark", "a", MAX_WATERMARK), ("finish", "a")]),
        (DataInputStatus.END_OF_INPUT, []),
    ],
)
def test_p2_the_input_status(answer, expected):
    notes: Notes = []
    task = Answering(vertex_of(node(Noting, "a", notes)), 0)
    task.restore()
    task.answers = [answer]
    buffers = run_source(task)
    assert kinds(notes, "watermark", "finish") == expected
    assert (EndOfData() in sent(buffers, 5)) == (answer is DataInputStatus.END_OF_DATA)
    assert len(kinds(notes, "snapshot")) == 1
    task.close()


def test_p3_a_full_writer_stops_the_input(monkeypatch):
    monkeypatch.setattr(record_writer, "_QUEUE_BYTES", 500)
    monkeypatch.setattr(record_writer, "_BUFFER_RECORDS", 1)
    read = []

    def runs():
        for n in range(10):
            read.append(n)
            yield Records([f"{n}" + "x" * 600])

    task = source_task(node(Noting, "a", []))
    task.restore()
    got, parts = [], 0
    for part in task.run_epoch(runs(), subtask=0, checkpoint_id=1, bounded=False):
        parts += 1
        got += part
        assert len(read) <= parts  # never a run ahead of the consumer
    assert [value[0] for value in sent(got)] == [f"{n}" for n in range(10)]
    assert parts > 10
    assert task.writer.take() == []
    task.close()


def test_mails_run_between_runs():
    """M10: a steady input does not starve mails."""
    notes: Notes = []

    def post(operator, value):
        operator.context.mailbox_executor.execute(lambda: notes.append(("mail", value)), "mail")

    task = source_task(node(Noting, "a", notes, record=post))
    task.restore()
    run_source(task, [1], [2], [3])
    assert kinds(notes, "record", "mail") == [x for n in (1, 2, 3) for x in (("record", "a", n), ("mail", n))]
    task.close()


# -- a thread that reads --


def test_p4_the_reader_is_another_thread():
    threads = set()

    def runs():
        for n in range(100):
            threads.add(threading.get_ident())
            yield Records([n])

    task = source_task(threaded(node(Noting, "a", [])))
    task.chain.head.thread = threading.get_ident()
    task.restore()
    for epoch in range(2):
        got = [b for part in task.run_epoch(runs(), subtask=0, checkpoint_id=epoch, bounded=False) for b in part]
        assert sent(got) == list(range(100))
    assert threading.get_ident() not in threads
    task.close()


def test_p4_an_error_in_the_reader_fails_the_task():
    notes: Notes = []

    def runs():
        yield Records([1])
        raise OSError("disk")

    task = source_task(threaded(node(Noting, "a", notes)))
    task.restore()
    with pytest.raises(OSError, match="disk"):
        list(task.run_epoch(runs(), subtask=0, checkpoint_id=1, bounded=False))
    assert task.state is TaskState.FAILED and isinstance(task.failure, OSError)
    assert kinds(notes, "close") == [("close", "a")]


def test_p4_mails_run_while_the_reader_waits():
    """P4: if the mail ran inline, the reader would wait forever."""
    ran = threading.Event()
    task = source_task(threaded(node(Noting, "a", [])))
    task.restore()

    def runs():
        task.processor.get_main_mailbox_executor().execute(ran.set, "mail")
        assert ran.wait(30)
        yield Records([1])

    got = [b for part in task.run_epoch(runs(), subtask=0, checkpoint_id=1, bounded=False) for b in part]
    assert sent(got) == [1]
    assert "idle_ms" in report_of(got)
    task.close()


def test_p4_the_reader_is_bounded_and_can_be_closed():
    processor = MailboxProcessor(lambda controller: None)
    pulled = threading.Semaphore(0)
    count = []

    def items():
        for n in range(1000):
            count.append(n)
            pulled.release()
            yield n

    errors: list[BaseException] = []
    reader = ThreadedInputReader(items(), processor.get_main_mailbox_executor(), errors.append, bound=3)
    for _ in range(4):
        assert pulled.acquire(timeout=30)
    available = threading.Event()
    reader.when_available(available.set)
    assert available.is_set()
    assert [reader.poll(), reader.poll()] == [0, 1]
    for _ in range(2):
        assert pulled.acquire(timeout=30)
    assert len(count) == 6
    reader.close()
    reader._thread.join(30)
    assert not reader._thread.is_alive() and not errors
    while processor.get_main_mailbox_executor().try_yield():
        pass
    assert reader.started
    processor.close()


def test_p4_the_end_is_a_mail():
    processor = MailboxProcessor(lambda controller: None)
    reader: ThreadedInputReader[int] = ThreadedInputReader(
        [], processor.get_main_mailbox_executor(), lambda error: None
    )
    reader._thread.join(30)
    assert reader.poll() is None
    available = threading.Event()
    reader.when_available(available.set)
    assert not available.is_set()
    while processor.get_main_mailbox_executor().try_yield():
        pass
    assert available.is_set()
    assert reader.poll() is EXHAUSTED
    processor.close()


# -- checkpoints --


def test_c4_order_of_a_snapshot():
    """C4: output of prepare_snapshot_pre_barrier precedes the barrier, and nothing follows it."""
    notes: Notes = []

    def emit(operator, checkpoint):
        operator.output.process_records(Records([f"{operator.name} is ready"]))

    task = source_task(node(Noting, "a", notes, prepare=emit), node(Noting, "b", notes, prepare=emit))
    task.restore()
    buffers = run_source(task, [1])
    assert [note[:2] for note in notes if note[0] != "record"][2:] == [
        ("prepare", "a"),
        ("prepare", "b"),
        ("snapshot", "a"),
        ("snapshot", "b"),
    ]
    values = sent(buffers, 5)
    assert values[:3] == [1, "a is ready", "b is ready"]
    assert isinstance(values[-1], Barrier)
    task.close()


def test_c1_a_checkpoint_that_fails_fails_the_task():
    error = ValueError("disk full")
    task = source_task(node(Noting, "a", [], snapshot=error))
    task.restore()
    with pytest.raises(ValueError, match="disk full"):
        run_source(task, ["now"])
    assert task.failure is error


def test_c1_an_epoch_has_one_checkpoint_with_its_number():
    task = source_task(node(Noting, "a", []))
    task.restore()
    for epoch in (7, 8):
        buffers = run_source(task, ["now"], ["then"], epoch=epoch)
        assert [element for element in sent(buffers, 5) if isinstance(element, Barrier)] == [Barrier(epoch)]
    task.close()


def test_c2_operators_hear_of_each_commit_once_and_in_order():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes), node(Noting, "b", notes))
    task.restore()
    for checkpoint in (1, 2, 2, 1):
        task.notify_checkpoint_complete_async(checkpoint)
    run_source(task, [1])
    task.close()
    # Mails of the highest priority precede the epoch's input.
    assert kinds(notes, "complete", "record") == [
        *(("complete", name, checkpoint) for checkpoint in (1, 2) for name in "ab"),
        ("record", "a", 1),
        ("record", "b", 1),
    ]


# -- how long mails wait --


def latencies(interval):
    clock = ManualProcessingTimeService(0)

    def take_long(operator, value):
        clock.advance(value)
        clock.advance(250)

    vertex = vertex_of(node(Noting, "a", [], record=take_long))
    vertex.latency_interval = interval
    task = SourceStreamTask(vertex, 0, clock=clock)
    task.restore()
    reports = []
    # The first real mail, the checkpoint at the end of an epoch, sets off the probes.
    for epoch, runs in enumerate([[[0]], [[1000], [0]], [[0]]]):
        reports.append(report_of(run_source(task, *runs, epoch=epoch))["mailbox_latency_ms"])
    task.close()
    return reports, clock.active_timer_timestamps()


def test_m15_a_task_measures_how_long_mails_wait():
    reports, _ = latencies(1000)
    assert reports == [None, 250, 250]


def test_m15_a_task_that_is_not_asked_measures_nothing():
    assert latencies(None) == ([None] * 3, [])


def test_operators_are_made_from_the_tail_to_the_head():
    notes: Notes = []

    class Made(Noting):
        def __init__(self, context):
            super().__init__(context, notes)
            self.note("made", [name for _, name, *_ in notes])

    task = source_task(*(node(Made, name) for name in "abc"))
    assert notes == [("made", "c", []), ("made", "b", ["c"]), ("made", "a", ["c", "b"])]
    task.restore()
    assert notes[3:] == [("open", "c"), ("open", "b"), ("open", "a")]
    task.close()
