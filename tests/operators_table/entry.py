"""An entry of the operator table: a way to make an operator, and data about it for tests and pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pillarbox import Types
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox.testing import StreamRecord, row
from tests.faults.parts.part import Part
from tests.simulation.programs.program import SimulatedProgram

__all__ = [
    "BY_KEY",
    "DROPPED",
    "LIKE_OTHERS",
    "NO_ARGUMENT",
    "NO_STATE",
    "ROW",
    "SAME",
    "Differs",
    "Entry",
    "Late",
    "Reason",
    "Refused",
    "Resumes",
    "StoredState",
    "pick",
    "record",
]

# The records of all tests that run from the table.
ROW = Types.ROW_NAMED(["key", "n", "at"], [Types.STRING(), Types.LONG(), Types.LONG()])

Build = Callable[..., Any]


def record(key: str, n: int, at: int) -> StreamRecord:
    return StreamRecord(row(key=key, n=n, at=at), at)


def pick(module: Any, *names: str) -> dict[str, SimulatedProgram]:
    return {name: module.PROGRAMS[name] for name in names}


@dataclass(frozen=True)
class Reason:
    """A reason for an empty field."""

    reason: str


@dataclass(frozen=True)
class StoredState:
    """An operator's state.

    Attributes:
        words: text on the page.
        format: how the state is stored if the record type is declared: ``"plain"``, or the beginning of the reason why
            it is pickled. None without state.
        by_user: whether a function declares the state and its types.
    """

    words: str
    format: str | None = "plain"
    by_user: bool = False


@dataclass(frozen=True)
class Late:
    """Handling of late records.

    Attributes:
        words: text on the page.
        dropped: whether the operator drops and counts late records.
    """

    words: str
    dropped: bool = False


@dataclass(frozen=True)
class Differs:
    """The difference between batch mode's results and a bounded stream's results.

    Attributes:
        words: text on the page.
        expected: computes the results from all records by time. None if results depend on the order.
        same: whether the entry's program shows no difference.
    """

    words: str
    expected: Callable[[list[Any]], list[Any]] | None = None
    same: bool = False


@dataclass(frozen=True)
class Refused:
    """A change after which the state cannot be used.

    Attributes:
        change: text on the page.
        words: part of the error.
        by_tasks: whether tasks refuse the change when they read their state. If False, the start refuses it.
    """

    change: str
    build: Build
    words: str
    by_tasks: bool = False


@dataclass(frozen=True)
class Resumes:
    """A change after which the operator resumes from its state.

    Attributes:
        change: text on the page.
        then: text on the page about the effect on the state.
        begun: records before the change.
        more: later records, epoch by epoch, to the end of the input.
        gives: output after the change.
    """

    change: str
    then: str
    build: Build
    begun: Sequence[StreamRecord]
    more: Sequence[Sequence[StreamRecord]]
    gives: Sequence[Any]


NO_STATE = StoredState("no state", None)
LIKE_OTHERS = Late("handled like other records")
DROPPED = Late("dropped and counted", dropped=True)
SAME = Differs("the same", same=True)
BY_KEY = Differs("the same, unless the function depends on the order of records", same=True)
NO_ARGUMENT = Reason("it has no argument that its state depends on")


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


_MISSING: Any = _Missing()
_TO_ENTER = {
    "state": 'StoredState("what it keeps", format="plain"), or NO_STATE',
    "late": "LIKE_OTHERS, DROPPED, or Late(...)",
    "batch": 'SAME, or Differs("what differs", expected=...)',
    "changes": "a list of Refused(...) and Resumes(...), for each argument that its state depends on, or NO_ARGUMENT",
    "simulated": '{"a name": SimulatedProgram(...)}, or Reason("why there is none")',
    "chaos": 'Part("name", stream, model), or Reason("why there is none")',
}


@dataclass(frozen=True)
class Entry:
    """A way to create an operator.

    Attributes:
        method: a public method of a stream class, such as ``KeyedStream.reduce``.
        operator: the created operator's class.
        build: creates the operator from one or two streams of rows (key, n, at).
        case: distinguishes several entries of a method.
        ordered: whether the output order is known.
        batch: effects of batch mode on results.
        changes: permitted and refused changes of a program that resumes from the state.
        simulated: programs for the simulated cluster, by name.
        chaos: the entry's part of the chaos program.
    """

    method: str
    operator: type[StreamOperator]
    build: Build
    case: str = ""
    inputs: int = 1
    ordered: bool = True
    state: StoredState = _MISSING
    late: Late = _MISSING
    batch: Differs = _MISSING
    changes: Sequence[Refused | Resumes] | Reason = _MISSING
    simulated: Mapping[str, SimulatedProgram] | Reason = _MISSING
    chaos: Part | Reason = _MISSING

    def __str__(self) -> str:
        return f"{self.method}, {self.case}" if self.case else self.method

    def lacks(self, *names: str) -> bool:
        return any(getattr(self, name) is _MISSING for name in names or _TO_ENTER)

    def missing(self) -> Iterator[str]:
        for name, what in _TO_ENTER.items():
            if self.lacks(name):
                yield f"{self}: {name} is missing: enter {what}"
