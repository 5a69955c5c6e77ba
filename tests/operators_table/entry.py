"""An entry of the table of operators: a way to make an operator, and its data for tests and pages."""

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
        words: the text on the page.
        format: how it is stored if the type of the records is declared: ``"plain"``, or the beginning of the reason why
            it is pickled. None without state.
        by_user: whether a function declares the state, and so its types.
    """

    words: str
    format: str | None = "plain"
    by_user: bool = False


@dataclass(frozen=True)
class Late:
    """Handling of records that arrive after the watermark has passed them.

    Attributes:
        words: the text on the page.
        dropped: whether the operator drops and counts them.
    """

    words: str
    dropped: bool = False


@dataclass(frozen=True)
class Differs:
    """The difference between the results of batch mode and of a bounded stream.

    Attributes:
        words: the text on the page.
        expected: computes the results from all records by time. None if a function's results depend on the order.
        same: whether there is no difference for the entry's program.
    """

    words: str
    expected: Callable[[list[Any]], list[Any]] | None = None
    same: bool = False


@dataclass(frozen=True)
class Refused:
    """A change after which the state cannot be used.

    Attributes:
        change: the text on the page.
        build: creates the changed operator.
        words: a part of the error.
        by_tasks: whether tasks refuse it, when they read their state; otherwise a start does.
    """

    change: str
    build: Build
    words: str
    by_tasks: bool = False


@dataclass(frozen=True)
class Resumes:
    """A change after which the operator resumes from its state.

    Attributes:
        change: the text on the page.
        then: the effect on the state, as text on the page.
        build: creates the changed operator.
        begun: the records before the change.
        more: the later records, epoch by epoch; the input ends with them.
        gives: the output after the change.
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
        method: the public method of a class of streams, such as ``KeyedStream.reduce``.
        operator: the class of the created operator.
        build: creates it, from one stream of rows (key, n, at), or two.
        case: the case of the method, if it has several.
        inputs: its number of streams.
        ordered: whether the order of its output is known.
        state: its state.
        late: its handling of late records.
        batch: effects of batch mode on its results.
        changes: permitted and refused changes in a program that resumes from its state.
        simulated: programs in which it runs on the simulated cluster, by name.
        chaos: its part of the program that chaos runs.
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
