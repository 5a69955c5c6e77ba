"""A failure of a task as data: one line of JSON after the message of the error, which Spark carries as text."""

from __future__ import annotations

import ast
import json
import re
import socket
from dataclasses import dataclass, replace
from typing import NamedTuple

from pillarbox._errors import PillarboxError
from pillarbox._json import json_of, read

_PREFIX = "failure: "
_LINE = re.compile(rf"^{_PREFIX}(?=\{{)", re.MULTILINE)


class Attempt(NamedTuple):
    """An attempt of Spark's to run a task. None: nobody knows.

    Attributes:
        vertex: the number of the task's vertex.
        epoch: of which epoch it is.
        number: which attempt it is, from 0.
    """

    vertex: int | None
    epoch: int | None
    number: int | None


@dataclass(frozen=True)
class Failure:
    """What is known of a task's failure. Keys and records are text, cut short.

    Attributes:
        error: the class of the error that left the task.
        cause: the class of the exception that user code raised; None: it was pillarbox itself.
        operator: the name of the operator, and ``uid``: its uid, which several vertices may have.
        vertex: the number of the task's vertex in its program.
        subtask: which parallel instance it was; of a source, the partition.
        key: the current key; None: there is none.
        record: the record that was being processed; None: there was none, as in a timer.
        number: which record of the task's input in the epoch it was, from 1, where the head of the chain failed.
        epoch: the number of the epoch.
        attempt: which attempt of Spark's task it was, from 0.
        host: the machine.
        clock: what the task's clock showed in the epoch, as the text of a clock log; None: the log is too long.
        message: what the error says.
    """

    error: str = "Exception"
    cause: str | None = None
    operator: str | None = None
    uid: str | None = None
    vertex: int | None = None
    subtask: int | None = None
    key: str | None = None
    record: str | None = None
    number: int | None = None
    epoch: int | None = None
    attempt: int | None = None
    host: str | None = None
    clock: str | None = None
    message: str = ""

    @staticmethod
    def of(error: BaseException, subtask: int, attempt: Attempt, clock: str | None = None) -> Failure:
        """Return the failure of a task that an error has left.

        Args:
            clock: what its clock showed; None: it is not known.
        """
        place = error.place if isinstance(error, PillarboxError) else {}
        cause = error.__cause__
        return Failure(
            type(error).__name__,
            None if cause is None else type(cause).__name__,
            operator=_text(place.get("operator")),
            uid=_text(place.get("uid")),
            vertex=attempt.vertex,
            subtask=subtask,
            key=place.get("key"),
            record=place.get("record"),
            number=int(place["number"]) if "number" in place else None,
            epoch=attempt.epoch,
            attempt=attempt.number,
            host=socket.gethostname(),
            clock=clock,
        )

    def to_line(self) -> str:
        """Return the line that tells of it. The message is above the line, so it is not in it."""
        return _PREFIX + json_of(self)

    @staticmethod
    def of_text(text: str) -> Failure | None:
        """Return the failure that the text of an error ends with; None: it has no such line."""
        found = _LINE.search(text)
        if found is None:
            return None
        try:
            facts, _ = json.JSONDecoder().raw_decode(text, found.end())
        except ValueError:
            return None
        return replace(read(Failure, facts), message=message_of(text[: found.start()]))


# How Spark and Python begin the text of an error of pillarbox's.
_BEGINNING = re.compile(r"\bpillarbox(?:\.\w+)*\.\w+: ")
_MESSAGE_LIMIT = 4000


def message_of(text: str) -> str:
    """Return the message of an error from a text in which Spark carries it."""
    found = _BEGINNING.search(text)
    return (text if found is None else text[found.end() :]).strip()[:_MESSAGE_LIMIT]


def without_line(text: str) -> str:
    """Return the message of an error without the line of data after it."""
    found = _LINE.search(text)
    return text if found is None else text[: found.start()].rstrip()


def _text(shown: str | None) -> str | None:
    """Return the text that ``repr`` has shown."""
    if shown is None:
        return None
    try:
        return str(ast.literal_eval(shown))
    except (ValueError, SyntaxError):  # it was cut short
        return shown
