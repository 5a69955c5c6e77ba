"""Requirements on the Python of Spark's processes. A keyed program needs the same packages as Spark's own API."""

from __future__ import annotations

import base64
import subprocess
import sys

import pytest
from pyspark import cloudpickle

from pillarbox import ConfigurationError
from pillarbox._graph.layout import Layout
from pillarbox._operators.async_io.api.libraries import import_library
from pillarbox._runtime.spark.homes.relay import RelaySettings
from pillarbox._runtime.spark.rows.output import BufferOutput
from pillarbox._runtime.spark.tasks.task_info import TaskLayout
from pillarbox._runtime.spark.worker.processor import Processor
from pillarbox._runtime.spark.worker.task_host import TaskHost

BLOCK = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""

KEYED = """
import pillarbox._runtime.spark.rows.output
import pillarbox._runtime.spark.worker.processor
import pillarbox._runtime.spark.worker.source_host
import pillarbox._runtime.spark.worker.task_host
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from pillarbox._runtime.shipping import ship

class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)
        yield value, self.seen.value()

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2).set_max_parallelism(2)
counts = env.from_collection([1, 2, 1]).key_by(lambda n: n).process(Count()).uid("count")
print(sorted(counts.execute_and_collect()))
"""

LOAD = """
import base64
from pyspark import cloudpickle

class Handle:
    def getMapState(self, name, key, value):
        print(name, key.simpleString(), value.simpleString())

processor = cloudpickle.loads(base64.b64decode({pickled!r}))
processor.init(Handle())
try:
    list(processor.handleInputRows((1,), iter(()), None))
except ImportError as error:
    print(error)
"""


def run_without(blocked: set[str], code: str) -> list[str]:
    command = [sys.executable, "-c", BLOCK.format(blocked=blocked) + code]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_a_keyed_program_runs_without_the_libraries_of_others():
    output = run_without({"cachetools", "cloudpickle", "grpc", "uvloop", "zstandard"}, KEYED)
    assert output == ["[(1, 1), (1, 2), (2, 1)]"]


def test_the_states_are_declared_where_pillarbox_is_not():
    layout = TaskLayout("0", (), Layout(1, 1))
    processor = Processor(TaskHost({}, layout, BufferOutput(None), False, RelaySettings.of({}, "", 1)))
    pickled = base64.b64encode(cloudpickle.dumps(processor))
    declared, error = run_without({"pillarbox"}, LOAD.format(pickled=pickled))
    assert declared == "log struct<chunk:bigint> struct<payload:binary>"
    assert error.startswith("No module named 'pillarbox") and "--py-files" in error


@pytest.mark.parametrize(("name", "option"), [("cachetools", "cache")])
def test_a_library_that_an_option_needs_is_named(monkeypatch, name, option):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigurationError,
        match=f"^{option} of async I/O needs {name}, .*: install it for .*, with pip install {name}$",
    ):
        import_library(name, option)
