"""Queries end between two epochs: on a signal, on request, or with ``availableNow``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor, WatermarkStrategy
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.running import query as query_module
from pillarbox._runtime.spark.running.ending import EndingGate, end_query
from pillarbox._runtime.spark.running.query_command import stop_query
from pillarbox._runtime.spark.starting.started import find
from pillarbox_tools.cli import commands

pytestmark = pytest.mark.spark

RESCALES = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)

# A program that never ends by itself. Its second epoch runs until the file "go" exists; files have its progress.
SERVICE = """
import signal, sys, time
from pathlib import Path
import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from pillarbox._runtime.spark.running import query as watch
from pyspark.sql import SparkSession

watch._REQUESTS_EVERY = 0.2  # how often it looks for requests: none of that is said either
home = Path(sys.argv[1])

class Count(KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", int))
    def process_element(self, row, context):
        self.seen.update((self.seen.value() or 0) + 1)
        if self.seen.value() == 2:
            (home / "begun").touch()
            while not (home / "go").exists():
                time.sleep(0.01)
        yield row.value, self.seen.value()
    def close(self):
        (home / "closed").touch()

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.python.daemon.module", "tests.support.daemon")
spark = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
spark.sparkContext.setLogLevel("WARN")
rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load().selectExpr("value % 1 AS value")
env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
out = env.from_dataframe(rows).key_by("value").process(Count()).uid("count").to_dataframe("value LONG, n LONG")
writer = out.writeStream.format("noop").option("checkpointLocation", str(home / "checkpoint"))
query = pillarbox.start({writer})
{wait}
print("ended", query.isActive, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


def epochs(checkpoint: Path) -> tuple[int, int]:
    begun, committed = (
        max(int(path.name) for path in (checkpoint / part).iterdir() if path.name.isdigit())
        for part in ("offsets", "commits")
    )
    return begun, committed


def wait_for(what: Path, process: subprocess.Popen[bytes]) -> None:
    while not what.exists():
        assert process.poll() is None, (what.parent / "err").read_text()
        time.sleep(0.05)


def service(folder: Path, python: str, wait: str, writer: str = "writer") -> subprocess.Popen[bytes]:
    script = folder / "service.py"
    script.write_text(SERVICE.replace("{wait}", wait).replace("{writer}", writer))
    variables = {**os.environ, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, str(script), str(folder)]
    with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
        return subprocess.Popen(command, env=variables, stdout=out, stderr=err)


def outcome(folder: Path, process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    code = process.wait()
    return code, (folder / "out").read_text(), (folder / "err").read_text()


@pytest.mark.long("a driver of its own; runtime/queries/test_run.py has signals, and test_stop.py stops a query")
def test_a_service_ends_in_good_order_at_a_signal(spark, workers_python, tmp_path):
    process = service(tmp_path, workers_python, "pillarbox.run(query, grace='5 minutes')")
    wait_for(tmp_path / "begun", process)
    process.send_signal(signal.SIGTERM)
    (tmp_path / "go").touch()
    code, out, err = outcome(tmp_path, process)
    assert (code, out) == (0, "ended False True\n"), err
    assert (tmp_path / "closed").exists()
    begun, committed = epochs(tmp_path / "checkpoint")
    assert begun == committed >= 1
    assert "pillarbox: SIGTERM: query" in err and not any(
        word in err for word in ("ERROR", "Traceback", "Exception", "\tat ", "Map state log")
    ), err
    if RESCALES:
        assert pillarbox.rescale(spark, str(tmp_path / "checkpoint"), 1)


@pytest.mark.long("a service that a signal ends says nothing either")
def test_a_script_that_ends_with_its_query_says_nothing_of_errors(workers_python, tmp_path):
    (tmp_path / "go").touch()
    wait, writer = "while query.isActive: time.sleep(0.05)", "writer.trigger(availableNow=True)"
    process = service(tmp_path, workers_python, wait, writer)
    code, out, err = outcome(tmp_path, process)
    assert (code, out) == (0, "ended False True\n"), err
    assert (tmp_path / "closed").exists()
    assert not any(word in err for word in ("ERROR", "Traceback")), err


class Slow(KeyedProcessFunction):
    """Counts a key's records. At each record after the first, waits until a file exists."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", int))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        if self.seen.value() > 1:
            self.go.with_name("begun").touch()
            while not self.go.exists():
                time.sleep(0.01)
        yield value.id, self.seen.value()


def add(spark: Any, folder: Path) -> None:
    rows = spark.range(4).selectExpr("id", "timestamp_millis(id) AS at").coalesce(1)
    rows.write.mode("append").parquet(str(folder / "in"))


def start(spark: Any, folder: Path, *, idle: bool = False, **trigger: Any) -> Any:
    read = spark.readStream.schema("id LONG, at TIMESTAMP").parquet(str(folder / "in"))
    # A slow epoch leaves one of the session's two cores to others.
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(1).set_max_parallelism(2)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    rows = env.from_dataframe(read).assign_timestamps_and_watermarks(times.with_idleness("1 second") if idle else times)
    counted = rows.key_by("id").process(Slow(folder / "go")).uid("count").to_dataframe("id LONG, n LONG")
    writer = counted.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    return pillarbox.start(writer.trigger(**trigger) if trigger else writer)


def test_a_query_is_stopped_from_elsewhere_behind_the_epoch_that_runs(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(query_module, "_REQUESTS_EVERY", 0.2)
    checkpoint = str(tmp_path / "checkpoint")
    add(spark, tmp_path)
    query = start(spark, tmp_path)
    query.processAllAvailable()
    add(spark, tmp_path)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    messages: list[str] = []
    asking = threading.Thread(
        target=stop_query, args=(spark, checkpoint), kwargs={"timeout": 400, "notify": messages.append}
    )
    asking.start()
    while query.isActive and asking.is_alive():
        time.sleep(0.05)
    assert epochs(tmp_path / "checkpoint") == (1, 0), "it is to wait for the epoch that runs"
    (tmp_path / "go").touch()
    query.awaitTermination()
    assert epochs(tmp_path / "checkpoint") == (1, 1)
    asking.join()
    assert messages[0] == "waiting for the query's driver to accept the request" and query.exception() is None
    if RESCALES:
        assert pillarbox.rescale(spark, checkpoint, 2)


@pytest.mark.long("it prints what the tests before have from the function")
def test_the_commands_output_for_a_stopped_query(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(query_module, "_REQUESTS_EVERY", 0.2)

    class Session:
        def __enter__(self) -> Any:
            return spark

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(commands, "session", lambda *args, **options: Session())
    checkpoint = str(tmp_path / "checkpoint")
    add(spark, tmp_path)
    query = start(spark, tmp_path, processingTime="1 hour")  # it waits for the next trigger
    while query.lastProgress is None:
        time.sleep(0.05)
    result = CliRunner().invoke(commands.pillarbox, ["stop", checkpoint])
    assert result.stdout == f"{checkpoint}: the query is stopped after epoch 0\n", result.output
    assert not query.isActive
    result = CliRunner().invoke(commands.pillarbox, ["stop", checkpoint])
    assert result.stderr == "an earlier command has already done it\n"
    add(spark, tmp_path)
    query = start(spark, tmp_path)
    while not (tmp_path / "begun").exists():
        time.sleep(0.05)
    result = CliRunner().invoke(commands.pillarbox, ["stop", checkpoint, "--timeout", "3", "--json"])
    assert result.exit_code == 0 and result.stdout.endswith('"last_epoch": 0, "unfinished_epoch": 1}\n'), result.output
    query.awaitTermination()
    assert query.exception() is None


def test_available_now_ends_between_epochs_where_the_clock_counts(spark, tmp_path):
    (tmp_path / "go").touch()
    add(spark, tmp_path)
    query = start(spark, tmp_path, idle=True, availableNow=True)
    query.awaitTermination()
    assert query.exception() is None
    begun, committed = epochs(tmp_path / "checkpoint")
    assert begun == committed
    assert Checkpoint(spark, str(tmp_path / "checkpoint")).unfinished is None
    if RESCALES:
        assert pillarbox.rescale(spark, str(tmp_path / "checkpoint"), 2)


def test_an_epoch_that_is_being_planned_is_run_and_committed(spark, tmp_path):
    (tmp_path / "go").touch()
    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(1)
    rows = env.from_dataframe(numbers.selectExpr("value AS id"))
    out = rows.key_by("id").process(Slow(tmp_path / "go")).uid("count").to_dataframe("id LONG, n LONG")
    query = pillarbox.start(out.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")))
    gate = EndingGate(query)
    while not (gate.has_begun() and ".runBatch(" in (stack := gate.stack()) and ".SQLExecution$" not in stack):
        assert query.isActive, query.exception()
    started = find(query)
    assert started is not None
    assert end_query(started, lambda: True) and query.exception() is None
    begun, committed = epochs(tmp_path / "checkpoint")
    assert begun == committed
