"""The history of a key: its state and timers in the last retained epochs.

The state is read by a job that can be cancelled. A process runs one such job at a time.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pillarbox._errors import CheckpointMismatchError, PillarboxError, ProgramError, check_text, describe, shorten
from pillarbox._runtime.spark.checkpoint.damage import damage_in
from pillarbox._runtime.spark.checkpoint.look import read_epoch
from pillarbox._runtime.spark.checkpoint.state import CheckpointState, CheckpointStateOperator, map_logs
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.reading.key_columns import rows_in_columns
from pillarbox._runtime.spark.reading.key_text import is_same_key, possible_keys, several_keys
from pillarbox._runtime.spark.reading.state_columns import as_json
from pillarbox._runtime.spark.reading.state_reader import operator_with
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.session.directories import check_session, checked_directory
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._state.chunks.head import LogHead
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView, ViewedRows
from pillarbox._state.keys.key_groups import subtask_of_key
from pillarbox._state.savepoint.manifest import parts_slot_of
from pillarbox._state.savepoint.timer_column import encode_timers
from pillarbox._state.slots import CARRIED, state_name
from pillarbox._state.types.opaque import Opaque
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCHS = 5
# Maximum characters of a value.
_VALUE = 2000
# Maximum number of listed elements per key and operator.
_QUEUE = 20
_reading = threading.Lock()


def key_history(spark: SparkSession, checkpoint: str, uid: str, key: Any) -> dict[str, Any]:
    """Return the state of one key in the last five epochs that Spark retains, as plain data.

    Reads the checkpoint of a running or stopped query, and needs neither the program nor its classes. Spark cannot look
    up a key, so this reads all state of the level (the operators between two shuffles).

    Args:
        checkpoint: the ``checkpointLocation`` of the query.
        uid: the operator's uid, as set with ``.uid("count")``.
        key: the key. A string is parsed as the declared key type. If no type is declared, it is compared with the keys
            in state. "10040" may be a string or a number, "2026-05-01" a date, and '["a", 1]' a key of two columns.

    Returns:
        - ``key``: the key as text; ``subtask``: the index of its subtask;
        - ``epoch``: the last committed epoch; ``epochs``: the epochs that were read, without damaged epochs, which
          ``messages`` names;
        - ``watermark``: the subtask's watermark (Unix time in ms), or None;
        - ``state``: a list of states, each with ``name``, ``value`` as text, ``changed`` (the last of these epochs that
          changed the value, or None) and ``values`` (one per epoch). For a columnar operator, the key's rows;
        - ``timers``: a list of timers, each with ``domain``, ``at`` (Unix time in ms) and ``waits`` (why it has not
          fired);
        - ``calls``: the key's work that is carried into the next epoch: requests, and the first 20 records and timers
          of async keyed functions. Each has ``uid``, ``record`` (as text, or the kind of timers), ``asked`` (when the
          request was made, or None), ``arrived`` (the epoch when the record arrived, or None), ``waits`` (why it is
          pending) and ``recorded`` (its recorded calls, with the outcome "begun", "result" or "error");
        - ``messages``: notices as text; ``took_ms``: the duration of this call.

    Raises:
        CheckpointMismatchError: the checkpoint or operator does not exist, or cannot be read.
        ProgramError: the string is not a key, the string is ambiguous, or another thread is reading a key's history.

    Example:
        >>> key_history(spark, "/checkpoints/flights", "count", "AA")["state"]  # doctest: +SKIP
        [{'name': 'seen', 'value': '17', 'changed': 41, 'values': ['15', '15', '16', '17', '17']}]
    """
    check_session(spark, "key_history()")
    return key_life(spark, checked_directory(checkpoint, "key_history(): checkpoint="), uid, key)


def key_life(spark: SparkSession, checkpoint: str, uid: str, text: Any) -> dict[str, Any]:
    check_text(uid, "key_history(): uid=")
    if isinstance(text, str):
        check_text(text, "key_history(): key=")
    if not _reading.acquire(blocking=False):
        raise ProgramError("the state of another key is being read: try again later")
    try:
        began = time.monotonic()
        with unwrapped_failures(), session_of(spark).job_group(f"pillarbox: the life of a key of {uid}"):
            history = _read(spark, checkpoint, uid, text)
        return {**history, "took_ms": round((time.monotonic() - began) * 1000)}
    finally:
        _reading.release()


def _read(spark: SparkSession, checkpoint: str, uid: str, text: Any) -> dict[str, Any]:
    try:
        return read_epoch(spark, checkpoint, None, partial(_read_key, uid, text))
    except ProgramError:
        raise
    except Exception:
        pass  # perhaps an epoch before the last is damaged
    return read_epoch(spark, checkpoint, None, partial(_read_key, uid, text, one_by_one=True))


def _read_key(uid: str, text: Any, files: CheckpointState, one_by_one: bool = False) -> dict[str, Any]:
    """Read a key's epochs in one job, or ``one_by_one``, without damaged epochs before the last."""
    operator, heads = operator_with(files, uid)
    notes = [head.key for head in heads.values()]
    keys = possible_keys(text, notes) if isinstance(text, str) else [text]
    head = next(iter(heads.values()))
    subtasks = {_subtask(key, head) for key in keys} - {None}
    codes = sorted(code for code, head in heads.items() if head.subtask in subtasks)
    first = files.epoch if files.is_copy else max(operator.first, files.epoch - _EPOCHS + 1)
    epochs = list(range(first, files.epoch + 1))
    looks: list[dict[str, Any]] = []
    damaged: dict[int, str] = {}
    for some in [[epoch] for epoch in epochs] if one_by_one else [epochs]:
        try:
            with unwrapped_failures():
                looks += _looks(files, operator, some, {code: heads[code] for code in codes}, keys) if codes else []
        except Exception as error:
            if files.epoch in some:
                raise
            why = str(error) if isinstance(error, PillarboxError) else damage_in([str(error)], str(files))
            damaged[some[0]] = f"epoch {some[0]} cannot be read: {why or describe(error)}"
    present = [keys[index] for index in sorted({row["reading"] for look in looks for row in look["rows"]})]
    if len(present) > 1:
        why, advice = "the state contains several of them", "pass the key itself to key_history()"
        raise several_keys(str(text), uid, present, why, advice)
    readable = [epoch for epoch in epochs if epoch not in damaged]
    history = describe_key(text if isinstance(text, str) else shorten(text, 200), files.epoch, readable, looks)
    history["messages"] += damaged.values()
    return history


def _subtask(key: Any, head: LogHead) -> int | None:
    try:
        return subtask_of_key(key, head.max_parallelism, head.parallelism)
    except TypeError:
        return None


def _looks(
    files: CheckpointState,
    operator: CheckpointStateOperator,
    epochs: Sequence[int],
    heads: dict[int, LogHead],
    keys: list[Any],
) -> list[dict[str, Any]]:
    chosen = f"code IN ({', '.join(map(str, heads))})"

    def look(epoch: int) -> DataFrame:
        logs = files.logs(operator, epoch).where(chosen)
        return map_in_arrow(logs, "key_life", partial(map_logs, partial(_log_facts, epoch, keys)), "facts STRING")

    rows = reduce(lambda left, right: left.unionAll(right), map(look, epochs)).collect()
    looks = [json.loads(row.facts) for row in rows]
    if any(look["by_columns"] for look in looks):
        for epoch in epochs:
            of_subtasks = rows_in_columns(files, operator, epoch, heads, keys)
            for facts in looks:
                if facts["epoch"] == epoch:
                    facts["rows"] = of_subtasks.get(facts["subtask"], [])
    return looks


def key_in_state(files: CheckpointState, uid: str, text: str, keys: Sequence[Any]) -> Any:
    operator, heads = operator_with(files, uid)
    head = next(iter(heads.values()))
    subtasks = {_subtask(key, head) for key in keys}
    codes = sorted(code for code, head in heads.items() if head.subtask in subtasks)
    logs = files.logs(operator).where(f"code IN ({', '.join(map(str, codes))})")
    with unwrapped_failures():
        rows = map_in_arrow(logs, "key_life", partial(map_logs, partial(_keys_of_log, keys)), "facts STRING").collect()
    return chosen_key(text, uid, keys, [json.loads(row.facts) for row in rows])


def chosen_key(text: str, uid: str, keys: Sequence[Any], looks: Sequence[dict[str, Any]]) -> Any:
    """Return the key that is in the state or, failing that, the only key whose type occurs in the state."""
    present = sorted({index for look in looks for index in look["present"]})
    types = {name for look in looks for name in look["types"]}
    alike = [index for index, key in enumerate(keys) if type(key).__name__ in types]
    chosen = present or alike
    if len(chosen) == 1:
        return keys[chosen[0]]
    why = "the state contains several of them" if present else "the state contains none of them"
    raise several_keys(text, uid, keys, why, "pass subtask=...")


def _keys_of_log(keys: Sequence[Any], code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    present: set[int] = set()
    types: set[str] = set()
    for rows in LogView(store, code).rows():
        types.update(type(key).__name__ for key in rows.keys)
        present.update(index for index, key in enumerate(keys) if any(is_same_key(key, other) for other in rows.keys))
    facts = {"present": sorted(present), "types": sorted(types)}
    yield pa.RecordBatch.from_pydict({"facts": [json.dumps(facts)]})


def _log_facts(epoch: int, keys: list[Any], code: int, store: MemoryChunkStore) -> Iterator[pa.RecordBatch]:
    view = LogView(store, code)
    task, by_columns = view.task_state(), parts_slot_of(view.head) is not None
    gate = task.get("gate") or {}
    facts = {
        "epoch": epoch,
        "subtask": view.head.subtask,
        "watermark": (gate.get("valve") or {}).get("watermark"),
        "by_columns": by_columns,
        "rows": [] if by_columns else [row for rows in view.rows() for row in _rows_of(rows, keys)],
        **_calls_of(task.get("operators") or {}, keys),
    }
    yield pa.RecordBatch.from_pydict({"facts": [json.dumps(facts)]})


def _rows_of(rows: ViewedRows, keys: list[Any]) -> Iterator[dict[str, Any]]:
    indices = [index for index, key in enumerate(rows.keys) if any(is_same_key(key, other) for other in keys)]
    for index in indices:
        row = rows.rows[index]
        timers = encode_timers(rows.layout, [row], by_slot=True).to_pylist()[0] or ()
        yield {
            "key": shorten(rows.keys[index], 200),
            "reading": next(number for number, key in enumerate(keys) if is_same_key(rows.keys[index], key)),
            "namespace": None if rows.namespaces is None else _as_text(rows.namespaces[index]),
            "states": {
                state_name(name): _as_text(value)
                for (name, kind), value in zip(rows.layout, row[1:])
                if kind != "timers" and value is not None
            },
            "timers": [[timer["domain"], timer["timestamp"]] for timer in timers],
        }


def _calls_of(operators: dict[str, Any], keys: list[Any]) -> dict[str, Any]:
    """Return a task's number of pending async calls by operator, and the requests and timers of ``keys``."""
    carried: dict[str, int] = {}
    calls: list[dict[str, Any]] = []
    visits: list[tuple[str, int]] = []
    more = 0
    for uid, state in operators.items():
        entries = [entry for entry in state if type(entry) is tuple] if isinstance(state, list) else []
        if count := sum(len(entry[1]) if entry[0] == "request" else 1 for entry in entries if entry[0] in CARRIED):
            carried[uid] = count
        of_keys = [entry for entry in entries if _index_of(entry, keys) is not None]
        elements = [*_elements(of_keys, keys)]
        more += len(elements[_QUEUE:])
        calls += [{"uid": uid, **call} for call in (*_requests(entries, keys), *elements[:_QUEUE])]
        visits += [(_domain(entry), entry[2]) for entry in of_keys if entry[0] == "visit"]
    return {"carried": carried, "calls": calls, "more_calls": more, "visits": visits}


def _requests(entries: list[tuple[Any, ...]], keys: list[Any]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if entry[0] == "request":
            records, asked = entry[1], entry[-1]
            waits = "capacity, a rate limit or a budget" if asked is None else "the result"
            for record in records:
                if any(_contains_key(record, key) for key in keys):
                    text = _as_text(record)
                    yield {"record": text, "asked": asked, "arrived": None, "waits": waits, "recorded": []}


def _index_of(entry: tuple[Any, ...], keys: list[Any]) -> int | None:
    if entry[0] not in ("element", "visit"):
        return None
    key = entry[2] if entry[0] == "element" else entry[1]
    return next((index for index, other in enumerate(keys) if is_same_key(key, other)), None)


def _domain(visit: tuple[Any, ...]) -> str:
    domain: str = visit[4].parts[-1]  # a TimeDomain, unpickled without its class
    return domain


def _elements(entries: list[tuple[Any, ...]], keys: list[Any]) -> Iterator[dict[str, Any]]:
    ahead: Counter[int | None] = Counter()  # earlier elements, by index of the key
    for entry in entries:
        kind, arrival, calls = entry[0], *entry[-2:]
        count = ahead[_index_of(entry, keys)]
        if kind == "visit" and count:
            continue  # a watermark is queued for each key with elements, even without timers
        ahead[_index_of(entry, keys)] += 1
        yield {
            "record": _as_text(entry[3]) if kind == "element" else f"timers of {_domain(entry)}",
            "asked": None,
            "arrived": arrival,
            "waits": f"{count:,} earlier records of its key" if count else "the end of its function",
            "recorded": [
                f"{name if isinstance(name, str) else 'call without a key'}: {outcome}"
                for name, (_, outcome, _) in ([] if calls is None else calls[1])
            ],
        }


def _contains_key(record: Any, key: Any) -> bool:
    if is_same_key(record, key):
        return True
    if isinstance(record, dict):
        fields = list(record.values())
    elif isinstance(record, (tuple, list)):
        fields = list(record)
    elif isinstance(record, Opaque):
        fields = record.parts
    else:
        return False
    parts = key if isinstance(key, tuple) and key else (key,)
    return all(any(is_same_key(field, part) for field in fields) for part in parts)


def _as_text(value: Any) -> str:
    value = value.parts if isinstance(value, Opaque) else value
    text = as_json(value)
    shown = shorten(value, _VALUE) if text is None else text
    return shown if len(shown) <= _VALUE else f"{shown[: _VALUE - 3]}..."


def describe_key(text: str, epoch: int, epochs: Sequence[int], looks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    by_epoch = {number: [look for look in looks if look["epoch"] == number] for number in epochs}
    now = by_epoch.get(epoch, [])
    subtask = next((look["subtask"] for look in now if look["rows"]), now[0]["subtask"] if now else None)
    watermark = next((look["watermark"] for look in now if look["subtask"] == subtask), None)
    rows = [row for look in now for row in look["rows"]]
    states = {(row["namespace"], name): value for row in rows for name, value in row["states"].items()}
    before = [
        {
            (row["namespace"], name): value
            for look in looks
            for row in look["rows"]
            for name, value in row["states"].items()
        }
        for looks in (by_epoch[number] for number in epochs)
    ]
    messages = []
    if not rows:
        messages.append(f"epoch {epoch} has no state and no timers of this key")
        last = next((number for number in reversed(epochs) if any(look["rows"] for look in by_epoch[number])), None)
        if last is not None:
            messages.append(f"it last had some in epoch {last}")
    visits = [(domain, limit) for look in now for domain, limit in look["visits"]]
    of_subtask = [look for look in now if look["subtask"] == subtask]
    for uid, count in sorted({uid: count for look in of_subtask for uid, count in look["carried"].items()}.items()):
        messages.append(f"{count:,} records of {uid!r} in this subtask are carried into the next epoch")
    if more := sum(look["more_calls"] for look in now):
        messages.append(f"{more:,} more records wait for their turn of this key")
    return {
        "key": rows[0]["key"] if rows else text,
        "subtask": subtask,
        "epoch": epoch,
        "epochs": list(epochs),
        "watermark": watermark,
        "state": [
            {
                "name": name if namespace is None else f"{name} of {namespace}",
                "value": value,
                "changed": _changed(epochs, [values.get((namespace, name)) for values in before]),
                "values": [values.get((namespace, name)) for values in before],
            }
            for (namespace, name), value in sorted(states.items(), key=str)
        ],
        "timers": [
            {"domain": domain, "at": at, "waits": _waits(domain, at, watermark, visits)}
            for domain, at in sorted({(domain, at) for row in rows for domain, at in row["timers"]})
        ],
        "calls": [call for look in now for call in look["calls"]],
        "messages": messages,
    }


def _changed(epochs: Sequence[int], values: Sequence[str | None]) -> int | None:
    changes = [epoch for epoch, previous, value in zip(epochs[1:], values, values[1:]) if previous != value]
    return changes[-1] if changes else None


def _waits(domain: str, at: int, watermark: int | None, visits: Sequence[tuple[str, int]]) -> str:
    if any(clock.startswith(domain) and at <= limit for clock, limit in visits):
        return "the end of its function, or earlier records of its key"
    if domain != "event":
        return "an epoch after this time on the worker's clock"
    if watermark is None or watermark == MIN_TIMESTAMP:
        return "the first watermark in this subtask"
    if watermark >= at:
        return "the next epoch"
    seconds = (at - watermark) / 1000
    return f"event time, which must advance by {seconds:,.1f} s in this subtask"


def no_checkpoint() -> CheckpointMismatchError:
    return CheckpointMismatchError("the query has no checkpoint location of its own, so its state cannot be read")
