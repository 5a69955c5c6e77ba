"""With a different number of subtasks, columnar operators resume from a savepoint as if they had not stopped."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pillarbox import (
    CheckpointMismatchError,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from pillarbox._elements.buffers import dumps_by_name
from pillarbox._elements.records import Records
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.chunks.head import META, LogIdentity, write_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.savepoint.files import LocalSavepoint, write_savepoint
from pillarbox._state.savepoint.new_table import EditedTable
from tests.data import make_checkpoint, make_columns, make_join, make_savepoint
from tests.support.savepoints import restore_logs

PROGRAMS: dict[str, Any] = {"aggregates": make_columns, "joins": make_join}


def moved(program: Any, stores: Savepoint, folder: Any, parallelism: int, groups: int) -> Savepoint:
    write_savepoint(folder, stores, epoch=1)
    savepoint = LocalSavepoint(folder)
    new: Savepoint = {}
    with program.job(parallelism=parallelism, groups=groups) as job:
        for vertex in job.program.vertices:
            if not vertex.is_source:
                identities = [
                    LogIdentity(vertex.uid, n, parallelism, groups, vertex.program, vertex.key, vertex.codes)
                    for n in range(parallelism)
                ]
                logs = restore_logs(savepoint, vertex.uid, identities)
                new.update({(vertex.uid, subtask): store for subtask, store in logs.items()})
    return new


def rest(program: Any, stores: Savepoint, start: int, stop: int, **layout: Any) -> tuple[list[Any], Savepoint]:
    job: LocalJob
    with program.job(stores, **layout) as job:
        job.epoch = start
        out = [program.run(job, number) for number in range(start, stop)]
        return out, job.savepoint()


def content(stores: Savepoint) -> dict[str, list[Any]]:
    results: dict[str, list[Any]] = {}
    for (uid, subtask), store in stores.items():
        for view in LogView(store, subtask).rows():
            for key, namespace, row in zip(view.keys, view.namespaces or repeat(None), view.rows):
                held = {name: shown(value) for (name, _), value in zip(view.layout, row[1:]) if value is not None}
                results.setdefault(uid, []).append((subtask, key, repr(namespace), repr(sorted(held.items()))))
    return {uid: sorted(rows, key=repr) for uid, rows in results.items()}


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {number: shown(stream) for number, stream in value.items()}
    if isinstance(value, set):
        return sorted(value, key=repr)
    if isinstance(value, bytes) and value[:4] == b"\xff\xff\xff\xff":
        return sorted(map(repr, pa.ipc.open_stream(value).read_all().to_pylist()))
    return value


@pytest.mark.slow("a savepoint for each number of subtasks")
@pytest.mark.parametrize("name", PROGRAMS)
def test_other_subtasks(name, tmp_path):
    parallelism, groups = 3, 100
    program = PROGRAMS[name]
    _, stores = rest(program, {}, 0, 4)
    undisturbed, _ = rest(program, stores, 4, program.EPOCHS + 1)
    assert any(map(len, undisturbed[0].values()))
    other = moved(program, stores, tmp_path / "one", parallelism, groups)
    out, again = rest(program, other, 4, 5, parallelism=parallelism, groups=groups)
    # And back again, with the state added in between.
    back = moved(program, again, tmp_path / "two", 2, 128)
    out += rest(program, back, 5, program.EPOCHS + 1)[0]
    assert out == undisturbed


def at_watermark(store: MemoryChunkStore, watermark: int) -> None:
    view = LogView(store, 0)
    task = view.task_state()
    task["gate"]["valve"]["watermark"] = watermark
    store.put(META, write_head(replace(view.head, task=dumps_by_name(task))))


def test_windows_that_have_not_come_equally_far_stay_in_their_subtasks(tmp_path):
    _, stores = rest(make_columns, {}, 0, 4)
    at_watermark(stores["tumbling", 1], 5)
    assert moved(make_columns, stores, tmp_path / "same", 2, 128).keys() == stores.keys()
    words = (
        r"operator 'tumbling': its 2 subtasks had reached different watermarks .*\(5 to \d+\), so .* in 3: keep its 2"
        " subtasks"
    )
    with pytest.raises(CheckpointMismatchError, match=words):
        moved(make_columns, stores, tmp_path / "other", 3, 128)
    # Join rows expire by their own times.
    _, joins = rest(make_join, {}, 0, 4)
    at_watermark(joins["left", 1], 5)
    moved(make_join, joins, tmp_path / "joins", 3, 128)


@pytest.mark.parametrize(
    ("assigner", "stays"),
    [
        (SlidingEventTimeWindows.of(10, 5), True),
        (EventTimeSessionWindows.with_gap(3), True),
        (TumblingEventTimeWindows.of(10), False),
    ],
)
def test_windows_of_rows_that_have_not_come_equally_far(assigner, stays, tmp_path):
    env = StreamExecutionEnvironment()
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair, _: pair[0])
    keyed = env.from_collection([]).assign_timestamps_and_watermarks(times).key_by(lambda pair: pair[0])
    counts = keyed.window(assigner).reduce(lambda total, other: (total[0], total[1] + other[1])).uid("windows")
    env.set_parallelism(2)
    with env.local_job(out=counts) as job:
        (source,) = job.program.sources
        job.run_epoch({source: [[Records([(key, 1) for key in range(9)])]]})
        stores = job.savepoint()
        (vertex,) = (vertex for vertex in job.program.vertices if not vertex.is_source)
        at_watermark(stores["windows", 1], 5)
        write_savepoint(tmp_path, stores, epoch=1)
        names = (vertex.program, vertex.key, vertex.codes)
        identities = [LogIdentity("windows", n, 3, vertex.max_parallelism, *names) for n in range(3)]
        words = r"operator 'windows': its 2 subtasks had reached different watermarks"
        with pytest.raises(CheckpointMismatchError, match=words) if stays else nullcontext():
            restore_logs(LocalSavepoint(tmp_path), "windows", identities)


def test_there_and_back_is_where_it_was(tmp_path):
    _, stores = rest(make_columns, {}, 0, 4)
    other = moved(make_columns, stores, tmp_path / "one", 5, 128)
    assert content(moved(make_columns, other, tmp_path / "two", 2, 128)) == content(stores)


def test_rows_that_people_see(tmp_path):
    _, stores = rest(make_columns, {}, 0, 4)
    write_savepoint(tmp_path / "s", stores, epoch=1)
    batches = [*LocalSavepoint(tmp_path / "s").batches("tumbling")]
    rows = pa.Table.from_batches(batches)
    partials = rows.filter(pc.is_valid(rows["partials"]))["partials"].combine_chunks()
    assert {"card", "shop", "n: count_()[0]"} & set(partials.type.names) == {"card", "shop"}
    assert pc.sum(partials.field("__pillarbox_rows")).as_py() > 20
    assert rows["key"].null_count == rows.num_rows
    # Window timers have no key group: each subtask takes the timers of its panes.
    timers = rows.filter(pc.is_valid(rows["timers"]))
    assert timers.num_rows and timers["key_group"].null_count == timers.num_rows


@pytest.mark.parametrize("uid", ["tumbling", "left"])
def test_edited_rows_lie_where_records_of_their_keys_come(uid, tmp_path):
    write_savepoint(tmp_path / "s", rest(make_columns if uid == "tumbling" else make_join, {}, 0, 4)[1], epoch=1)
    savepoint = LocalSavepoint(tmp_path / "s")
    table = savepoint.table(uid)
    rows = pa.Table.from_batches([*savepoint.batches(uid)]).combine_chunks().to_batches()[0]
    index = rows.schema.get_field_index("key_group")
    elsewhere = pa.array([(group + 1) % 128 if group is not None else None for group in rows[index].to_pylist()])
    edited = EditedTable(table.operator)
    for variant in (
        rows.drop_columns(["key_group"]),
        rows.set_column(index, "key_group", elsewhere.cast(pa.int32())),
        rows.set_column(index, "key_group", pa.array([1000] * rows.num_rows, pa.int32())),
    ):
        (encoded,) = edited.encode(variant)
        assert encoded["key_group"].equals(rows["key_group"]) and encoded.num_rows == rows.num_rows
    shares = list(table.route(rows, 4, table.operator.max_parallelism))
    parts = [part.name for part in table.operator.parts]
    assert sum(count_of(share, parts) for _, share in shares) == count_of(rows, parts) > 20
    # A file with wrong groups has the same shares: Arrow rows are hashed anew.
    wrong = rows.set_column(index, "key_group", elsewhere.cast(pa.int32()))
    assert [subtask for subtask, _ in shares] == [
        subtask
        for (subtask, share), (_, right) in zip(table.route(wrong, 4, table.operator.max_parallelism), shares)
        if repr(share.drop_columns(["key_group"]).to_pylist()) == repr(right.drop_columns(["key_group"]).to_pylist())
    ]
    outside = rows.set_column(index, "key_group", pa.array([128] * rows.num_rows, pa.int32()))
    with pytest.raises(CheckpointMismatchError, match=f"operator '{uid}': .* key_group 128, and key groups are 0 to"):
        list(table.route(outside, 4, table.operator.max_parallelism))


def count_of(batch: pa.RecordBatch, parts: list[str]) -> int:
    return sum(len(batch[part]) - batch[part].null_count for part in parts)


@pytest.mark.parametrize(
    "path", sorted(make_checkpoint.HERE.glob("savepoint-format-*.zip")), ids=lambda path: path.stem
)
def test_the_golden_savepoint(path, tmp_path):
    make_savepoint.unpack(path, tmp_path)
    savepoint = LocalSavepoint(tmp_path)
    assert (savepoint.manifest.epoch, savepoint.manifest.sources.offsets[2]) == (13, '{"logOffset":0}')
    logs = make_savepoint.logs()
    joins: Savepoint = {}
    for operator in savepoint.manifest.operators:
        layout = operator.parallelism, operator.max_parallelism
        identities = [LogIdentity(operator.uid, n, *layout, operator.program) for n in range(operator.parallelism)]
        new = {(operator.uid, n): log for n, log in restore_logs(savepoint, operator.uid, identities).items()}
        old = {identity: log for identity, log in logs.items() if identity[0] == operator.uid}
        if operator.uid in ("inner", "left"):
            joins.update(new)  # whose rows lie in other streams
        else:
            assert content(new) == content(old)
        for identity, log in new.items():
            views = [LogView(store, 0) for store in (log, old.pop(identity))]
            assert views[0].head.types == views[1].head.types
            after, before = (view.task_state() for view in views)
            assert after.get("gate", {}).get("valve") == before.get("gate", {}).get("valve")
            assert repr(after.get("operators") or {}) == repr(before.get("operators") or {})
        assert not old
    stores_of_joins = {identity: logs[identity] for identity in joins}
    out, expected = (
        rest(make_join, stores, make_join.EPOCHS, make_join.EPOCHS + 1)[0] for stores in (joins, stores_of_joins)
    )
    assert out == expected and all(map(len, out[0].values()))
