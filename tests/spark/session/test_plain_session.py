"""What a healthy program says in a session with nothing set: Spark's default log level shows warnings."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import json, os, pathlib, sys, threading, time
from pyspark.sql import SparkSession
import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from pillarbox._runtime.spark.running import query as watch

watch._REQUESTS_EVERY = 0.2


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        yield value.k, self.count.value()


os.environ["PYSPARK_PYTHON"] = sys.executable
home = pathlib.Path(sys.argv[1])
(home / "in").mkdir()
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.readStream.schema("k STRING").json(str(home / "in"))
env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
counts = env.from_dataframe(rows).key_by("k").process(Count()).uid("count").to_dataframe("k STRING, n LONG")
looks = 0
look = watch.RequestWatch.look


def counted(self):
    global looks
    looks += 1
    look(self)


watch.RequestWatch.look = counted
writer = counts.writeStream.format("json").option("path", str(home / "out"))
query = pillarbox.start(writer.option("checkpointLocation", str(home / "checkpoint")))
for number in range(3):
    (home / f"{number}.json").write_text(json.dumps({"k": "a"}))
    (home / f"{number}.json").rename(home / "in" / f"{number}.json")
    query.processAllAvailable()
while looks < 5:
    time.sleep(0.01)
query.stop()
for thread in threading.enumerate():
    if thread.name.startswith("pillarbox query"):
        thread.join()
print(sorted(row.n for row in spark.read.json(str(home / "out")).collect()))
"""


@pytest.mark.spark
@pytest.mark.long("starting/test_ending.py looks at what a query logs in such a session")
def test_a_healthy_query_logs_no_stack_trace(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout.splitlines()[-1:] == ["[1, 2, 3]"], done.stderr
    said = [
        line for line in done.stderr.splitlines() if "\tat " in line or "Exception" in line or "Map state log" in line
    ]
    assert said == []
