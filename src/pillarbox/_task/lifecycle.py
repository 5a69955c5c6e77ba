"""The states of a task, their transitions, and the task's work lock.

| state     | restore   | sync      | restored | begin   | pause  | resume  | end      | fail   | cancel   | close    |
| --------- | --------- | --------- | -------- | ------- | ------ | ------- | -------- | ------ | -------- | -------- |
| CREATED   | RESTORING | -         | -        | -       | -      | -       | -        | FAILED | CANCELED | FINISHED |
| RESTORING | -         | -         | RESTORED | -       | -      | -       | -        | FAILED | CANCELED | -        |
| RESTORED  | -         | RESTORING | -        | RUNNING | -      | -       | -        | FAILED | CANCELED | FINISHED |
| RUNNING   | -         | -         | -        | -       | PAUSED | -       | RESTORED | FAILED | CANCELED | -        |
| PAUSED    | -         | -         | -        | -       | -      | RUNNING | -        | FAILED | CANCELED | CANCELED |

FAILED, CANCELED and FINISHED are terminal: in them, cancel and close have no effect, and other events raise an error.

In RESTORING and RUNNING, one thread holds the work lock and runs the operators. Another thread that fails or cancels
the task only records this; the thread with the lock ends the task before the task enters RESTORED. In all other states,
the thread that fails or cancels the task ends it. Follows Flink's ``ExecutionState`` and ``Task``.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from enum import Enum, auto

from pillarbox._errors import TaskCanceledError, TaskStateError

_log = logging.getLogger("pillarbox")


class TaskState(Enum):
    """The state of a task."""

    CREATED = "created"
    #: The operators are being opened, or the state is being read.
    RESTORING = "restoring"
    #: Between two epochs.
    RESTORED = "restored"
    RUNNING = "running"
    #: The caller is taking an epoch's output.
    PAUSED = "paused"
    FAILED = "failed"
    CANCELED = "canceled"
    FINISHED = "finished"

    @property
    def is_at_work(self) -> bool:
        return self in _AT_WORK

    @property
    def is_terminal(self) -> bool:
        return self in _DEAD


class TaskEvent(Enum):
    """An event that changes a task's state. The value completes the error message "task ... cannot ..."."""

    RESTORE = "be restored"
    #: A task reads its store's version before each epoch except the first.
    SYNC = "be compared with its store"
    RESTORED = "end its restoring"
    BEGIN_EPOCH = "begin an epoch"
    PAUSE = "hand over its output"
    RESUME = "resume its epoch"
    END_EPOCH = "end its epoch"
    FAIL = "fail"
    CANCEL = "be cancelled"
    CLOSE = "be closed"


_DEAD = frozenset({TaskState.FAILED, TaskState.CANCELED, TaskState.FINISHED})
_AT_WORK = frozenset({TaskState.RESTORING, TaskState.RUNNING})
_FATAL = {TaskEvent.FAIL: TaskState.FAILED, TaskEvent.CANCEL: TaskState.CANCELED}

TRANSITIONS: dict[TaskState, dict[TaskEvent, TaskState]] = {
    TaskState.CREATED: {
        TaskEvent.RESTORE: TaskState.RESTORING,
        TaskEvent.CLOSE: TaskState.FINISHED,
        **_FATAL,
    },
    TaskState.RESTORING: {
        TaskEvent.RESTORED: TaskState.RESTORED,
        **_FATAL,
    },
    TaskState.RESTORED: {
        TaskEvent.SYNC: TaskState.RESTORING,
        TaskEvent.BEGIN_EPOCH: TaskState.RUNNING,
        TaskEvent.CLOSE: TaskState.FINISHED,
        **_FATAL,
    },
    TaskState.RUNNING: {
        TaskEvent.PAUSE: TaskState.PAUSED,
        TaskEvent.END_EPOCH: TaskState.RESTORED,
        **_FATAL,
    },
    TaskState.PAUSED: {
        TaskEvent.RESUME: TaskState.RUNNING,
        TaskEvent.CLOSE: TaskState.CANCELED,
        **_FATAL,
    },
    TaskState.FAILED: {},
    TaskState.CANCELED: {},
    TaskState.FINISHED: {},
}


class TaskLife:
    """A task's state, work lock and reported errors.

    Thread-safe, even in a signal handler. One thread at a time holds the work lock, from :meth:`begin` to
    :meth:`give_back`, or forever if the task ends. Only this thread may run operators and change the state.
    """

    def __init__(self, task: str) -> None:
        self._task = task
        self.state: TaskState = TaskState.CREATED
        self._right = threading.Lock()
        # The first error is the cause.
        self._reported: deque[BaseException] = deque()

    @property
    def cause(self) -> BaseException | None:
        return self._reported[0] if self._reported else None

    def report(self, error: BaseException) -> None:
        """Record an error that ends the task. If the task has already ended, log the error instead."""
        if any(error is earlier for earlier in list(self._reported)):
            return
        if not self.state.is_terminal:
            self._reported.append(error)
            if self.state.is_terminal:  # it ended after the first check
                self.tell_others()
        elif not isinstance(error, (TaskCanceledError, GeneratorExit)):
            suppress(None, error, f"task {self._task!r} was {self.state.value} when this error occurred")

    def tell_others(self) -> None:
        causes = 0 if self.state is TaskState.FINISHED else 1
        while len(self._reported) > causes:
            try:
                later = self._reported.pop()
            except IndexError:
                return
            if not isinstance(later, (TaskCanceledError, GeneratorExit)):
                suppress(self.cause, later, f"also reported to task {self._task!r}")

    def try_begin(self) -> bool:
        """Take the work lock, in any state. Returns False if another thread holds it or the task has ended."""
        return self._right.acquire(blocking=False)

    def give_back(self) -> None:
        self._right.release()

    def begin(self, event: TaskEvent) -> None:
        """Take the work lock, and enter the next state, or raise :class:`TaskStateError`.

        Resuming a task that has ended raises its first error.
        """
        if not self.try_begin():
            if event is TaskEvent.RESUME and self.cause is not None:
                raise self.cause
            raise self.illegal(event)
        try:
            self.enter(event)
        except BaseException:
            self._right.release()
            raise

    def enter(self, event: TaskEvent) -> None:
        following = TRANSITIONS[self.state].get(event)
        if following is None:
            raise self.illegal(event)
        self.state = following

    def check(self) -> None:
        if self._reported:
            raise self._reported[0]

    def illegal(self, event: TaskEvent) -> TaskStateError:
        because = f" because of {self.cause!r}" if self.state is TaskState.FAILED and self.cause is not None else ""
        return TaskStateError(f"task {self._task!r} cannot {event.value}: it is {self.state.value}{because}")


def suppress(cause: BaseException | None, error: BaseException, how: str) -> None:
    """Add ``error`` to ``cause`` as a note. Without a cause, log it."""
    add_note = getattr(cause, "add_note", None)  # since Python 3.11
    if callable(add_note):
        add_note(f"{how}: {error!r}")
    else:
        _log.error("%s", how, exc_info=error)


class EpochPhase(Enum):
    """The progress of an epoch."""

    #: More input may arrive.
    READING = auto()
    #: The operators are finished, but the barrier has not been sent.
    DATA_ENDED = auto()
    #: The checkpoint has been taken.
    DONE = auto()
