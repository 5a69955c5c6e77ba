"""Savepoints of a checkpoint, written by Spark and on the command line, and read by Spark and by Arrow alone."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
from click.testing import CliRunner

import pillarbox
from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    MapStateDescriptor,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
    WatermarkStrategy,
    count_,
    read_state,
    sum_,
)
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.savepoint import savepoint as savepoint_module
from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint, sources_at
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.savepoint.files import LocalSavepoint
from pillarbox_tools.cli import commands
from tests.runtime.savepoint.test_savepoints_by_columns import content
from tests.support.savepoints import restore_logs

pytestmark = pytest.mark.spark

KEYS = 12
# Names that mean something in wildcards and URIs; Spark's reader of state takes fewer of them.
CHECKPOINT, SAVEPOINT = "é+(1)'s=check,point", "save [1] {a,b}*? 5% #é's"


class Remember(KeyedProcessFunction):
    """Counts a key's records, stores the last record's time, and sets a timer in the far future."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.LONG()))
        self.last = runtime_context.get_map_state(MapStateDescriptor("last", Types.STRING(), Types.INSTANT()))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        self.last.put("at", value.happened)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10**9)
        yield ctx.get_current_key(), self.seen.value()


def add(spark: Any, folder: Path, part: int) -> None:
    rows = [(key, 10_000 * part + 700 * key, float(key)) for key in range(KEYS)]
    frame = spark.createDataFrame(rows, "key LONG, at LONG, x DOUBLE").selectExpr(
        "*", "timestamp_millis(at) AS happened", "format_string('key %s', key) AS name"
    )
    frame.coalesce(1).write.mode("append").parquet(str(folder / "in"))


def take(batch: Any, number: int) -> None:
    batch.collect()


def run(spark: Any, folder: Path, checkpoint: str) -> None:
    schema = "key LONG, at LONG, x DOUBLE, happened TIMESTAMP, name STRING"
    read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    env = StreamExecutionEnvironment.get_execution_environment(spark)
    env.set_parallelism(2).set_max_parallelism(16)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    rows = env.from_dataframe(read.parquet(str(folder / "in"))).assign_timestamps_and_watermarks(times)
    remembered = rows.key_by("key").process(Remember()).uid("remember")
    sums = (
        rows.key_by("key", "name")
        .window(TumblingEventTimeWindows.of("1 hour"))
        .aggregate(n=count_(), total=sum_("x"))
        .uid("sums/of x")
    )
    out = remembered.union(sums.map(lambda row: (row.key, row.n))).to_dataframe("key LONG, seen LONG")
    writer = out.writeStream.foreachBatch(take).trigger(availableNow=True)
    pillarbox.start(writer.option("checkpointLocation", checkpoint)).awaitTermination()


@pytest.fixture
def command(spark, monkeypatch):
    @contextmanager
    def session(master, settings, *, verbose):
        yield spark

    monkeypatch.setattr(commands, "session", session)
    return lambda *arguments: CliRunner().invoke(commands.pillarbox, arguments)


def logs_of(spark: Any, checkpoint: str) -> dict[tuple[str, int], MemoryChunkStore]:
    files = CheckpointState(spark, checkpoint)
    results: dict[tuple[str, int], MemoryChunkStore] = {}
    for operator in files.stateful:
        heads = files.heads(operator)
        for code, number, payload in files.logs(operator).collect():
            identity = heads[code].operator, heads[code].subtask
            results.setdefault(identity, MemoryChunkStore()).put(number, bytes(payload))
    return results


def killed(spark: Any, text: str, folder: str) -> None:
    rmtree(folder, ignore_errors=True)
    raise KeyboardInterrupt


def test_a_savepoint(spark, tmp_path, command, monkeypatch):
    checkpoint, directory = str(tmp_path / CHECKPOINT), str(tmp_path / SAVEPOINT)
    for part in range(3):
        add(spark, tmp_path, part)
    run(spark, tmp_path, checkpoint)
    with pytest.raises(
        CheckpointMismatchError, match="is not a savepoint: the file manifest is missing; it is a checkpoint: write"
    ):
        open_savepoint(spark, checkpoint)
    # Of an epoch before, the files that were seen by then.
    assert [len(lines) for lines in sources_at(spark, Checkpoint(spark, checkpoint), 1).files.values()] == [2]

    # An incomplete savepoint is overwritten, whatever it contains: here tables of a removed operator.
    for name, text in (("started", "begun"), ("state/old", "half"), ("tasks", "half")):
        (Path(directory) / name).mkdir(parents=True)
        (Path(directory) / name / "part-0.parquet").write_text(text)
    with pytest.raises(CheckpointMismatchError, match="is incomplete: the file manifest is missing"):
        open_savepoint(spark, directory)
    # A restarted savepoint keeps the mark of incompleteness: Spark would remove it before writing another one.
    with monkeypatch.context() as patch:
        patch.setattr(savepoint_module, "_write_text", killed)
        with pytest.raises(KeyboardInterrupt):
            pillarbox.savepoint(spark, checkpoint, directory)
    result = command("savepoint", checkpoint, directory, "--json")
    assert json.loads(result.stdout)["operators"] == ["remember", "sums/of x"]
    for wrong, reason in ((directory, "is already a savepoint"), (checkpoint, "contains other files")):
        result = command("savepoint", checkpoint, wrong)
        assert result.exit_code == 1
        assert f"exists and {reason}: pass a new directory" in result.stderr

    # Its content.
    opened = open_savepoint(spark, directory)
    manifest = opened.manifest
    assert (manifest.epoch, manifest.checkpoint) == (2, checkpoint)
    assert manifest.sources.offsets == tuple((Path(checkpoint) / "offsets" / "2").read_text().splitlines())
    seen = [json.loads(line)["path"] for line in manifest.sources.files["0"]]
    assert sorted(Path(path).name for path in seen) == sorted(path.name for path in (tmp_path / "in").glob("*.parquet"))
    assert manifest.programs is not None and len(manifest.programs) == 1

    # Its rows are the checkpoint's, however they are read.
    columns = ("key", "seen", "last", "timers")
    rows, same = (read_state(spark, folder, "remember").select(*columns) for folder in (checkpoint, directory))
    assert rows.schema == same.schema
    results = sorted(map(repr, rows.collect()))
    assert results == sorted(map(repr, same.collect())) and len(results) == KEYS
    result = command("state", directory, "remember", "--where", "key = 3", "--json")
    assert json.loads(result.stdout)["seen"] == 3
    results = json.loads(command("inspect", directory, "--json").stdout)
    remember, sums = results["operators"]
    assert (remember["keys"], remember["timers"], remember["states"]["seen"]) == (KEYS, 3 * KEYS, "value LONG")
    assert remember["watermark"] == 20_000 + 700 * (KEYS - 1) - 1 and sums["arrow_rows"] >= KEYS
    for folder in (checkpoint, directory):
        of_columns = read_state(spark, folder, "sums/of x").where("stream IS NOT NULL")
        partials = of_columns.selectExpr("partials.key", "partials.name", "partials.__pillarbox_rows AS n")
        counts = partials.groupBy("key", "name").sum("n").collect()
        assert sorted(map(tuple, counts)) == [(key, f"key {key}", 3) for key in range(KEYS)]

    # With Arrow alone, its logs have the same content as the checkpoint's, with as many subtasks.
    logs = logs_of(spark, checkpoint)
    local = LocalSavepoint(directory)
    for operator in manifest.operators:
        count = operator.parallelism
        new = restore_logs(
            local, operator.uid, [LogIdentity(operator.uid, n, count, operator.max_parallelism) for n in range(count)]
        )
        stores = {(operator.uid, subtask): store for subtask, store in new.items()}
        assert content(stores) == content(
            {identity: log for identity, log in logs.items() if identity[0] == operator.uid}
        )
        spark_own, local_own = (savepoint.own_states(operator.uid) for savepoint in (opened, local))
        assert spark_own == local_own and spark_own[0].task["gate"]


@pytest.mark.long("state/savepoint has damaged files, and state/chunks damaged state, without Spark")
def test_incomplete_savepoints_and_checkpoints(spark, tmp_path, command):
    checkpoint, directory = str(tmp_path / CHECKPOINT), str(tmp_path / SAVEPOINT)
    for part in range(3):
        add(spark, tmp_path, part)
    run(spark, tmp_path, checkpoint)
    pillarbox.savepoint(spark, checkpoint, directory)
    assert "savepoint of epoch 2" in command("inspect", directory).stdout

    # Half a checkpoint is not taken for one without state, nor a savepoint or another query's for a checkpoint.
    half = tmp_path / "half"
    copytree(checkpoint, half)
    levels = sorted(half.glob("state/*"))
    for gone in [levels[0] / "1", levels[0] / "0", *levels]:
        rmtree(gone)
        asked: list[tuple[Any, Any]] = [
            (pillarbox.savepoint, str(tmp_path / "none")),
            (read_state, "remember"),
            (pillarbox.rescale, 1),
        ]
        for ask, argument in asked:
            with pytest.raises(CheckpointMismatchError, match=r": restore the missing folders"):
                ask(spark, str(half), argument)
    assert len(list(half.glob("offsets/[0-9]*"))) == 3 and not (tmp_path / "none").exists()
    rmtree(half / "pillarbox")
    with pytest.raises(CheckpointMismatchError, match="contains no pillarbox state: does it belong to a query"):
        pillarbox.savepoint(spark, str(half), str(tmp_path / "none"))
    with pytest.raises(CheckpointMismatchError, match="is a savepoint, not a checkpoint: start a program from it"):
        pillarbox.savepoint(spark, directory, str(tmp_path / "none"))

    damaged = next((Path(directory) / "tasks").glob("*.parquet"))
    (damaged.parent / f".{damaged.name}.crc").unlink()  # Hadoop's own digests, which not all file systems have
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointMismatchError, match=r"the file tasks/part-.* is damaged"):
        open_savepoint(spark, directory).own_states("remember")
    # Every reader verifies a table; a wrong length is found before.
    table = next((Path(directory) / "state" / "remember").glob("*.parquet"))
    (table.parent / f".{table.name}.crc").unlink()
    whole = table.read_bytes()
    table.write_bytes(whole[:-1] + b"x")
    with pytest.raises(CheckpointMismatchError, match=r"file .*state/remember/part-.* is damaged"):
        read_state(spark, directory, "remember")
    table.write_bytes(whole[:-1])
    with pytest.raises(CheckpointMismatchError, match=r"file .*state/remember/part-.* is damaged"):
        open_savepoint(spark, directory)

    # Queries take any path, and so do their descriptions; operations of Spark's state reader alone are refused.
    elsewhere = tmp_path / "copy [1]" / "5% *"
    copytree(checkpoint, elsewhere)
    then, now = (Checkpoint(spark, str(folder)) for folder in (checkpoint, elsewhere))
    assert (now.last_committed, now.parallelism, now.subtasks()) == (2, 2, then.subtasks())
    copytree(checkpoint, tmp_path / "copy%20[1]" / "5%25%20*")  # it would read that one instead
    for call in (
        lambda directory: read_state(spark, directory, "remember"),
        lambda directory: pillarbox.savepoint(spark, directory, str(tmp_path / "never")),
        lambda directory: pillarbox.rescale(spark, directory, 4),
    ):
        with pytest.raises(
            CheckpointMismatchError, match=r"its path contains a space or one of .* copy the whole checkpo"
        ):
            call(str(elsewhere))
    assert not (tmp_path / "never").exists() and now.last_committed == 2
