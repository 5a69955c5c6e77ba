"""A task's life cycle: every event in every state, and every cause of its end."""

from __future__ import annotations

import gc
import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pillarbox._elements.records import Records
from pillarbox._errors import TaskCanceledError, TaskStateError
from pillarbox._operators.functions.basic import MapFunction
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task import lifecycle
from pillarbox._task.lifecycle import TaskEvent, TaskLife, TaskState
from pillarbox._task.operator_chain import as_mail
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.operator_clock import ProcessingTimeServiceImpl
from pillarbox.mailbox import MailboxProcessor, MailboxState, RejectedExecutionError
from tests.support.nodes import node
from tests.task.tasks import (
    Notes,
    Noting,
    kinds,
    report_of,
    run_shuffled,
    run_source,
    share,
    shuffled_task,
    source_task,
    vertex_of,
)

DEAD = [TaskState.FAILED, TaskState.CANCELED, TaskState.FINISHED]


def elsewhere(function, *args):
    with ThreadPoolExecutor(1) as other:
        return other.submit(function, *args).result(30)


def closings(notes):
    return len(kinds(notes, "close"))


# -- the table --


def table_in_words():
    lines = [line for line in (lifecycle.__doc__ or "").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    columns = {"begin": "BEGIN_EPOCH", "end": "END_EPOCH"}
    events = [TaskEvent[columns.get(name, name.upper())] for name in rows[0][1:]]
    table = {TaskState[row[0]]: dict(zip(events, row[1:])) for row in rows[2:]}
    return table | {state: dict.fromkeys(events, "-") for state in DEAD}


TABLE = table_in_words()


@pytest.mark.parametrize("event", TaskEvent)
@pytest.mark.parametrize("state", TaskState)
def test_every_event_in_every_state(state, event):
    life = TaskLife("sums")
    life.state = state
    expected = TABLE[state][event]
    if expected != "-":
        life.enter(event)
        assert life.state is TaskState[expected]
    else:
        with pytest.raises(TaskStateError, match=f"^task 'sums' cannot {event.value}: it is {state.value}$"):
            life.enter(event)
        assert life.state is state


class Live:
    """A task in a given state of its life cycle. An operator, a host or another thread can change the state."""

    def __init__(self, state, do, far):
        self.notes: Notes = []
        self.error: BaseException | None = None
        self.do = do
        self.far = far
        self.state = state
        self.task = source_task(
            node(Noting, "a", self.notes, open=self.act_if(TaskState.RESTORING), record=self.act_if(TaskState.RUNNING))
        )
        self.outcome: BaseException | None = None

    def act_if(self, state):
        return (lambda *_: self.act()) if state is self.state else None

    def act(self):
        assert self.task.state is self.state
        try:
            if self.far:
                elsewhere(self.do, self.task)
            else:
                self.do(self.task)
        except BaseException as error:
            self.error = error

    def run(self):
        task, state = self.task, self.state
        try:
            if state is TaskState.CREATED:
                self.act()
                return
            task.restore()
            if state is TaskState.RESTORED:
                self.act()
            elif state is TaskState.RUNNING:
                run_source(task, [1], [2])
            elif state is TaskState.PAUSED:
                epoch = task.run_epoch([], subtask=0, checkpoint_id=1, bounded=False)
                next(epoch)
                self.act()
                list(epoch)
            elif state is TaskState.FAILED:
                task.handle_async_exception(ValueError("first cause"))
                with pytest.raises(ValueError):
                    run_source(task)
                self.act()
            elif state is TaskState.CANCELED:
                task.cancel()
                self.act()
            elif state is TaskState.FINISHED:
                task.close()
                self.act()
        except BaseException as error:
            self.outcome = error


OPERATIONS = {
    "restore": lambda task: task.restore(),
    "run": lambda task: run_source(task, [3]),
    "cancel": lambda task: task.cancel(),
    "close": lambda task: task.close(),
}
# The result of each operation: a state, or "-" for an error without a change.
OUTCOMES = {
    TaskState.CREATED: {"restore": "RESTORED", "run": "-", "cancel": "CANCELED", "close": "FINISHED"},
    TaskState.RESTORING: {"restore": "-", "run": "-", "cancel": "CANCELED", "close": "-"},
    TaskState.RESTORED: {"restore": "-", "run": "RESTORED", "cancel": "CANCELED", "close": "FINISHED"},
    TaskState.RUNNING: {"restore": "-", "run": "-", "cancel": "CANCELED", "close": "-"},
    TaskState.PAUSED: {"restore": "-", "run": "-", "cancel": "CANCELED", "close": "CANCELED"},
    TaskState.FAILED: {"restore": "-", "run": "-", "cancel": "FAILED", "close": "FAILED"},
    TaskState.CANCELED: {"restore": "-", "run": "-", "cancel": "CANCELED", "close": "CANCELED"},
    TaskState.FINISHED: {"restore": "-", "run": "-", "cancel": "FINISHED", "close": "FINISHED"},
}


@pytest.mark.parametrize("far", [False, True], ids=["here", "another thread"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("state", TaskState)
def test_every_operation_on_a_task_in_every_state(state, operation, far):
    live = Live(state, OPERATIONS[operation], far)
    live.run()
    task, expected = live.task, OUTCOMES[state][operation]
    if expected == "-":
        assert isinstance(live.error, TaskStateError), live.error
        assert "task 'vertex' cannot be " in str(live.error) or "cannot begin an epoch" in str(live.error)
        if state is TaskState.FAILED:
            assert str(live.error).endswith("it is failed because of ValueError('first cause')")
            assert repr(task.failure) == "ValueError('first cause')"
        assert live.outcome is None
        after = TaskState.RESTORED if state in (TaskState.RESTORING, TaskState.RUNNING, TaskState.PAUSED) else state
        assert task.state is after
    else:
        assert live.error is None
        assert task.state is TaskState[expected]
        if state in (TaskState.RESTORING, TaskState.RUNNING, TaskState.PAUSED):
            assert isinstance(live.outcome, TaskCanceledError)
    if task.state.is_terminal:
        assert task.processor.mailbox.state is MailboxState.CLOSED
        assert closings(live.notes) == len(kinds(live.notes, "open"))
    assert len(kinds(live.notes, "open")) <= 1
    if state is TaskState.RUNNING and expected == "CANCELED":
        # The run at hand was worked off; the next one met no closed operator.
        assert kinds(live.notes, "record", "close") == [("record", "a", 1), ("close", "a")]
    task.cancel()


# -- errors and cancellation during and after a checkpoint --


@pytest.mark.parametrize("what", ["error", "report", "cancel"])
@pytest.mark.parametrize("where", ["prepare", "snapshot"])
def test_a_thread_that_ends_the_task_during_its_checkpoint(what, where):
    notes: Notes = []

    def act(operator, checkpoint_id):
        error = OSError("timer thread")
        if what == "error":
            elsewhere(task.handle_async_exception, error)
        elif what == "report":
            elsewhere(task.processor.report_throwable, error)
        else:
            elsewhere(task.cancel)

    task = source_task(node(Noting, "a", notes, **{where: act}))
    task.restore()
    with pytest.raises(TaskCanceledError if what == "cancel" else OSError):
        run_source(task, [1])
    assert task.state is (TaskState.CANCELED if what == "cancel" else TaskState.FAILED)
    assert (task.failure is None) == (what == "cancel")
    assert closings(notes) == 1


@pytest.mark.parametrize("what", ["error", "cancel"])
def test_ending_a_task_whose_loop_was_just_left(what):
    notes: Notes = []

    class Reporting(SourceStreamTask):
        def _report(self):
            elsewhere(*((self.cancel,) if what == "cancel" else (self.handle_async_exception, OSError("late"))))
            return super()._report()

    task = Reporting(vertex_of(node(Noting, "a", notes)), 0)
    task.restore()
    with pytest.raises(TaskCanceledError if what == "cancel" else OSError):
        run_source(task, [1])
    assert task.state.is_terminal and closings(notes) == 1


def test_a_cancel_between_the_last_look_and_the_end_of_the_epoch():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    give_back = task.life.give_back

    def cancelled_just_before():
        if task.state is TaskState.RESTORED:
            elsewhere(task.cancel)
            assert not task.state.is_terminal
        give_back()

    task.life.give_back = cancelled_just_before
    with pytest.raises(TaskCanceledError):
        run_source(task, [1])
    assert task.state is TaskState.CANCELED and closings(notes) == 1


class Closes(MapFunction):
    def map(self, value):
        return value

    def close(self):
        raise ConnectionError("the line is dead")


@pytest.mark.parametrize("state", ["between epochs", "within an epoch"])
def test_an_error_in_close_of_a_cancelled_task_is_logged(caplog, state):
    task = source_task(node(MapOperator, "op", Closes()))
    task.restore()
    if state == "within an epoch":
        epoch = task.run_epoch([Records([1])], subtask=0, checkpoint_id=1, bounded=False)
        next(epoch)
    with caplog.at_level(logging.WARNING, "pillarbox"):
        task.cancel()
        if state == "within an epoch":
            epoch.close()
    assert task.state is TaskState.CANCELED
    (warning,) = [record for record in caplog.records if record.name == "pillarbox"]
    assert warning.levelname == "WARNING"
    assert "operator 'op' failed in close(): ConnectionError: the line is dead" in warning.getMessage()
    epoch_number = int(state == "within an epoch")
    location = f"(operator 'op', subtask 0, epoch {epoch_number})"
    assert warning.getMessage().startswith(f"the task was cancelled {location}, but closing its functions failed: ")


def test_the_first_cause_is_kept_and_the_others_are_told():
    class Mute(ValueError):
        add_note = None  # as in Python 3.10

    def act(operator, value):
        task.handle_async_exception(Mute("first"))
        task.handle_async_exception(OSError("second"))
        raise RuntimeError("third")

    task = source_task(node(Noting, "a", [], record=act, close=KeyError("fourth")))
    task.restore()
    records: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(repr(record.exc_info and record.exc_info[1]))  # type: ignore[method-assign]
    logging.getLogger("pillarbox").addHandler(handler)
    try:
        with pytest.raises(Mute, match="first"):
            run_source(task, [1])
        assert str(task.failure) == "first"
        task.handle_async_exception(OSError("fifth"))
    finally:
        logging.getLogger("pillarbox").removeHandler(handler)
    assert sorted(records) == sorted(
        ["KeyError('fourth')", "OSError('second')", "RuntimeError('third')", "OSError('fifth')"]
    )
    assert str(task.failure) == "first"


def test_no_error_of_closing_is_lost(caplog):
    task = source_task(*(node(Noting, name, [], close=ValueError(name)) for name in "abc"))
    task.restore()
    with pytest.raises(ValueError, match="a") as raised:
        task.close()
    messages = " ".join([*getattr(raised.value, "__notes__", ()), caplog.text])
    # As a note, or in the log, where Python 3.10 has no notes.
    assert all(f"ValueError('{name}')" in messages or f"ValueError: {name}" in messages for name in "bc")
    task = source_task(node(Noting, "a", [], close=ValueError("not told to whoever cancels")))
    task.restore()
    task.cancel()
    assert "not told to whoever cancels" in caplog.text + " ".join(getattr(task.life.cause, "__notes__", ()))


def test_an_error_between_epochs_ends_the_next_one():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    elsewhere(task.handle_async_exception, OSError("timer thread"))
    assert task.state is TaskState.RESTORED and closings(notes) == 0  # its operators are idle
    with pytest.raises(OSError):
        run_source(task, [1])
    assert repr(task.failure) == "OSError('timer thread')" and kinds(notes, "record", "close") == [("close", "a")]

    task = source_task(node(Noting, "a", notes))
    task.restore()
    task.handle_async_exception(OSError("timer thread"))
    with pytest.raises(OSError):
        task.close()
    assert task.state is TaskState.FAILED


# -- ended by another thread --


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_ended_by_another_thread_between_epochs(end):
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    executor = task.processor.get_main_mailbox_executor()
    future = executor.submit(lambda: None, "never")
    elsewhere(getattr(task, end))
    assert future.cancelled()
    assert task.processor.mailbox.state is MailboxState.CLOSED
    with pytest.raises(RejectedExecutionError):
        executor.execute(lambda: None, "too late")
    assert closings(notes) == 1


# -- restoring --


def test_an_error_in_restore_state_fails_the_task():
    notes: Notes = []
    task = shuffled_task(node(Noting, "a", notes, restore=ValueError("state")))
    with pytest.raises(ValueError, match="state"):
        task.restore(MemoryChunkStore())
    assert task.state is TaskState.FAILED and closings(notes) == 1
    with pytest.raises(TaskStateError):
        task.restore(MemoryChunkStore())
    assert len(kinds(notes, "open")) == 1


def test_completions_older_than_the_restored_epoch_are_passed_over():
    store = MemoryChunkStore()
    first = shuffled_task(node(Noting, "a", []))
    for value in range(3):
        run_shuffled(first, store, Records([value]))
    first.close()
    notes: Notes = []
    task = shuffled_task(node(Noting, "a", notes))
    assert task.restore(store)
    for checkpoint_id in (2, 3):
        task.notify_checkpoint_complete_async(checkpoint_id)
    list(task.run_epoch([share(Records([1]))], store))
    assert kinds(notes, "complete") == [("complete", "a", 3)]
    task.close()


# -- per epoch --


def test_the_mails_of_a_report_are_the_epochs():
    def post(operator, value):
        operator.context.mailbox_executor.execute(lambda: None, "mail")

    task = source_task(node(Noting, "a", [], record=post))
    task.restore()
    counts = [report_of(run_source(task, [1], [2]))["mails"] for _ in range(4)]
    assert len(set(counts)) == 1 and counts[0] >= 3
    task.close()


def test_epochs_that_overlap_leave_the_collector_as_it_was():
    before = gc.get_threshold()
    tasks = [source_task(node(Noting, "a", [])) for _ in range(2)]
    for task in tasks:
        task.restore()
    epochs = [task.run_epoch([], subtask=0, checkpoint_id=1, bounded=False) for task in tasks]
    for epoch in epochs:
        next(epoch)
    assert gc.get_threshold() != before
    list(epochs[0])
    assert gc.get_threshold() != before
    list(epochs[1])
    assert gc.get_threshold() == before
    for task in tasks:
        task.close()


def test_a_timer_that_meets_a_closed_mailbox_is_no_error():
    """Tasks share the clock, so an error in it would end all tasks."""
    clock = ManualProcessingTimeService()
    processor = MailboxProcessor(lambda controller: None)
    service = ProcessingTimeServiceImpl(clock, as_mail(processor.get_main_mailbox_executor()))
    timer = service.register_timer(10, lambda timestamp: None)
    processor.prepare_close()
    processor.close()
    clock.set_current_time(20)
    assert timer.cancelled() and service.quiesce().done()


def test_a_thread_waits_for_nobody_to_cancel():
    notes: Notes = []
    task = source_task(node(Noting, "a", notes))
    task.restore()
    epoch = task.run_epoch([Records([1])], subtask=0, checkpoint_id=1, bounded=False)
    next(epoch)
    thread = threading.Thread(target=task.cancel)
    thread.start()
    thread.join()
    assert task.state is TaskState.CANCELED and closings(notes) == 1
    with pytest.raises(TaskCanceledError):
        next(epoch)
