"""Service calls in a replay."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from pillarbox._errors import shorten
from pillarbox._operators.calls.digests import Callee
from pillarbox._operators.calls.journal import Entry, Journal
from pillarbox._operators.calls.records import CallRecord, Name


@dataclass(frozen=True)
class ReplayedCalls:
    """An operator's recorded service calls, for the replay of an epoch.

    Attributes:
        entries: maps each epoch to its journal entries, or None if the query had no journal.
        refuse: raises an error for a call without a recorded answer, or None to call the service.
        may_carry: whether the epoch may have carried calls over. If so, a call without a recorded answer was still
            running at the end of the epoch.
    """

    entries: Mapping[int, list[Entry]] | None
    refuse: Callable[[str], NoReturn] | None
    may_carry: bool

    async def before_call(self, callee: Callee, args: tuple[Any, ...]) -> None:
        """Raise if the call may not be made. With ``may_carry``, wait until the epoch ends instead."""
        if self.refuse is None:
            return
        if not self.may_carry:
            self.refuse(f"{callee}({', '.join(map(shorten, args))})")
        await asyncio.get_running_loop().create_future()


class ReplayedJournal(Journal):
    """A read-only journal with an epoch's recorded answers."""

    def __init__(self, entries: Mapping[int, list[Entry]], *arguments: Any) -> None:
        super().__init__("", *arguments)
        self._recorded = entries

    def _read(self, first: int) -> None:
        self.add(first, self._recorded.get(first, ()))

    async def write(self, identity: bytes, name: Name, record: CallRecord) -> None:
        pass
