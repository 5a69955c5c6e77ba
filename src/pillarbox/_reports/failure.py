"""A task's failure, as a line of JSON in the error message, because Spark passes errors as text."""

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


class FailedAttempt(NamedTuple):
    """A Spark task attempt. Unknown fields are None."""

    vertex: int | None
    epoch: int | None
    number: int | None


@dataclass(frozen=True)
class Failure:
    """The place and cause of a task's failure, as far as known. Keys and records are shortened strings.

    Attributes:
        cause: the class of the exception that user code raised, or None if pillarbox raised the error.
        record: the record being processed, or None if, for example, a timer was being processed.
        number: the record's position (from 1) in the task's input of the epoch, or None if the operator that failed is
            not the chain's first.
        clock: the epoch's clock readings as text, for a replay, or None if they are unknown or the text is too long.
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
    def of(error: BaseException, subtask: int, attempt: FailedAttempt, clock: str | None = None) -> Failure:
        location = error.place if isinstance(error, PillarboxError) else {}
        cause = error.__cause__
        return Failure(
            type(error).__name__,
            None if cause is None else type(cause).__name__,
            operator=_text(location.get("operator")),
            uid=_text(location.get("uid")),
            vertex=attempt.vertex,
            subtask=subtask,
            key=location.get("key"),
            record=location.get("record"),
            number=int(location["number"]) if "number" in location else None,
            epoch=attempt.epoch,
            attempt=attempt.number,
            host=socket.gethostname(),
            clock=clock,
        )

    def to_line(self) -> str:
        return _PREFIX + json_of(self)

    @staticmethod
    def of_text(text: str) -> Failure | None:
        match = _LINE.search(text)
        if match is None:
            return None
        try:
            facts, _ = json.JSONDecoder().raw_decode(text, match.end())
        except ValueError:
            return None
        return replace(read(Failure, facts), message=message_of(text[: match.start()]))


# A pillarbox error's class in an error text of Spark or Python.
_BEGINNING = re.compile(r"\bpillarbox(?:\.\w+)*\.\w+: ")
_MESSAGE_LIMIT = 4000


def message_of(text: str) -> str:
    match = _BEGINNING.search(text)
    return (text if match is None else text[match.end() :]).strip()[:_MESSAGE_LIMIT]


def without_line(text: str) -> str:
    match = _LINE.search(text)
    return text if match is None else text[: match.start()].rstrip()


def _text(shown: str | None) -> str | None:
    if shown is None:
        return None
    try:
        return str(ast.literal_eval(shown))
    except (ValueError, SyntaxError):  # it was shortened
        return shown
