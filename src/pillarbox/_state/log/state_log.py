"""The state log: a subtask's state as a queue of chunks in a key-value store that commits with the epoch.

Each epoch appends the rows of the keys that it touched. The log is cleaned from its old end, as in a
log-structured file system: rows of the oldest chunk that are still current are appended again, then the chunk
is removed. So the log stays within about twice the live rows, no epoch pays for a full snapshot, and an epoch
costs what it touches. A task reads its log once. If another process runs an epoch of the subtask, the task is created
again. docs/checkpoint-format.md describes the content of the store.

Only the mailbox thread may touch the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import Any

from pillarbox._elements.buffers import dumps_by_name
from pillarbox._errors import OperatorError
from pillarbox._state.chunks.head import (
    META,
    LogHead,
    LogIdentity,
    check_dependence,
    check_key,
    check_loaded_keys,
    read_head,
    refused,
    unreadable,
    write_head,
)
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote, classes_of_keys
from pillarbox._state.log import limits
from pillarbox._state.log.contents import LogContents
from pillarbox._state.log.evolution import evolution_of
from pillarbox._state.log.plain_states import PlainStates, reason_for_pickles
from pillarbox._state.log.reader import LogReader
from pillarbox._state.log.writer import EpochWriter, cannot_be_written
from pillarbox._unpickle import RefusedGlobalError, UnpickleGlobalError

# The part of the head that is about the task, as the subject of a message.
_BESIDE_KEYS = "what it keeps besides the state of keys, such as records of requests that have not ended,"


class Sync(Enum):
    """How a task stands to the store's version."""

    IN_STEP = "in step"
    LOADED = "loaded"
    OUT_OF_STEP = "out of step"


class StateLog:
    """A resident task's view of its log.

    Args:
        own_state: whether operators keep something for themselves.
        moved: the classes that have moved, by their former module and name.

    Attributes:
        contents: what there is in the log.
        task_state: small state besides the keys' rows (watermarks, operators' own), written with every epoch.
        former_program: the operators of the program that wrote it (uid, vertex number, level), if it was read, and
            they are others now; None: they are the same.
        bytes_written: payload bytes put into the store by the last commit.
    """

    def __init__(
        self,
        identity: LogIdentity,
        backend: KeyedStateBackend,
        *,
        own_state: bool = True,
        moved: Mapping[tuple[str, str], type] | None = None,
    ) -> None:
        self.contents: LogContents = LogContents(identity, backend, moved)
        self._own_state = own_state
        # Whether it was compared with the store before.
        self._has_begun = False
        # The head as this task wrote or read it last. Its stamp is random, so no other epoch has the same bytes.
        self._head_as_known: bytes | None = None
        self.task_state: dict[str, Any] = {}
        self.former_program: list[tuple[str, int, int]] | None = None
        self._types_of_key: list[str] = []
        self.bytes_written: int = 0

    def sync(self, store: ChunkStore) -> Sync:
        """Load what the store holds into a backend that is new, or make sure that it holds what this task wrote last.

        Returns:
            ``OUT_OF_STEP`` where it does not: the rows here come from an attempt that was not committed, or other
            processes have run epochs since. Then nothing was done, and the task must be created again.

        Raises:
            CheckpointMismatchError: the store holds other state, or not the bytes that were written.
        """
        contents = self.contents
        has_begun, self._has_begun = self._has_begun, True
        if not has_begun:
            contents.plain = None if self.reason_for_pickles is not None else PlainStates(contents.backend)
        payload = store.get(META)
        if payload is not None and payload == self._head_as_known:
            return Sync.IN_STEP
        head = None if payload is None else read_head(payload, contents.identity)
        if contents.head.stamps == ([] if head is None else head.stamps[-1:]):
            return Sync.IN_STEP
        if has_begun or head is None:
            return Sync.OUT_OF_STEP
        check_key(head, contents.identity)
        contents.classes_of_keys = classes_of_keys(head.key, contents.identity.key)
        self._types_of_key = (head.key or {}).get("types", []) if contents.classes_of_keys else []
        check_dependence(head, contents.identity)
        evolution = evolution_of(contents, head)
        LogReader(contents, store, head, evolution).load()
        declared = classes_of_keys(contents.identity.key, head.key)
        if declared:
            check_loaded_keys(contents.backend.get_keys(), declared, contents.identity)
        self._take_over(head, payload)
        evolution.task_state(self.task_state)
        return Sync.LOADED

    def _take_over(self, head: LogHead, payload: bytes | None) -> None:
        contents = self.contents
        try:
            self.task_state = contents.loads(head.task) if head.task else {}
        except UnpickleGlobalError as error:
            raise unreadable(contents.identity, "records that an operator had not finished", error) from error
        except RefusedGlobalError as error:
            raise refused(contents.identity, "records that an operator had not finished", error) from error
        program = [(uid, number, level) for uid, number, level in head.program]
        self.former_program = None if program == [*contents.identity.program] else program
        self._head_as_known = payload

    def commit(self, store: ChunkStore, task_state: dict[str, Any], clock: bytes = b"") -> None:
        """Write the epoch's changes, and step to the next version.

        Args:
            task_state: the task's own state besides the rows.
            clock: what its clock showed in the epoch, for who runs it again.

        Raises:
            OperatorError: a value cannot be pickled, or the operators' own state is too large.
            TypeMismatchError: a value does not fit its declared type.
        """
        backend = self.contents.backend
        if any(table.is_renamed for table in backend.tables):
            self.contents.rewrite()
        writer = EpochWriter(self.contents, store, self.version + 1)
        writer.write_changes()
        self.contents.head.version += 1
        self.task_state = task_state
        payload = write_head(self._head(clock))
        if len(payload) > limits.VALUE_BYTES:
            raise OperatorError(
                f"operator {backend.operator!r}: {_BESIDE_KEYS} takes {len(payload)} bytes, and Spark takes no value of"
                f" more than {limits.VALUE_BYTES}: let it have a smaller capacity, or more subtasks"
            )
        writer.put(META, payload)
        self._head_as_known = payload
        self.bytes_written = writer.bytes_written

    def check_changes(self, most: int | None = None) -> None:
        """Check the rows that changed since the last commit.

        Args:
            most: the number of rows to check, the last ones to change for the first time; None: all.

        Raises:
            TypeMismatchError: a value does not fit its declared type.
        """
        for table in self.contents.backend.tables:
            table.types.check(self.contents.collections.slim(table.dirty if most is None else table.dirty[-most:]))

    def _head(self, clock: bytes) -> LogHead:
        contents = self.contents
        return replace(
            contents.written_head((self.version, secrets.randbits(63))),
            key=self._written_key(),
            task=self._dump_task(),
            types={} if contents.plain is None else contents.plain.types,
            clock=clock,
        )

    def _written_key(self) -> KeyNote | None:
        """Return the description of the key; the type that all keys turn out to have stays known."""
        mine, types = self.contents.identity.key, self._types_of_key
        return mine if mine is None or not types else {**mine, "types": types}

    def _dump_task(self) -> bytes:
        try:
            return dumps_by_name(self.task_state)
        except Exception as error:
            operator = self.contents.backend.operator
            raise OperatorError(f"operator {operator!r}: {_BESIDE_KEYS} {cannot_be_written(error)}") from error

    @property
    def reason_for_pickles(self) -> str | None:
        """Why the operator's state is pickled; None: it is plain, as the types say that the program declares."""
        if self._own_state:
            return "an operator chained to it keeps records of its own, such as requests that are carried"
        return reason_for_pickles(self.contents.identity.key, self.contents.backend)

    @property
    def version(self) -> int:
        """The number of epochs in the log; the next epoch is ``version + 1``."""
        return self.contents.head.version

    @property
    def state_bytes(self) -> int:
        """About how many bytes the state takes when it is written."""
        return self.contents.ledger.live_bytes

    @property
    def chunks(self) -> int:
        """The number of chunks in the log."""
        return len(self.contents.ledger.chunks)
