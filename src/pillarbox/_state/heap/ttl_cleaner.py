"""Clearing state whose time-to-live is over, also of keys that never come again.

At the end of each epoch some rows are looked at, in turns: so many for each row that the epoch has touched, so that
expired rows stay below a fixed share of all; and so many that all rows are seen within the shortest time-to-live,
however little the epochs do. After a cold start, which has read all rows, all of them are looked at. It
happens after everything that an epoch emits, so an epoch that is run again emits the same.

Only the mailbox thread may touch it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pillarbox._state.heap.key_rows import KeyRows
from pillarbox._state.heap.ttl_states import TtlState
from pillarbox._state.slots import Row

_END = object()


class TtlCleaner:
    """Clears expired state in the rows of keys.

    Attributes:
        states: the states with a time-to-live.
    """

    def __init__(self, table: KeyRows) -> None:
        self._table = table
        self.states: list[TtlState] = []
        # Slots of stamps of states that have no time-to-live any more.
        self._unused: list[int] = []
        self._looks_at_all = False
        self._cleaned_at: int | None = None
        # Of the turn through all rows: the keys to come, its cost so far, and that of the one before.
        self._pending: Iterator[Any] | None = None
        self._cost = 0
        self._cost_of_all = 0
        self._credit = 0.0

    def look_at_all(self, unused: Sequence[int] = ()) -> None:
        """Look at all rows when the epoch ends: after a cold start, or when a state is declared after it.

        Args:
            unused: slots of stamps whose states have no time-to-live.
        """
        self._looks_at_all = True
        self._unused += unused

    def clean(self) -> None:
        """Clear what has expired, so far as it is the epoch's turn."""
        if self._looks_at_all:
            self._looks_at_all = False
            self._clean_all()
        else:
            self._clean_some()
        self._cleaned_at = self._table.now

    def _clean_all(self) -> None:
        """Look at all rows, which a cold start has read."""
        of_all = self.states
        states = [state for state in of_all if state.ttl.cleanup_in_background or state.ttl.cleanup_full_snapshot]
        # Values that are older than their state's time-to-live count from now on, whatever clears them.
        others = [state for state in of_all if state not in states]
        unused, self._unused = self._unused, []
        self._cost_of_all = 0
        if not of_all and not unused:
            return
        for row in self._table.every_row():
            self._cost_of_all += self._look_at(row, states)
            changed = False
            for state in others:
                changed |= state.stamp_missing(row)
            for slot in unused:
                changed |= row[slot] is not None
                row[slot] = None
            if changed and row[0] >= 0:
                self._table.touch_row(row)

    def _clean_some(self) -> None:
        states = [state for state in self.states if state.ttl.cleanup_in_background]
        if not states:
            return
        table = self._table
        elapsed = 0 if self._cleaned_at is None else max(0, table.now - self._cleaned_at)
        shortest = min(state.ttl.millis for state in states)
        size = max(state.ttl.cleanup_size for state in states)
        cost_of_all = max(self._cost_of_all, self._cost, len(table.rows))
        self._credit += max(size * len(table.dirty), cost_of_all * elapsed / shortest)
        begun = False
        while self._credit > 0:
            if self._pending is None:
                if begun:  # all rows were looked at
                    self._credit = 0.0
                    return
                begun = True
                self._pending, self._cost = iter(list(table.rows)), 0
            key = next(self._pending, _END)
            row = table.rows.get(key)
            if key is _END:
                self._pending, self._cost_of_all = None, self._cost
            elif row is not None:
                cost = self._look_at(row, states)
                self._cost += cost
                self._credit -= cost

    def _look_at(self, row: Row, states: Sequence[TtlState]) -> int:
        """Clear what has expired in a row; return what that cost: one for each row, and for each element in it."""
        cost = 1
        changed = False
        for state in states:
            cost += state.size(row)
            changed |= state.clean(row)
        if changed and row[0] >= 0:
            self._table.touch_row(row)
        return cost
