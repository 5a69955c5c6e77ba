"""Passes a task's error from a worker through Spark to the user.

Spark passes on only an exception's text, so it contains everything needed to rebuild the exception.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pillarbox._errors import OperatorError, PillarboxError, describe, encodable
from pillarbox._reports.failure import FailedAttempt, Failure, without_line
from pillarbox._runtime.failures import located
from pillarbox._tracebacks import user_traceback


@contextmanager
def failures_in_worker(
    task: str, subtask: int, attempt: FailedAttempt | None = None, clock: Callable[[], str | None] = lambda: None
) -> Iterator[None]:
    """Convert a task's errors in the block to errors with a complete message.

    Args:
        attempt: Spark's attempt to run the task. If set, the message ends with data about the failure.
        clock: returns the task's clock readings in this epoch, or None if unknown.
    """
    try:
        yield
    except GeneratorExit:
        raise
    except BaseException as error:
        outcome = located(error, task, subtask)
        line = None if attempt is None else Failure.of(outcome, subtask, attempt, clock()).to_line()
        raise _self_contained(outcome, task, subtask, line) from None


def remote_error(kind: str, text: str) -> PillarboxError:
    _hide_traceback()
    return _kinds().get(kind, OperatorError)(text)


def _hide_traceback() -> None:
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _self_contained(error: BaseException, task: str, subtask: int, line: str | None = None) -> PillarboxError:
    _hide_traceback()
    message = str(error)
    kind = _kinds().get(type(error).__name__, OperatorError)
    if not isinstance(error, PillarboxError):
        interrupted = OperatorError(message or f"the task of {task!r} was interrupted by {type(error).__name__}")
        interrupted.at(subtask=subtask)
        message = str(interrupted)
    parts = [message, user_traceback(error), *getattr(error, "__notes__", ()), line]
    return kind(encodable("\n".join(filter(None, parts))))


def message_for_user(error: Exception) -> str:
    return str(error) if isinstance(error, PillarboxError) else describe(error)


@contextmanager
def unwrapped_failures() -> Iterator[None]:
    """Replace Spark's errors in the block with the task errors that caused them."""
    try:
        yield
    except PillarboxError:
        raise
    except Exception as error:
        match = _MESSAGE.search(str(error))
        kind = None if match is None else _kinds().get(match[1])
        if match is None or kind is None:
            raise
        raise kind(without_line(match[2]).rstrip()) from None


def end_with_message(error: Exception, message: str | None = None) -> None:
    """Move a task's error message to the end of the query's failure text.

    Args:
        message: the text for an error that is not from a pillarbox task.
    """
    for field in ("_desc", "_message"):
        text = getattr(error, field, None)
        if isinstance(text, str):
            setattr(error, field, _with_message_last(text, message))


def _with_message_last(text: str, otherwise: str | None) -> str:
    match = _MESSAGE.search(text)
    if match is None or match[1] not in _kinds():
        return text if otherwise is None else f"{text.partition(_PLAN)[0].rstrip()}\n{otherwise}"
    message, *details = without_line(match[2]).rstrip().splitlines()
    if details and _PLACE.fullmatch(details[0]):
        message += f" {details.pop(0).strip()}"
    last = f"pillarbox.{match[1]}: {message}"
    if not details:
        return f"{text[: match.start()].rstrip()}\n{last}"
    # A terminal shows the last line, so the message is repeated after the user's frames.
    return "\n".join([text[: match.start(2)] + message, *details, last])


_PLAN = "\n=== Streaming Query ==="
_PLACE = re.compile(r"  \(.*\)")

# An exception as Python prints it, up to Spark's text. A user's message may also contain an error code.
_MESSAGE = re.compile(
    r"\bpillarbox(?:\.\w+)*\.(\w+): (.*?)(?:\s+SQLSTATE: \w{5})?\s*(?:\n\tat |\n\nJVM stacktrace:|\n=== |\Z)",
    re.DOTALL,
)


def _kinds() -> dict[str, type[PillarboxError]]:
    kinds: dict[str, type[PillarboxError]] = {}
    pending: list[type[PillarboxError]] = [PillarboxError]
    while pending:
        kind = pending.pop()
        if kind.__module__.split(".")[0] == "pillarbox":
            kinds[kind.__name__] = kind
        pending += kind.__subclasses__()
    return kinds
