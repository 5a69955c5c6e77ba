"""Writing the log of a subtask from rows of a savepoint: as if a task had written all of it in its first epoch.

The task then restores from its log as at any cold start, so whether state fits the program is found out in one way.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError
from pillarbox._state.chunks.head import META, LogIdentity, write_head
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.heap.rows import RowTable
from pillarbox._state.inspect.view import ViewedRows
from pillarbox._state.keys.addresses import OPERATOR, format_address, namespace_address
from pillarbox._state.keys.key_groups import hashes_of_keys, key_group_range
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.layouts import with_addresses
from pillarbox._state.log.many_objects import collector_paused
from pillarbox._state.log.writer import EpochWriter
from pillarbox._state.savepoint.manifest import OperatorTable
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.savepoint.table import Loads, Table
from pillarbox._state.slots import NEW, Row, SlotSpec
from pillarbox._state.types.opaque import pickled
from pillarbox._unpickle import loads as loads_anything


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
    with collector_paused():
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
        self._backend = backend = KeyedStateBackend(operator.uid)
        for table, layout in zip(backend.tables, (operator.layout, operator.space_layout)):
            for slot in layout:
                table.add_slot(SlotSpec(*slot))
        self._contents = LogContents(identity, backend)
        self._contents.dump = pickled
        groups = key_group_range(identity.subtask, identity.max_parallelism, identity.parallelism)
        self._first, self._last = (groups[0], groups[-1]) if len(groups) else (0, -1)

    def add(self, rows: ViewedRows) -> None:
        """Add rows, which are the builder's from now on.

        Raises:
            CheckpointMismatchError: a key is another subtask's.
        """
        self._check(rows)
        if rows.namespaces is None:
            self._put(self._backend, rows.keys, rows.rows)
        else:
            self._put(self._backend.namespaces, list(map(namespace_address, rows.keys, rows.namespaces)), rows.rows)

    def _put(self, table: RowTable, addresses: list[Any], rows: list[Row]) -> None:
        with_addresses(rows, addresses)
        table.load(addresses, rows)
        table.dirty += rows

    def _check_once(self) -> None:
        """Check that no row has come twice."""
        for table in self._backend.tables:
            if table.count_rows() < len(table.dirty):
                twice = Counter(row[1] for row in table.dirty).most_common(1)[0][0]
                raise CheckpointMismatchError(
                    f"{self._identity}: the savepoint has the state of {format_address(twice)} twice: it is damaged, or"
                    " was edited"
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
                f"{self._identity}: the savepoint assigns the state of {format_address(key)} to it, but the key belongs"
                " to another subtask: the row's key_group is wrong. The savepoint is damaged, or was edited"
            )

    def finish(self, own: OwnState) -> None:
        """Write the log.

        Raises:
            CheckpointMismatchError: a key comes twice.
            OperatorError: a value cannot be pickled.
        """
        if own.row:
            namespaces = self._backend.namespaces
            self._put(namespaces, [OPERATOR], [[NEW, *(own.row.get(slot.name) for slot in namespaces.slots)]])
        self._check_once()
        contents, operator = self._contents, self._operator
        contents.head.version = version = max(1, operator.version)
        EpochWriter(contents, self._store, version).write_changes()
        head = replace(
            contents.written_head((version, secrets.randbits(63))),
            key=operator.key,
            depends_on=operator.depends_on,
            task=pickled(own.task) if own.task else b"",
            types=dict(operator.types),
        )
        self._store.put(META, write_head(head))
