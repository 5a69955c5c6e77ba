"""What a task says when its worker's memory is nearly, or all, used up."""

from __future__ import annotations

import pytest

from pillarbox import KeyedProcessFunction, ListStateDescriptor, OperatorError
from pillarbox._elements import Records
from pillarbox._operators.keyed_process import KeyedProcessOperator
from pillarbox._operators.keys import Keying
from pillarbox._state import MemoryChunkStore
from pillarbox._state.sizes import largest_rows
from pillarbox._task import MultipleInputStreamTask
from pillarbox._task.memory import Memory, process_memory, readable
from tests.nodes import node
from tests.task.tasks import report_of, run_shuffled, vertex_of

MIB = 1024 * 1024


class Gather(KeyedProcessFunction):
    def open(self, runtime_context):
        self.all = runtime_context.get_list_state(ListStateDescriptor("all"))

    def process_element(self, value, ctx):
        count = value[1]
        self.all.add_all(["x" * 100] * count)
        if count == 13:
            raise MemoryError


def task_with(probe):
    operator = node(KeyedProcessOperator, "gather", Gather(), Keying(lambda value: value[0], "key_by"))
    vertex = vertex_of(operator, shuffled=True)
    vertex.parallelism = 1
    return MultipleInputStreamTask(vertex, 0, memory=probe)


def test_a_task_warns_once_when_memory_becomes_scarce(caplog):
    memory = [Memory(699 * MIB, 1000 * MIB)]
    task, store = task_with(lambda: memory[0]), MemoryChunkStore()
    report = report_of(run_shuffled(task, store, Records([("a", 100)])))
    assert report["state_bytes"] == pytest.approx(300, rel=0.9) and caplog.messages == []
    for used in (700, 800, 900):
        memory[0] = Memory(used * MIB, 1000 * MIB)
        run_shuffled(task, store, Records([("b", 1)]))
    (warning,) = caplog.messages
    assert "operator 'gather', subtask 0: the worker uses 700 MiB of the 1000 MiB" in warning and "of 2 keys" in warning
    task.close()


def test_a_task_fails_with_a_sentence_before_the_commit():
    task, store = task_with(lambda: Memory(990 * MIB, 1000 * MIB)), MemoryChunkStore()
    with pytest.raises(OperatorError) as failure:
        run_shuffled(task, store, Records([("small", 1), ("large", 5000), ("middle", 1000)]))
    says = str(failure.value)
    assert says.startswith("operator 'gather', subtask 0: the worker has no memory left (990 MiB of 1000 MiB are used)")
    assert "the state of 3 keys" in says and "the largest keys are 'large' (about" in says
    assert says.index("'large'") < says.index("'middle'") < says.index("'small'")
    assert "spark.executor.pyspark.memory" in says
    assert not store.chunks


def test_a_memory_error_is_told_as_what_it_is():
    task = task_with(lambda: None)
    with pytest.raises(OperatorError, match=r"the worker has no memory left; .* the largest keys are 'k'") as failure:
        run_shuffled(task, MemoryChunkStore(), Records([("k", 13)]))
    cause = failure.value.__cause__
    assert isinstance(cause, OperatorError) and isinstance(cause.__cause__, MemoryError)


def test_without_a_limit_there_is_nothing_to_say(caplog):
    task = task_with(lambda: None)
    run_shuffled(task, MemoryChunkStore(), Records([("k", 1)]))
    task.close()
    assert caplog.messages == []


def test_the_limit_of_this_process():
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 46, before[1]))
    try:
        memory = process_memory()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert memory is not None and memory.limit == 1 << 46 and MIB < memory.used < memory.limit


def test_large_values_are_found_without_a_copy():
    rows = {n: [n, ["x" * 10] * n, {n: "y" * n}] for n in range(1000)}
    assert [key for key, _ in largest_rows(rows.items())] == [999, 998, 997]
    assert largest_rows([]) == []
    assert [readable(n) for n in (5, 2048, 5 * MIB, 3 << 30)] == ["5 bytes", "2 KiB", "5 MiB", "3.0 GiB"]


class RaisesFromItself(KeyedProcessFunction):
    def process_element(self, value, ctx):
        error = ValueError("its own cause")
        raise error from error


def test_an_error_may_be_its_own_cause():
    operator = node(KeyedProcessOperator, "loop", RaisesFromItself(), Keying(lambda value: value[0], "key_by"))
    task = MultipleInputStreamTask(vertex_of(operator, shuffled=True), 0)
    with pytest.raises(OperatorError, match="its own cause"):
        run_shuffled(task, MemoryChunkStore(), Records([("a", 1)]))
