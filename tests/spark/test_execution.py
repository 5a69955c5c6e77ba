from __future__ import annotations

import random
import time
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import pillarbox
from pillarbox import (
    CheckpointMismatchError,
    Function,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ProgramError,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from tests.simulation.every_program import PROGRAMS
from tests.simulation.programs.program import outcome

pytestmark = pytest.mark.spark

KEYS = 50
ROWS = 2_000


class Place(ProcessFunction):
    """Adds the subtask's index and the number of subtasks to each record."""

    def open(self, runtime_context):
        self.place = runtime_context.get_index_of_this_subtask(), runtime_context.get_number_of_parallel_subtasks()

    def process_element(self, value, ctx):
        yield *value, *self.place


class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, row, ctx):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(row.at + 10**9)

    def on_timer(self, timestamp, ctx):
        if timestamp == max(range(ctx.get_current_key(), ROWS, KEYS)) + 10**9:
            yield ctx.get_current_key(), self.count.value()


def environment(spark, mode=RuntimeExecutionMode.BATCH):
    return StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(3).set_runtime_mode(mode)


def test_batch_mode_parallelism_and_chains(spark, tmp_path):
    rows = spark.range(0, ROWS, 1, 4).selectExpr(f"id % {KEYS} AS key", "id AS at", "1L AS n")
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    keyed = environment(spark).from_dataframe(rows).assign_timestamps_and_watermarks(times).key_by("key")
    sums = keyed.sum("n").set_parallelism(2).map(lambda row: (row.key, row.n)).set_parallelism(2)
    placed = sums.process(Place()).set_parallelism(2).start_new_chain().process(Place()).set_parallelism(1)
    results = sorted(placed.execute_and_collect())
    assert [(key, n) for key, n, *_ in results] == [(key, ROWS // KEYS) for key in range(KEYS)]
    assert {tuple(placement) for _, _, *placement in results} == {(0, 2, 0, 1), (1, 2, 0, 1)}
    totals = keyed.process(Total()).to_dataframe("key LONG, n LONG")
    assert sorted(map(tuple, totals.collect())) == [(key, ROWS // KEYS) for key in range(KEYS)]

    stream = spark.readStream.schema("key LONG").parquet(str(tmp_path))
    with pytest.raises(ProgramError, match="batch mode needs bounded sources, but 'dataframe' is a streaming DataF"):
        environment(spark).from_dataframe(stream).key_by("key").sum("key").to_dataframe("key LONG")
    automatic = environment(spark, RuntimeExecutionMode.AUTOMATIC).from_dataframe(stream).key_by("key").sum("key")
    assert automatic.to_dataframe("key LONG").isStreaming


def tagged(output, value):
    return output, value


@pytest.mark.parametrize("name", ["both-in-turn", "every-state", "rules-by-time"])
def test_batch_mode_is_what_plain_python_says(spark, name):
    program = PROGRAMS[f"{name}-in-batch-mode"]
    inputs = program.inputs(random.Random(7))
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
    streams = []
    for source, values in inputs.items():
        assert values
        rows = spark.createDataFrame(values).coalesce(1)  # a key's records are in one partition
        streams.append(env.from_dataframe(rows, source).map(tuple))
    built: Any = program.build(env, *streams)
    outputs: dict[str, Any] = built if isinstance(built, dict) else {"output": built}
    named = [stream.map(partial(tagged, output)) for output, stream in outputs.items()]
    results: dict[str, list[Any]] = {output: [] for output in outputs}
    together = named[0].union(*named[1:]) if len(named) > 1 else named[0]
    for output, value in together.execute_and_collect():
        results[output].append(value)
    assert program.oracle is not None
    assert outcome(program, results) == outcome(program, program.oracle(inputs))


class Counting(MapFunction):
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context):
        self.calls = (self.folder / f"calls-{runtime_context.get_index_of_this_subtask()}").open("a")

    def map(self, row):
        self.calls.write(".")
        return row.id

    def close(self):
        self.calls.close()
        (self.folder / "closed").touch()


class Noting(Function):
    """Writes into files when it is opened and closed. Used as a function and for requests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context):
        self.name = uuid4().hex
        (self.folder / f"opened {self.name}").touch()

    def __call__(self, row):
        return row

    def close(self):
        (self.folder / f"closed {self.name}").touch()


class NotingMap(Noting, MapFunction):
    def map(self, row):
        return row


def test_functions_before_the_first_shuffle_of_a_batch_are_closed_with_their_tasks(spark, tmp_path):
    def names(word):
        return {path.name.removeprefix(word) for path in tmp_path.iterdir() if path.name.startswith(word)}

    rows = spark.range(0, 8, 1, 4)
    stream = environment(spark).from_dataframe(rows).map(NotingMap(tmp_path)).map_async(Noting(tmp_path))
    assert len(stream.map(NotingMap(tmp_path), on_error=OutputTag("bad")).execute_and_collect()) == 8
    assert names("opened ") == names("closed ") and len(names("opened ")) == 3 * 4


def test_results_that_are_not_all_read(spark, tmp_path):
    def calls():
        return sum(path.stat().st_size for path in folder.iterdir())

    folder = tmp_path / "limit"
    folder.mkdir()
    rows = spark.range(0, 400_000, 1, 8)
    first = environment(spark).from_dataframe(rows).map(Counting(folder)).execute_and_collect(limit=5)
    assert first == [0, 1, 2, 3, 4]
    assert calls() < 400_000
    deadline = time.monotonic() + 300
    while not (folder / "closed").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    folder = tmp_path / "close"
    folder.mkdir()
    with environment(spark).from_dataframe(rows).map(Counting(folder)).execute_and_collect() as results:
        assert next(results) == 0
    assert calls() < 400_000


def test_a_streaming_query_with_subtasks_of_several_numbers(spark, tmp_path):
    def query(own):
        read = spark.readStream.schema("key LONG").parquet(str(tmp_path / "in"))
        env = environment(spark, RuntimeExecutionMode.AUTOMATIC).set_parallelism(2)
        counts = env.from_dataframe(read).map(lambda row: (row.key % 7, 1)).key_by(lambda pair: pair[0])
        totals = counts.sum(1).uid("sums").set_parallelism(own).process(Place()).set_parallelism(own).disable_chaining()
        frame = totals.to_dataframe("key LONG, n LONG, subtask INT, of INT")
        writer = frame.writeStream.format("memory").queryName("several").trigger(availableNow=True)
        return writer.option("checkpointLocation", str(tmp_path / "checkpoint"))

    spark.range(35).selectExpr("id AS key").coalesce(1).write.parquet(str(tmp_path / "in"))
    pillarbox.start(query(1)).awaitTermination()
    rows = [tuple(row) for row in spark.table("several").collect()]
    assert sorted((key, n) for key, n, _, _ in rows) == [(key, n) for key in range(7) for n in range(1, 6)]
    assert {(subtask, of) for _, _, subtask, of in rows} == {(0, 1)}
    with pytest.raises(
        CheckpointMismatchError, match=r"operator 'sums' had parallelism 1, and now has 2.*set_parallelism\(1\)"
    ):
        pillarbox.start(query(2))
