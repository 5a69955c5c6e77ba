"""The rows of keys on the heap. Only the mailbox thread may touch them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from datetime import tzinfo
from operator import itemgetter
from typing import Any, NamedTuple

from pillarbox._errors import OperatorError, shorten
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._state.slots import Row


class KeyOwner(NamedTuple):
    """The keys of a program that a backend may hold: the keys of one subtask."""

    subtask: int
    parallelism: int
    max_parallelism: int


class _Rows(dict[Any, Row]):
    """The row of each key that has state or timers. ``rows[key]`` makes the row where there is none."""

    __slots__ = ("_create",)

    def __init__(self, create: Callable[[Any], Row]) -> None:
        self._create = create

    def __missing__(self, key: Any) -> Row:
        return self._create(key)


class KeyRows(RowTable):
    """The rows of keys, whose addresses are the keys.

    Args:
        owner: the subtask whose keys they are; None: it may hold any key.

    Attributes:
        rows: the row of each key that has state or timers. ``row = rows[key]`` and ``key = key`` make a key the current
            one, in line, for loops over records of operators that use no namespaces.
        row: the current key's row.
        key: the current key.
        now: the processing time of the epoch (epoch ms), by which state expires that has a time-to-live.
    """

    def __init__(self, operator: str, owner: KeyOwner | None = None, zone: tzinfo | None = None) -> None:
        super().__init__(operator, zone)
        # A single subtask has all keys.
        self._owner = owner if owner is not None and owner.parallelism > 1 else None
        self.rows: dict[Any, Row] = _Rows(self._create_row)
        self.key: Any = None
        self.now: int = 0

    @property
    def current_key(self) -> Any:
        """The current key."""
        return self.key

    def _create_row(self, key: Any) -> Row:
        """Create the row of a key; it stays only if it holds something when the epoch ends."""
        if not self.slots:
            return self.blank  # nothing can ever be in it
        if self._owner is not None:
            self.check_owner(key)
        row = self.blank.copy()
        row[1] = key
        self.rows[key] = row
        self.dirty.append(row)
        return row

    def check_owner(self, key: Any) -> None:
        """Check that a key may have state here.

        Raises:
            OperatorError: the key belongs to another subtask: the key function returned another one when the record was
                routed. (Flink: "Key group ... is not in KeyGroupRange".)
        """
        if self._owner is not None:
            subtask, parallelism, max_parallelism = self._owner
            right = subtask_of_key(key, max_parallelism, parallelism)
            if right != subtask:
                self.key = key
                raise OperatorError(
                    f"operator {self.operator!r}: the key {shorten(key)} belongs to subtask {right}, but a record with"
                    f" it came to subtask {subtask} of {parallelism}: the key function returned another key when the"
                    " record was sent; it has to return the same key each time (no random numbers, no clock, no"
                    " changing object)"
                )

    def every_row(self) -> Iterable[Row]:
        """Return all rows of keys."""
        return self.rows.values()

    def count_rows(self) -> int:
        """Return how many rows of keys there are."""
        return len(self.rows)

    def find(self, address: Any) -> Row | None:
        """Return the row of a key; None where there is none."""
        return self.rows.get(address)

    def _put(self, rows: Collection[Row]) -> None:
        self.rows.update(zip(map(itemgetter(1), rows), rows))

    def _remove(self, row: Row) -> None:
        del self.rows[row[1]]

    def without_timers(self) -> list[str]:
        """Return the names of the slots of timers that no row has any timer in."""
        return [timers.name for timers in self.timers if not len(timers) and timers.next_timestamp() is None]
