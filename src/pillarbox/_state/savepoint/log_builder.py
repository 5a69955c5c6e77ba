"""Writing the log of a subtask from rows of a savepoint: as if a task had written all of it in its first epoch.

The task then restores from its log as at any cold start, so whether state fits the program is found out in one way.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError
from pillarbox._state.backend import LoggedStateBackend, SlotSpec
from pillarbox._state.chunks.head import META, LogIdentity, write_head
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.heap.backend import KeyOwner
from pillarbox._state.heap.rows import NEW
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.addresses import OPERATOR, said, space_address
from pillarbox._state.keys.key_groups import hashes_of_keys, key_group_range
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.many_objects import many_new_objects
from pillarbox._state.log.writer import EpochWriter
from pillarbox._state.savepoint.manifest import OperatorTable
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.savepoint.table import Loads, Table
from pillarbox._state.types.opaque import pickled
from pillarbox._unpickle import loads as loads_anything

__all__ = ["LogBuilder", "build_log"]


class _Spaces:
    def __init__(self, slots: list[SlotSpec]) -> None:
        self.slots = slots


class _NewRows:
    """What a log needs of a backend to write rows that are all new."""

    def __init__(self, operator: OperatorTable) -> None:
        self.operator = operator.uid
        self.slots = [SlotSpec(*slot) for slot in operator.layout]
        self.spaces = _Spaces([SlotSpec(*slot) for slot in operator.space_layout])
        self.rows: dict[Any, list[Any]] = {}

    def find(self, address: Any) -> list[Any] | None:
        return self.rows.get(address)

    def take_changes(self) -> tuple[dict[Any, list[Any]], dict[Any, int]]:
        return self.rows, {}


def build_log(
    store: ChunkStore,
    table: Table,
    identity: LogIdentity,
    batches: Iterable[pa.RecordBatch],
    own: OwnState,
    loads: Loads = loads_anything,
) -> None:
    """Write the log of a new subtask into an empty store.

    Args:
        identity: whose log it is to be, as in the new program.
        batches: the subtask's shares, as ``table.route`` gave them.
        own: what it has besides, as ``redistribute`` gave it.
        loads: unpickles what is pickled.

    Raises:
        CheckpointMismatchError: the rows are not as the manifest says, or another subtask's; or cannot be unpickled.
        OperatorError: a value cannot be pickled.
    """
    builder = LogBuilder(store, table.operator, identity)
    owner = KeyOwner(identity.subtask, identity.parallelism, identity.max_parallelism)
    with many_new_objects():
        for rows in table.rows(batches, owner, loads):
            builder.add(rows)
        builder.finish(own)


class LogBuilder:
    """Writes the log of one subtask into an empty store. Its rows are in memory, as they are in a task.

    Args:
        operator: the operator's table: its head says key, types and slots as they were.
        identity: whose log it is to be: uid, subtask, parallelism and codes of the new program.
    """

    def __init__(self, store: ChunkStore, operator: OperatorTable, identity: LogIdentity) -> None:
        self._store = store
        self._operator = operator
        self._identity = identity
        self._new = _NewRows(operator)
        self._contents = LogContents(identity, cast("LoggedStateBackend", self._new))
        self._contents.dump = pickled
        groups = key_group_range(identity.subtask, identity.max_parallelism, identity.parallelism)
        self._first, self._last = (groups[0], groups[-1]) if len(groups) else (0, -1)

    def add(self, rows: ViewedRows) -> None:
        """Add rows, which are the builder's from now on.

        Raises:
            CheckpointMismatchError: a key is another subtask's, or comes twice.
        """
        addresses = rows.keys
        self._check(rows)
        if rows.namespaces is not None:
            addresses = list(map(space_address, rows.keys, rows.namespaces))
            for address, row in zip(addresses, rows.rows):
                row.insert(1, address)
        self._put(addresses, rows.rows)

    def _put(self, addresses: list[Any], rows: list[list[Any]]) -> None:
        found = self._new.rows
        twice = None if found.keys().isdisjoint(addresses) else next(each for each in addresses if each in found)
        before = len(found)
        found.update(zip(addresses, rows))
        if twice is None and len(found) < before + len(addresses):
            twice = Counter(addresses).most_common(1)[0][0]
        if twice is not None:
            raise CheckpointMismatchError(
                f"{self._identity}: the savepoint has the state of {said(twice)} twice: it is damaged, or was edited"
            )

    def _check(self, rows: ViewedRows) -> None:
        """Check that keys are the subtask's: a record of another one would never find its state."""
        try:
            groups = hashes_of_keys(rows.keys) % self._identity.max_parallelism
        except TypeError:
            return  # keys of a class that was not asked for
        wrong = (groups < self._first) | (groups > self._last)
        if wrong.any():
            key = rows.keys[int(wrong.argmax())]
            raise CheckpointMismatchError(
                f"{self._identity}: the savepoint has the state of {said(key)} for it, which is another subtask's: its"
                " key_group is not that of the key; it is damaged, or was edited"
            )

    def finish(self, own: OwnState) -> None:
        """Write the log.

        Raises:
            OperatorError: a value cannot be pickled.
        """
        if own.row:
            self._put([OPERATOR], [[NEW, OPERATOR, *(own.row.get(slot.name) for slot in self._new.spaces.slots)]])
        contents, identity, operator = self._contents, self._identity, self._operator
        version = max(1, operator.version)
        EpochWriter(contents, self._store, version).write_changes()
        head = replace(
            operator.head(identity.subtask),
            operator=identity.operator,
            parallelism=identity.parallelism,
            max_parallelism=identity.max_parallelism,
            program=identity.program,
            layouts=contents.layouts.keys.written(1),
            space_layouts=contents.layouts.spaces.written(1),
            codes=identity.codes or 0,
            version=version,
            stamps=[(version, secrets.randbits(63))],
            following=contents.following,
            entry=contents.entry,
            entries=contents.entries,
            newest=contents.newest,
            large=contents.larges,
            task=pickled(own.task) if own.task else b"",
        )
        self._store.put(META, write_head(head))
