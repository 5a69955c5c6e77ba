"""A state value whose pickling and unpickling run code that can fail.

Unpickling compares and adds objects of a frozen dataclass with slots, which works only if these objects already have
all their fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.faults.programs.job import Faults

__all__ = ["Seen", "Tally", "open_faults"]

# Of the functions that are open in this process: a state value's way to its faults.
open_faults: dict[str, Faults] = {}

_PARTS = 3


@dataclass(frozen=True, order=True)
class Seen:
    """A range of consecutive records: the last id and the number of records."""

    last: int
    count: int


class Tally:
    """A mutable state value that counts a key's records. Injected faults make pickling or unpickling fail.

    Args:
        faults: the directory with descriptions of the faults to inject.
        parts: consecutive ranges of the records so far.

    Attributes:
        last: id of the last record, or -1.
    """

    def __init__(self, faults: str, parts: tuple[Seen, ...] = ()) -> None:
        self.faults = faults
        self.parts = tuple(sorted(parts))
        self.n = sum(part.count for part in parts)
        self.last = max(parts).last if parts else -1

    def add(self, number: int) -> None:
        parts = (*self.parts, Seen(number, 1))
        if len(parts) > _PARTS:
            parts = (Seen(parts[1].last, parts[0].count + parts[1].count), *parts[2:])
        self.parts = parts
        self.n += 1
        self.last = number

    def __reduce__(self) -> Any:
        _pass_by(self.faults, "snapshot", self.last)
        return _restored, (self.faults, self.parts)


def _restored(faults: str, parts: tuple[Seen, ...]) -> Tally:
    tally = Tally(faults, parts)
    _pass_by(faults, "restored", tally.last)
    return tally


def _pass_by(directory: str, point: str, number: int) -> None:
    faults = open_faults.get(directory)
    if faults is not None:
        faults.pass_by(point, number)
