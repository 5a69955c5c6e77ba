from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

from pillarbox_tools.model.epochs import epoch_of
from pillarbox_tools.model.executor_memory import ExecutorMemory, executor_memory_of
from pillarbox_tools.model.snapshot import Snapshot, SnapshotExecutor
from pillarbox_tools.model.subtasks import Subtasks
from tests.model.made import keyed, model, progress, source

MIB = 1 << 20
SETTINGS = {
    "spark.master": "k8s://cluster",
    "spark.executor.cores": "4",
    "spark.executor.memory": "2g",
    "spark.executor.memoryOverhead": "2800m",
    "spark.python.daemon.module": "pillarbox.daemon",
}


def home(subtask: int, **values: Any) -> Any:
    report = {"host": "one", "executor": 7, "process": 100 + subtask, "private_bytes": 30 * MIB, **values}
    return keyed(subtask=subtask, **report)


def query(*epochs: list[Any], **settings: str) -> Snapshot:
    query_model = model()
    for number, reports in enumerate(epochs):
        query_model.progressed(progress(number, *reports))
    result = query_model.snapshot()
    return replace(result, run=replace(result.run, settings={**SETTINGS, **settings}))


def memory(*epochs: list[Any], **settings: str) -> ExecutorMemory:
    [executors] = executor_memory_of(query(*epochs, **settings))
    return executors


def terms(executor: ExecutorMemory) -> dict[str, int]:
    return {term.name: term.bytes for term in executor.terms}


def test_each_executor_has_its_processes_and_their_state() -> None:
    memory = query(
        [
            source(host="one", executor=7, process=50, private_bytes=20 * MIB),
            *(home(subtask, keys=5, state_bytes=100, memory_limit=1 << 30) for subtask in (0, 1)),
            home(2, host="two", executor=7, process=100),
            home(3, executor=8),
        ]
    )
    first, second, third = memory.run.executors
    assert first == SnapshotExecutor("one", 7, 2, 1, 60 * MIB, 20 * MIB, 200, 10, 1 << 30)
    assert (second.host, second.executor, second.homes, second.workers, second.limit) == ("one", 8, 1, 0, None)
    assert (third.host, third.homes, third.home_bytes, third.worker_bytes) == ("two", 1, 30 * MIB, 0)


def test_a_task_that_does_not_tell_its_executor_is_in_the_only_one_of_its_host() -> None:
    read = source(host="one", process=50, private_bytes=20 * MIB, memory_limit=1 << 30)
    [result] = query([read, home(0)]).run.executors
    assert (result.executor, result.homes, result.workers, result.limit) == (7, 1, 1, 1 << 30)
    several = query([read, home(0), home(1, executor=8)]).run.executors
    assert [(executor.executor, executor.homes, executor.workers) for executor in several] == [(7, 1, 0), (8, 1, 0)]


def test_tasks_without_work_still_live_where_they_were() -> None:
    [executor] = query([home(0, keys=5), home(1, keys=6)], [home(1, keys=7)]).run.executors
    assert (executor.homes, executor.keys, executor.home_bytes) == (2, 12, 60 * MIB)


def test_a_task_that_moves_leaves_its_process() -> None:
    moved = home(0, process=200, private_bytes=40 * MIB)
    [executor] = query([home(0), home(1)], [moved]).run.executors
    assert (executor.homes, executor.home_bytes) == (2, 70 * MIB)
    gone = query([home(0, memory_limit=5)], [home(0, host="two", process=9)])
    assert [(executor.host, executor.limit) for executor in gone.run.executors] == [("two", None)]


def test_workers_of_a_source_are_forgotten_after_a_while() -> None:
    first = [source(host="one", executor=7, process=50, subtask=9), home(0)]
    for epochs, workers in ((19, 1), (20, 0)):
        [result] = query(first, *([home(0)] for _ in range(epochs))).run.executors
        assert result.workers == workers


def test_it_does_not_grow_with_the_processes_and_executors_that_were_there() -> None:
    executors, sizes = Subtasks(), []
    for number in range(100):
        at = {"host": f"host {number}", "process": 100 + number, "private_bytes": 1, "memory_limit": 1}
        executors.add(epoch_of(progress(number, source(**at), home(0, **at))))
        if number in (50, 99):
            sizes.append(len(pickle.dumps(executors)))
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_processes_that_do_not_tell_their_memory_are_not_added_up() -> None:
    [executor] = query([home(0), home(1, private_bytes=None)]).run.executors
    assert executor.home_bytes is None
    assert query([keyed()]).run.executors == []  # a report of a former version


def test_the_formula() -> None:
    executors = memory(
        [home(subtask, keys=1000, state_bytes=10_000, bytes_out=500, memory_limit=1 << 40) for subtask in (0, 1)]
    )
    assert terms(executors) == {
        "JVM besides its heap": 384 * MIB,
        "shared": 150 * MIB,
        "workers": 4 * 25 * MIB,
        "homes": 2 * 20 * MIB,
        "state": 2000 * 350 + 4 * 20_000,
        "records": 3 * 1000,
    }
    assert executors.computed == sum(terms(executors).values())
    # The measured size replaces homes and state.
    assert executors.needed == executors.computed - terms(executors)["homes"] - terms(executors)["state"] + 60 * MIB
    assert executors.overhead == 1000 * MIB
    assert (executors.heap, executors.limit, executors.name) == (2048 * MIB, (2048 + 2800) * MIB, "one, process 7")


@pytest.mark.parametrize(
    ("settings", "reports", "name", "size"),
    [
        ({"spark.python.daemon.module": "pyspark.daemon"}, [home(0)], "workers", 4 * 95),
        ({"spark.pillarbox.homes": "off", "spark.executor.cores": "1"}, [*map(home, range(5))], "workers", 5 * 25),
        ({"spark.pillarbox.homes": "off"}, [home(0)], "homes", 0),
        ({}, [home(0, fallback="no process can be started")], "homes", 0),
        ({"spark.executor.memory": "8g"}, [home(0)], "JVM besides its heap", 819.2),
        ({"spark.master": "local[3]", "cores": "3"}, [home(0)], "workers", 3 * 25),
    ],
)
def test_a_term_depends_on_its_figures(settings: dict[str, str], reports: list[Any], name: str, size: float) -> None:
    assert terms(memory(reports, **settings))[name] == pytest.approx(size * MIB, abs=1)


def test_without_homes_tasks_are_in_workers() -> None:
    reports = [home(0, keys=9), source(host="one", executor=7, process=50, private_bytes=20 * MIB)]
    executors = memory(reports, **{"spark.pillarbox.homes": "off"})
    assert (executors.home_bytes, executors.worker_bytes, executors.needed) == (None, 50 * MIB, executors.computed)
    assert terms(executors)["state"] == 9 * 350


@pytest.mark.parametrize(
    ("settings", "task_limit", "limit"),
    [
        ({"spark.master": "local[4]"}, None, None),
        ({"spark.master": "local[4]"}, 5 << 30, 5 << 30),
        ({"spark.master": "yarn", "spark.executor.memoryOverhead": ""}, None, (2048 + 384) * MIB),
        ({"spark.executor.memoryOverhead": ""}, None, round(1.4 * 2048) * MIB),
        ({"spark.executor.memoryOverhead": "", "spark.executor.memoryOverheadFactor": "0.5"}, None, 3072 * MIB),
        ({"spark.executor.pyspark.memory": "1g"}, None, (2048 + 2800 + 1024) * MIB),
        ({}, 1 << 30, 1 << 30),
    ],
)
def test_the_limit_of_a_container(settings: dict[str, str], task_limit: int | None, limit: int | None) -> None:
    executors = memory([home(0, memory_limit=task_limit)], **settings).limit
    assert executors == (None if limit is None else pytest.approx(limit, abs=MIB))


def test_the_records_of_the_largest_epoch_are_divided_among_executors() -> None:
    memory = executor_memory_of(query([home(0, bytes_out=900), home(1, host="two")], [home(0, bytes_out=10)]))
    assert [terms(executor)["records"] for executor in memory] == [3 * 450] * 2
