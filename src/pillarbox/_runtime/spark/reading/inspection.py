"""Reads programs, epochs and state sizes from a checkpoint or savepoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError
from pillarbox._graph.description import compare
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.look import read_epoch
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, map_logs
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.changes import compare_states
from pillarbox._state.inspect.summary import LogSummary
from pillarbox._state.inspect.view import LogView
from pillarbox._state.log.plain_states import reason_for_pickled_keys
from pillarbox._state.savepoint.manifest import parts_slot_of, table_folder
from pillarbox._state.slots import state_name
from pillarbox._state.types.type_names import without_forms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def inspect_checkpoint(spark: SparkSession, checkpoint: str, epoch: int | None = None, top: int = 5) -> dict[str, Any]:
    """Read all state once, and describe the checkpoint as plain data."""
    return read_epoch(spark, checkpoint, epoch, partial(_inspect, top))


def _inspect(top: int, files: CheckpointState) -> dict[str, Any]:
    notes = files.checkpoint
    operators: dict[str, dict[str, Any]] = {}
    for operator in files.stateful:
        logs = files.logs(operator)
        summaries = map_in_arrow(logs, "inspect", partial(map_logs, partial(_summary, top)), "facts STRING")
        with unwrapped_failures():
            rows = summaries.collect()
        for facts in sorted((json.loads(row.facts) for row in rows), key=itemgetter("operator", "subtask")):
            _merge(operators, facts, top)
    noted = notes.binding()
    described = {
        operator["uid"]: operator for program in (noted or {}).get("programs", ()) for operator in program["operators"]
    }
    for uid, figures in operators.items():
        figures.update({name: described.get(uid, {}).get(name) for name in ("name", "kind", "level")})
    return {
        "checkpoint": str(notes),
        "epoch": files.epoch,
        "oldest_epoch": max((operator.first for operator in files.stateful), default=None),
        "last_epoch": notes.last_committed,
        "unfinished_epoch": None if notes.unfinished is None else notes.last_committed + 1,
        "parallelism": notes.parallelism,
        "max_parallelism": min((subtasks for subtasks, _ in notes.subtasks() or ()), default=None),
        "interrupted_rescale_to": notes.interrupted,
        "state_file_format": int(notes.state_format),
        "programs": None if noted is None else noted["programs"],
        "operators": [operators[uid] for uid in sorted(operators, key=lambda uid: (operators[uid]["level"] or 0, uid))],
    }


def inspect_savepoint(spark: SparkSession, directory: str) -> dict[str, Any]:
    """Verify all files of a savepoint, and describe the savepoint as plain data."""
    opened = open_savepoint(spark, directory)
    manifest = opened.manifest
    marks: dict[str, int | None] = dict(opened.tasks.groupBy("uid").agg({"watermark": "min"}).collect())
    sizes: dict[str, int] = {}
    for name, digest in manifest.files.items():
        folder = name.rpartition("/")[0]
        sizes[folder] = sizes.get(folder, 0) + digest.length
    operators = []
    for operator in manifest.operators:
        # A columnar operator stores keys inside its streams' columns. These keys are not counted.
        of_key = "key_group IS NOT NULL AND " + ("stream IS NULL" if operator.parts else "true")
        counted = opened.frame(operator.uid).selectExpr(
            f"count(DISTINCT CASE WHEN {of_key} THEN xxhash64(key, CASE WHEN key IS NULL THEN exact END) END) AS keys",
            f"count({'stream' if operator.parts else 'NULL'}) AS arrow_rows",
            # The operator's own rows have no key.
            f"count({'namespace' if operator.parts else 'CASE WHEN key_group IS NOT NULL THEN namespace END'})"
            " AS namespaces",
            "coalesce(sum(size(timers)), 0) AS timers",
        ).collect()[0]  # fmt: skip
        operators.append(
            {
                "uid": operator.uid,
                "parallelism": operator.parallelism,
                "max_parallelism": operator.max_parallelism,
                "key": operator.key,
                "states": _states(operator.head()),
                "by_columns": bool(operator.parts),
                **counted.asDict(),
                "watermark": marks.get(operator.uid),
                "bytes": sizes.get(table_folder(operator.uid), 0),
            }
        )
    return {
        "savepoint": directory,
        "checkpoint": manifest.checkpoint,
        "epoch": manifest.epoch,
        "drained": manifest.drained,
        "pillarbox": manifest.pillarbox,
        "format": manifest.format,
        "programs": manifest.programs,
        "sources": max(0, len(manifest.sources.offsets) - 2),
        "operators": operators,
    }


def _summary(top: int, code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    view = LogView(store, code)
    head = view.head
    by_columns = parts_slot_of(head) is not None
    facts = {
        "operator": head.operator,
        "subtask": head.subtask,
        "parallelism": head.parallelism,
        "max_parallelism": head.max_parallelism,
        "key": head.key,
        "is_plain": bool(head.types),
        "reason_for_pickles": _reason_for_pickles(head, view),
        "states": _states(head),
        "log_bytes": sum(map(len, store.chunks.values())),
        "by_columns": by_columns,
        "summary": LogSummary.of(view, top, by_columns=by_columns).as_data(),
    }
    facts["classes"] = sorted(view.classes)
    yield pa.RecordBatch.from_pydict({"facts": [json.dumps(facts)]})


def _reason_for_pickles(head: LogHead, view: LogView) -> str | None:
    if head.types or not _states(head):
        return None
    if view.task_state().get("operators"):
        return "another operator of its chain stores records, such as pending requests"
    return reason_for_pickled_keys(head.key) or (
        "a state has no declared type or a type that is not plain data, or an operator of its chain may store records."
        " The query's metric state_format gives the reason"
    )


def _states(head: LogHead) -> dict[str, str]:
    states: dict[str, str] = {}
    for lead, name, kind in head.slots():
        if kind != "timers":
            declared = head.types.get(lead + name)
            states[state_name(name)] = kind if declared is None else f"{kind} {without_forms(declared)}"
    return states


def _merge(operators: dict[str, dict[str, Any]], facts: dict[str, Any], top: int) -> None:
    summary = LogSummary(**facts.pop("summary"))
    uid, subtask, log_bytes = (facts.pop(name) for name in ("operator", "subtask", "log_bytes"))
    operator = operators.get(uid)
    if operator is None:
        total = LogSummary()
        operator = operators[uid] = {"uid": uid, **facts, "subtasks": [], "log_bytes": 0}
    else:
        total = LogSummary(**{name: operator[name] for name in vars(LogSummary())})
        operator["states"] = {**operator["states"], **facts["states"]}
        operator["classes"] = sorted({*operator["classes"], *facts["classes"]})
        operator["is_plain"] = operator["is_plain"] and facts["is_plain"]
        operator["reason_for_pickles"] = operator["reason_for_pickles"] or facts["reason_for_pickles"]
    total.add(summary, top)
    operator.update(total.as_data())
    operator["log_bytes"] += log_bytes
    operator["subtasks"].append({"subtask": subtask, "keys": summary.keys, "state_bytes": summary.state_bytes})


def changes_to(spark: SparkSession, checkpoint: str, other: str) -> dict[str, list[str]]:
    """Compare a checkpoint with the newest program in ``other``, which might resume from it.

    ``refused`` changes prevent resuming, ``doubtful`` changes may prevent it. ``carried_out`` changes would be made in
    the first epoch.
    """
    then, now = Checkpoint(spark, checkpoint).binding(), Checkpoint(spark, other).newest()
    for description, where in ((then, checkpoint), (now, other)):
        if description is None:
            raise CheckpointMismatchError(
                f"checkpoint {where} contains no description of a program: start the query with pillarbox.start(...),"
                " which writes one"
            )
    assert then is not None and now is not None
    changes = compare(then, now)
    changes_by_kind = {"refused": changes.refused, "doubtful": changes.doubtful, "carried_out": list[str]()}
    logs, others = (_logs(CheckpointState(spark, where)) for where in (checkpoint, other))
    for uid in sorted(logs.keys() & others.keys()):
        # All subtasks declare the same states.
        of_states = compare_states(logs[uid][0].head, others[uid][0].head)
        for kind, sentences in changes_by_kind.items():
            sentences.extend(getattr(of_states, kind))
    chains = {
        operator["uid"]: operator.get("chain") for program in now["programs"] for operator in program["operators"]
    }
    for uid, views in sorted(logs.items()):
        changes_by_kind["refused"] += _lost_requests(uid, views, chains.get(uid))
    return changes_by_kind


def _lost_requests(uid: str, views: list[LogView], chain: list[str] | None) -> Iterator[str]:
    if chain is None:
        return
    every = {other: part for view in views for other, part in (view.task_state().get("operators") or {}).items()}
    for lost in sorted(every.keys() - {uid, *chain}):
        yield (
            f"operator {lost!r} has pending requests, but the program has no such operator in the chain of {uid!r}: set"
            " the operator's uid() as before"
        )


def _logs(files: CheckpointState) -> dict[str, list[LogView]]:
    views: dict[str, list[LogView]] = {}
    for operator in files.stateful:
        for view in files.views(operator).values():
            views.setdefault(view.head.operator, []).append(view)
    return views
