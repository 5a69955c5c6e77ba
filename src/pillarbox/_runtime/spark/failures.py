"""How an error gets from a task in a worker, through Spark, to the user: as a message and the user's own frames.

Spark carries text: what its worker prints of an exception. So all that the user needs is in the message; of the
traceback, which is Spark's and pillarbox's, nothing is printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pillarbox._errors import OperatorError, PillarboxError, describe
from pillarbox._reports.failure import Attempt, Failure, without_line
from pillarbox._runtime.failures import located
from pillarbox._tracebacks import user_traceback


@contextmanager
def failures_in_worker(
    task: str, subtask: int, attempt: Attempt | None = None, clock: Callable[[], str | None] = lambda: None
) -> Iterator[None]:
    """Let only one error leave a task, with a message that says it all.

    Args:
        task: the operators' names.
        attempt: of a query to run the task: the message ends with the failure as data. None: no query runs it.
        clock: tells what the task's clock showed in the epoch, as far as that is known.
    """
    try:
        yield
    except GeneratorExit:
        raise  # Spark takes no more, as with a limit
    except BaseException as error:
        outcome = located(error, task, subtask)
        line = None if attempt is None else Failure.of(outcome, subtask, attempt, clock()).to_line()
        raise _told(outcome, task, subtask, line) from None


def told_elsewhere(kind: str, text: str) -> PillarboxError:
    """Return an error that left a task in another process, to be raised here."""
    _hide_traceback()
    return _kinds().get(kind, OperatorError)(text)


def _hide_traceback() -> None:
    """Let PySpark report nothing but an error's text: that is the last thing that a worker does."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _told(error: BaseException, task: str, subtask: int, line: str | None = None) -> PillarboxError:
    """Return an error as one that is complete without its traceback and its causes.

    Args:
        line: its last line; None: it has none of its own.
    """
    _hide_traceback()
    message = str(error)
    kind = _kinds().get(type(error).__name__, OperatorError)
    if not isinstance(error, PillarboxError):
        interrupted = OperatorError(message or f"the task of {task!r} was left by {type(error).__name__}")
        interrupted.at(subtask=subtask)
        message = str(interrupted)
    told = [message, user_traceback(error), *getattr(error, "__notes__", ()), line]
    return kind("\n".join(filter(None, told)))


def sentence_of(error: Exception) -> str:
    """Return an error as a message for people."""
    return str(error) if isinstance(error, PillarboxError) else describe(error)


@contextmanager
def unwrapped_failures() -> Iterator[None]:
    """Raise an error of a task as itself, and not as Spark's."""
    try:
        yield
    except PillarboxError:
        raise
    except Exception as error:
        found = _MESSAGE.search(str(error))
        kind = None if found is None else _kinds().get(found[1])
        if found is None or kind is None:
            raise
        raise kind(without_line(found[2]).rstrip()) from None


def end_with_message(error: Exception, message: str | None = None) -> None:
    """Let the text of a query's failure end with the message of the error that a task raised.

    Spark's plan of the query and the line of data after the message are dropped.

    Args:
        message: for an error that no task of pillarbox raised, or None.
    """
    for field in ("_desc", "_message"):  # of a classic session, and of Spark Connect
        text = getattr(error, field, None)
        if isinstance(text, str):
            setattr(error, field, _with_message_last(text, message))


def _with_message_last(text: str, otherwise: str | None) -> str:
    found = _MESSAGE.search(text)
    if found is None or found[1] not in _kinds():
        return text if otherwise is None else f"{text.partition(_PLAN)[0].rstrip()}\n{otherwise}"
    message, *details = without_line(found[2]).rstrip().splitlines()
    if details and _PLACE.fullmatch(details[0]):
        message += f" {details.pop(0).strip()}"
    last = f"pillarbox.{found[1]}: {message}"
    if not details:
        return f"{text[: found.start()].rstrip()}\n{last}"
    # After the user's frames once more: a terminal shows the last line.
    return "\n".join([text[: found.start(2)] + message, *details, last])


# Before Spark's description of a query that has failed.
_PLAN = "\n=== Streaming Query ==="
# Subtask, key and record, in a line of their own after the message.
_PLACE = re.compile(r"  \(.*\)")

# An exception as Python prints it, up to Spark's own text: its code of the error, and what may follow that. A user's
# message may have such a code, too, as errors of databases do.
_MESSAGE = re.compile(
    r"\bpillarbox(?:\.\w+)*\.(\w+): (.*?)(?:\s+SQLSTATE: \w{5})?\s*(?:\n\tat |\n\nJVM stacktrace:|\n=== |\Z)",
    re.DOTALL,
)


def _kinds() -> dict[str, type[PillarboxError]]:
    """Return pillarbox's own classes of errors by name."""
    kinds: dict[str, type[PillarboxError]] = {}
    pending: list[type[PillarboxError]] = [PillarboxError]
    while pending:
        kind = pending.pop()
        if kind.__module__.split(".")[0] == "pillarbox":
            kinds[kind.__name__] = kind
        pending += kind.__subclasses__()
    return kinds
