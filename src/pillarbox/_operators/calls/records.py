"""The recorded service calls of one element (a record or timer)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from pillarbox._elements.buffers import dumps
from pillarbox._errors import ProgramError, describe
from pillarbox._unpickle import loads

# The user's key for a call, or (digest of the function and arguments, number of equal calls before it).
Name = str | tuple[bytes, int]

# Outcomes, as stored in snapshots and journals.
_BEGUN, _RESULT, _ERROR = "begun", "result", "error"


class CallRecord(NamedTuple):
    """The record of a call, stored in snapshots and journals as a tuple.

    Attributes:
        fingerprint: the digest of the function and arguments.
        outcome: "begun", "result" or "error".
    """

    fingerprint: bytes
    outcome: str
    payload: bytes = b""

    @staticmethod
    def begun(fingerprint: bytes) -> CallRecord:
        return CallRecord(fingerprint, _BEGUN)

    @staticmethod
    def of(fingerprint: bytes, answer: Any, call: str) -> CallRecord:
        """Return the record of an answer (a result or an exception). Raises if the answer cannot be pickled."""
        is_error = isinstance(answer, BaseException)
        try:
            payload = dumps(answer)
            if is_error:
                loads(payload)  # fails if the exception's class takes other arguments
        except Exception as error:
            raise ProgramError(
                f"{call}: its {'exception' if is_error else 'result'}, of type {type(answer).__name__}, cannot be"
                f" recorded: {describe(error)}: use only data that can be pickled"
            ) from error
        return CallRecord(fingerprint, _ERROR if is_error else _RESULT, payload)

    @property
    def is_answered(self) -> bool:
        return self.outcome != _BEGUN

    def answer(self) -> Any:
        answer = loads(self.payload)
        if self.outcome == _ERROR:
            raise answer
        return answer


class ElementCallRecords:
    """An element's service calls, kept until the element finishes.

    Args:
        identity: a digest that identifies the element, or None until it is needed.

    Attributes:
        in_flight: the names of running calls.
    """

    __slots__ = ("_used", "identity", "in_flight", "records")

    def __init__(self, identity: bytes | None = None, records: Iterable[tuple[Name, Any]] = ()) -> None:
        self.identity = identity
        self.records: dict[Name, CallRecord] = {name: CallRecord(*record) for name, record in records}
        self.in_flight: set[Name] = set()
        # The names of the element's calls, except failed calls.
        self._used: set[Name] = set()

    def next_name(self, fingerprint: bytes) -> Name:
        occurrence = 0
        while (fingerprint, occurrence) in self._used:
            occurrence += 1
        self._used.add((fingerprint, occurrence))
        return fingerprint, occurrence

    def release(self, name: Name) -> None:
        """Release a failed call's name, so that the next call with equal arguments counts as a retry."""
        self._used.discard(name)

    def snapshot(self) -> tuple[Any, ...]:
        return self.identity, [(name, tuple(record)) for name, record in self.records.items()]
