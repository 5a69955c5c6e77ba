"""Converts a savepoint to state logs in this process."""

from __future__ import annotations

import logging
from functools import partial

import pyarrow as pa

from pillarbox._graph.program import Program
from pillarbox._graph.savepoint_start import plan_restore
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.savepoint.files import LocalSavepoint
from pillarbox._state.savepoint.log_builder import build_log
from pillarbox._state.savepoint.table import Loads, Table
from pillarbox._state.types.class_names import ImportedNames
from pillarbox._state.types.opaque import AnyNames
from pillarbox._task.vertex import Vertex
from pillarbox._unpickle import loads_allowed

_log = logging.getLogger("pillarbox")


def as_it_is() -> Loads:
    """Return a function that unpickles without importing user classes."""
    return partial(loads_allowed, allowed=AnyNames())


def classes_of(vertex: Vertex) -> Loads:
    """Return a function that unpickles keys and operator state, even if their classes have moved."""
    return partial(loads_allowed, allowed=ImportedNames(vertex.moved))


def stores_from_savepoint(program: Program) -> dict[tuple[str, int], MemoryChunkStore]:
    start = program.savepoint
    assert start is not None
    savepoint = LocalSavepoint(start.directory)
    manifest = savepoint.manifest
    loads = classes_of(program.vertices[0])
    own = {table.uid: savepoint.own_states(table.uid, loads) for table in manifest.operators}
    plan = plan_restore(start, manifest, program, own)
    for warning in plan.warnings:
        _log.warning("savepoint %s: %s", start.directory, warning)
    for uid in plan.left_behind:
        count = sum(batch.num_rows for batch in savepoint.batches(uid)) if uid in own else 0
        _log.warning(start.left_behind(uid, count, own.get(uid, ())))
    stores: dict[tuple[str, int], MemoryChunkStore] = {}
    for uid, vertex in plan.vertices.items():
        table, parallelism, groups = savepoint.table(uid), vertex.parallelism, vertex.max_parallelism
        shares: list[list[pa.RecordBatch]] = [[] for _ in range(parallelism)]
        for batch in savepoint.batches(uid):
            for subtask, share in table.route(batch, parallelism, groups, loads):
                shares[subtask].append(share)
        states = start.own_states(table.operator, own[uid], vertex, manifest, program)
        written = Table(start.table(table.operator, program))
        for subtask, state in enumerate(states):
            store = stores[vertex.uid, subtask] = MemoryChunkStore()
            share, shares[subtask] = shares[subtask], []
            build_log(store, written, vertex.log_identity(subtask), share, state, as_it_is())
    return stores
