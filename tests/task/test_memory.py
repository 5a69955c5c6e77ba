from __future__ import annotations

import os
from pathlib import Path

import pytest

from pillarbox import KeyedProcessFunction, ListStateDescriptor, OperatorError
from pillarbox._elements.records import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.types.sizes import largest_rows
from pillarbox._task.memory import Memory, PrivateMemory, container_limit, process_memory, readable
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from tests.support.nodes import node
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
    assert "the worker uses 700 MiB of its 1000 MiB" in warning and "of 2 keys" in warning
    assert warning.endswith(" (operator 'gather', subtask 0, epoch 2)")
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


def test_a_task_names_its_share_of_a_full_container(caplog):
    memory = [Memory(899 * MIB, 1000 * MIB, 100 * MIB)]
    task, store = task_with(lambda: memory[0]), MemoryChunkStore()
    run_shuffled(task, store, Records([("a", 1)]))
    assert caplog.messages == []
    # Other processes have to give back their memory: the task does not fail for it.
    memory[0] = Memory(999 * MIB, 1000 * MIB, 100 * MIB)
    for _ in range(2):
        run_shuffled(task, store, Records([("b", 1)]))
    (warning,) = caplog.messages
    assert "the container's processes use 999 MiB of its 1000 MiB of memory" in warning
    assert "and this worker may use 100 MiB of it" in warning and "spark.executor.memoryOverhead" in warning
    memory[0] = Memory(1000 * MIB, 1000 * MIB, 990 * MIB)
    with pytest.raises(OperatorError, match=r"\(990 MiB of 1000 MiB are used\).* raise spark.executor.memoryOverhead"):
        run_shuffled(task, store, Records([("c", 1)]))


def test_a_memory_error_is_reported_as_itself():
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


class Machine:
    """The kernel's files on a process and its control groups."""

    def __init__(self, folder: Path, resident: int) -> None:
        self.root, self.process = folder / "cgroup", folder / "process"
        page = os.sysconf("SC_PAGE_SIZE")
        self.write(self.process / "statm", f"{10 * resident // page} {resident // page} 1 1 0 1 0")

    def write(self, file: Path, says: object) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{says}\n")

    def group(self, version: int, path: str, used: int, limit: object, **statistics: int) -> None:
        folder = self.root / ("" if version == 2 else "memory") / path
        self.write(folder / ("memory.current" if version == 2 else "memory.usage_in_bytes"), used)
        self.write(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"), limit)
        values = {"pgfault": 1, **statistics}
        self.write(folder / "memory.stat", "\n".join(f"{name} {amount}" for name, amount in values.items()))

    def memory(self) -> Memory | None:
        return process_memory(str(self.root), str(self.process))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path, 100 * MIB)


def test_all_processes_of_a_container_share_its_limit(machine):
    machine.write(machine.process / "cgroup", "0::/")
    machine.group(2, "", 950 * MIB, 1000 * MIB, anon=900 * MIB)
    assert machine.memory() == Memory(950 * MIB, 1000 * MIB, 100 * MIB)
    # Kubernetes can change the resources of a pod that runs.
    machine.group(2, "", 950 * MIB, 2000 * MIB)
    assert machine.memory() == Memory(950 * MIB, 2000 * MIB, 100 * MIB)
    machine.group(2, "", 950 * MIB, "max")
    assert machine.memory() is None


def test_files_that_the_kernel_keeps_at_hand_are_no_use_of_memory(machine):
    cached = {"inactive_file": 300 * MIB, "active_file": 80 * MIB, "slab_reclaimable": 20 * MIB}
    machine.group(2, "", 990 * MIB, 1000 * MIB, anon=500 * MIB, **cached)
    memory = machine.memory()
    assert memory == Memory(590 * MIB, 1000 * MIB, 100 * MIB) and not memory.is_scarce


def test_a_container_of_the_first_version(machine):
    # Without a namespace, a container's path is the machine's, and its files are at the root.
    machine.write(machine.process / "cgroup", "12:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/system.slice")
    machine.group(1, "", 990 * MIB, 1000 * MIB, total_inactive_file=50 * MIB, inactive_file=1, total_active_file=MIB)
    assert machine.memory() == Memory(939 * MIB, 1000 * MIB, 100 * MIB)


def test_the_fullest_of_several_groups_counts(machine):
    machine.write(machine.process / "cgroup", "0::/yarn/container_1")
    machine.group(2, "yarn/container_1", 400 * MIB, 1000 * MIB)
    machine.group(2, "yarn", 3900 * MIB, 4000 * MIB)
    machine.group(2, "", 5000 * MIB, "max")
    assert machine.memory() == Memory(3900 * MIB, 4000 * MIB, 100 * MIB)


def test_the_limit_of_a_container_is_the_smallest_of_its_groups(machine):
    machine.write(machine.process / "cgroup", "0::/yarn/container_1")
    assert container_limit(str(machine.root), str(machine.process)) is None
    other = Machine(machine.root.parent / "other", 100 * MIB)
    other.write(other.process / "cgroup", "0::/yarn/container_1")
    other.group(2, "yarn/container_1", 400 * MIB, 1000 * MIB)
    other.group(2, "yarn", 900 * MIB, 4000 * MIB)
    other.group(2, "", 5000 * MIB, "max")
    assert container_limit(str(other.root), str(other.process)) == 1000 * MIB
    other.group(2, "yarn/container_1", 400 * MIB, "max")
    assert container_limit(str(other.root), str(other.process)) == 4000 * MIB


class Clock:
    now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


def test_pages_of_several_processes_do_not_count(machine):
    clock = Clock()
    memory = PrivateMemory(str(machine.process), clock)
    machine.write(
        machine.process / "smaps_rollup", "55-ff ---p\nRss: 102400 kB\nPrivate_Clean: 20480 kB\nPrivate_Dirty: 20480 kB"
    )
    assert memory.bytes() == 40 * MIB
    # Growth since then counts as its own, until the next measurement is due.
    page = os.sysconf("SC_PAGE_SIZE")
    machine.write(machine.process / "statm", f"0 {150 * MIB // page} 1 1 0 1 0")
    machine.write(machine.process / "smaps_rollup", "55-ff ---p\nPrivate_Dirty: 143360 kB")
    assert memory.bytes() == 90 * MIB
    clock.now += 1000
    assert memory.bytes() == 140 * MIB


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_is_measured_anew(machine):
    memory = PrivateMemory(str(machine.process), Clock())
    machine.write(machine.process / "smaps_rollup", "Private_Dirty: 40960 kB")
    assert memory.bytes() == 40 * MIB
    machine.write(machine.process / "smaps_rollup", "Private_Dirty: 10240 kB")
    pid = os.fork()
    if not pid:
        os._exit(memory.bytes() != 10 * MIB)
    assert os.waitpid(pid, 0)[1] == 0
    assert memory.bytes() == 40 * MIB


def test_a_kernel_that_does_not_tell_of_shared_pages(machine):
    assert PrivateMemory(str(machine.process)).bytes() == 100 * MIB
    (machine.process / "statm").unlink()
    assert PrivateMemory(str(machine.process)).bytes() is None


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells")
def test_the_memory_of_this_process():
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    private = PrivateMemory().bytes()
    assert private is not None and MIB < private < resident


@pytest.mark.parametrize("limit", [1 << 63, "max"])
def test_a_group_without_a_limit(machine, limit):
    machine.group(2 if limit == "max" else 1, "", 900 * MIB, limit)
    assert machine.memory() is None


@pytest.mark.parametrize(("used", "shared"), [(950 * MIB, True), (500 * MIB, False)])
def test_of_two_limits_the_scarce_one_counts(machine, used, shared):
    resource = pytest.importorskip("resource")
    machine.group(2, "", used, 1000 * MIB)
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 46, before[1]))
    try:
        memory = machine.memory()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    expected = Memory(used, 1000 * MIB, 100 * MIB) if shared else Memory(1000 * MIB, 1 << 46)
    assert memory == expected


def test_large_values_are_found_without_a_copy():
    rows = {n: [n, ["x" * 10] * n, {n: "y" * n}] for n in range(1000)}
    assert [key for key, _ in largest_rows(rows.items())] == [999, 998, 997]
    assert largest_rows([]) == []
    assert [readable(n) for n in (5, 2048, 5 * MIB, 3 << 30)] == ["5 bytes", "2 KiB", "5 MiB", "3 GiB"]


class RaisesFromItself(KeyedProcessFunction):
    def process_element(self, value, ctx):
        error = ValueError("its own cause")
        raise error from error


def test_an_error_may_be_its_own_cause():
    operator = node(KeyedProcessOperator, "loop", RaisesFromItself(), Keying(lambda value: value[0], "key_by"))
    task = MultipleInputStreamTask(vertex_of(operator, shuffled=True), 0)
    with pytest.raises(OperatorError, match="its own cause"):
        run_shuffled(task, MemoryChunkStore(), Records([("a", 1)]))
