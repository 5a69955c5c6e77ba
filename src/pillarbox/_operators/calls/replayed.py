"""The calls of a recorded epoch in a replay. The recording has their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pillarbox._errors import shorten
from pillarbox._operators.calls.digests import Callee
from pillarbox._operators.calls.journal import Entry, Journal
from pillarbox._operators.calls.records import Name, Record


@dataclass(frozen=True)
class ReplayedCalls:
    """An operator's calls in a replay.

    Attributes:
        entries: epoch -> entries of the journal. None without a journal.
        refuse: raises an error for a call without a recorded answer. If None, such calls are made.
        may_carry: whether a call may outlast the epoch. If its answer is not in the journal, the answer had not
            arrived.
    """

    entries: Mapping[int, list[Entry]] | None
    refuse: Callable[[str], NoReturn] | None
    may_carry: bool

    async def before_call(self, callee: Callee, args: tuple[Any, ...]) -> None:
        """Return if the call may be made. Otherwise refuse it, or wait until the epoch ends."""
        if self.refuse is None:
            return
        if not self.may_carry:
            self.refuse(f"{callee}({', '.join(map(shorten, args))})")
        await asyncio.get_running_loop().create_future()


class ReplayedJournal(Journal):
    """A journal that reads the recorded answers of the epoch, and writes nothing."""

    def __init__(self, entries: Mapping[int, list[Entry]], *arguments: Any) -> None:
        super().__init__("", *arguments)
        self._recorded = entries

    def _read(self, first: int) -> None:
        self.add(first, self._recorded.get(first, ()))

    async def write(self, identity: bytes, name: Name, record: Record) -> None:
        pass
