"""The dashboard's data about real queries is compared with their input. (For the pages, see tests/see.)"""

from __future__ import annotations

import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pyspark import InheritableThread
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import StreamExecutionEnvironment, WatermarkStrategy
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.reading.inspection import inspect_checkpoint
from pillarbox._runtime.spark.running.stages import stages_of
from pillarbox_tools.dashboard.server import Dashboard, open_dashboard
from pillarbox_tools.model.bundle import read_bundle, write_bundle
from pillarbox_tools.model.query_model import StaticQueryModel
from pillarbox_tools.watching.stored import StoredQuery, stored_snapshot
from tests.see.queries import FIRST, Count, Inbox, counts, started

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("queries that start again, and what is known of them afterwards"),
    pytest.mark.timeout(300),
]

# Maximum apparent difference between clocks of one machine, in milliseconds.
_CLOCKS = 15
_TIMES = ("busy_ms", "idle_ms", "back_pressured_ms", "state_ms")
# Values that a bundle without records must not contain.
_PLANTED = ("card-4711-x", "-90210")


@pytest.fixture
def opened() -> Iterator[list[pillarbox.Dashboard]]:
    results: list[pillarbox.Dashboard] = []
    yield results
    for page in results:
        page.close()


def client_of(query: Any, opened: list[pillarbox.Dashboard]) -> httpx.Client:
    opened.append(pillarbox.dashboard(query, port=0))
    return httpx.Client(base_url=opened[-1].url, timeout=60)


def payments(epoch: int) -> list[tuple[str, int, int]]:
    good = [(f"c{number % (5 + epoch)}", 1, 100 * epoch + number % 50) for number in range(200 + 30 * epoch)]
    return [*good, *[("test", 1, 100 * epoch)] * (3 + epoch)]


def view_of(client: httpx.Client, query: Any) -> Any:
    return client.get(f"/api/queries/{query.id}").json()


def total(run: Any, name: str) -> int:
    return sum(moment.get(name, 0) for moment in run.get("moments", ()))


def check_sums(view: Any, every: list[list[tuple[str, int, int]]]) -> None:
    newest = every[-1]
    passed = [row for row in newest if row[0] != "test"]
    cards = Counter(card for rows in every for card, _, _ in rows if card != "test")
    source, keyed = view["plan"]["vertices"]
    # Each operator of the source's chain emits its input, except the filter.
    assert (source["run"]["operators"][0][0], source["run"]["operators"][-1][1]) == (len(newest), len(passed))
    assert {tuple(counts) for counts in keyed["run"]["operators"]} == {(len(passed), len(passed))}
    assert (keyed["run"]["keys"], keyed["run"]["timers"]) == (len(cards), len(cards))
    # (Spark may also run epochs without input.)
    assert view["shown"]["rows"] == len(newest)
    assert [epoch["rows"] for epoch in view["strip"] if epoch["rows"]] == [len(epoch) for epoch in every]
    assert view["strip"][-1]["number"] == view["epoch"]
    assert (total(view["run"], "rows"), total(view["run"], "epochs")) == (sum(map(len, every)), len(view["strip"]))
    [growth] = view["growth"]
    assert (growth["uid"], growth["keys"]) == ("count", len(cards))
    assert growth["bytes"] == view["run"]["moments"][-1]["state_bytes"]["count"] == keyed["run"]["state_bytes"]
    # Event time: a minute less than the newest payment.
    latest = FIRST + 1000 * max(at for _, _, at in newest)
    [held] = view["watermarks"]
    assert (held["watermark"], held["latest"]) == (latest - 60_000 - 1, latest)
    assert held["place"]["file"].endswith(f"{len(every):06d}.json")


def check_clocks(view: Any) -> None:
    shown = view["shown"]
    assert sum(shown["parts"].values()) <= shown["duration"] + _CLOCKS
    tasks, names = shown["tasks"], list(shown["parts"])
    assert len(tasks) == sum(vertex["run"]["tasks"] for vertex in view["plan"]["vertices"])
    tasks_from = sum(shown["parts"][name] for name in names[: names.index("addBatch")])
    ends = {id(task): task["started"] + sum(task[name] for name in _TIMES) for task in tasks}
    for task in tasks:
        assert tasks_from - _CLOCKS <= task["started"] - shown["began"]
        assert ends[id(task)] - shown["began"] <= shown["duration"] + _CLOCKS
    for vertex in view["plan"]["vertices"]:
        own = [task for task in tasks if task["number"] == vertex["number"]]
        assert sum(task["records_in"] for task in own) == vertex["run"]["records_in"]
        assert sum(task["busy_ms"] for task in own) == vertex["run"]["busy_ms"]
        span = max(ends[id(task)] for task in own) - min(task["started"] for task in own)
        assert vertex["level_share"] == pytest.approx(min(1.0, span / shown["duration"]), abs=0.001)
    # A level waits for the previous one.
    first, second = ([task for task in tasks if task["number"] == number] for number in (0, 1))
    assert min(task["started"] for task in first) <= min(task["started"] for task in second)


def restarted(spark: SparkSession, inbox: Inbox, checkpoint: Path) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(3)
    times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
    stream = env.from_dataframe(inbox.read(spark)).name("payments").assign_timestamps_and_watermarks(times)
    passed = stream.filter(lambda payment: payment.card != "test").name("no tests")
    return started(passed.key_by("card").process(Count()).uid("count"), checkpoint, "again")


def test_a_query_over_its_runs(spark: SparkSession, tmp_path: Path, opened: list[pillarbox.Dashboard]) -> None:
    inbox, checkpoint = Inbox(tmp_path / "payments"), tmp_path / "checkpoint"
    query = started(counts(spark, inbox), checkpoint, "payments by card")
    every: list[list[tuple[str, int, int]]] = []
    with client_of(query, opened) as client:
        for epoch in range(3):
            every.append(payments(epoch))
            inbox.put(*every[-1])
            query.processAllAvailable()
            wait_for(client, query, lambda view: total(view["run"], "rows") == sum(map(len, every)))
            view = view_of(client, query)
            check_sums(view, every)
            check_clocks(view)
        subtasks = [vertex["parallelism"] for vertex in view["plan"]["vertices"]]
        assert view["settings"]["parallelism"] == "2"
        # The life of a key: how many payments it has made, and when it is forgotten.
        life = client.get(f"/api/queries/{query.id}/key", params={"uid": "count", "key": "c3"}).json()
        paid = [at for epoch in every for card, _, at in epoch if card == "c3"]
        assert {state["name"]: state["value"] for state in life["state"]}["seen"] == str(len(paid))
        assert [timer["at"] for timer in life["timers"]] == [FIRST + 1000 * paid[-1] + 3_600_000]
        assert (life["epoch"], life["calls"]) == (view["epoch"], [])
        unknown = client.get(f"/api/queries/{query.id}/key", params={"uid": "none", "key": "c3"})
        assert unknown.status_code == 409
        assert "no operator with state has the uid 'none'" in unknown.json()["error"]
        query.stop()
        wait_for(client, query, lambda view: view["status"] == "stopped")
        check_sums(view_of(client, query), every)

        # Another program on the same checkpoint: it runs as the checkpoint is laid out.
        again = restarted(spark, inbox, checkpoint)
        pillarbox.dashboard(again, port=0)
        inbox.put(*payments(3))
        again.processAllAvailable()
        wait_for(
            client, again, lambda view: view["status"] == "running" and total(view["run"], "rows") == len(payments(3))
        )
        view = view_of(client, again)
        assert [vertex["parallelism"] for vertex in view["plan"]["vertices"]] == subtasks
        assert view["settings"]["parallelism"] == "2"
        [earlier] = view["earlier"]
        assert (earlier["status"], total(earlier, "rows")) == ("stopped", sum(map(len, every)))

        # It fails, and the others report it.
        inbox.put((_PLANTED[0], int(_PLANTED[1]), 500))
        with pytest.raises(StreamingQueryException):
            again.awaitTermination()
        wait_for(client, again, lambda view: view["status"] == "failed")
    check_stored(spark, checkpoint, opened[0])
    check_bundle(spark, checkpoint, tmp_path / "b.zip")


def wait_for(client: httpx.Client, query: Any, is_there: Any) -> None:
    view: dict[str, Any] = {"change": ""}
    deadline = time.monotonic() + 60
    while True:
        view |= client.get(f"/api/queries/{query.id}", params={"since": view["change"]}).json()
        if is_there(view):
            return
        assert time.monotonic() < deadline, f"{view['status']}, epoch {view['epoch']}"
        time.sleep(0.1)


def check_stored(spark: SparkSession, checkpoint: Path, dashboard: pillarbox.Dashboard) -> None:
    stored = StoredQuery(spark, str(checkpoint))
    open_dashboard([stored], "127.0.0.1", dashboard.port)
    with httpx.Client(base_url=dashboard.url, timeout=60) as client:
        view = view_of(client, stored)
    assert (view["status"], view["is_live"], view["stages"]) == ("failed", False, [])
    [failure] = view["failures"]
    assert (failure["uid"], failure["key"], failure["number"]) == ("count", repr(_PLANTED[0]), 1)
    assert _PLANTED[1] in failure["record"]
    assert [run["status"] for run in view["earlier"]] == ["stopped"]


def check_bundle(spark: SparkSession, checkpoint: Path, path: Path) -> None:
    notes, state = Checkpoint(spark, str(checkpoint)).lines, inspect_checkpoint(spark, str(checkpoint))
    for with_records in (False, True):
        write_bundle(path, stored_snapshot(spark, str(checkpoint)), notes, state, with_records=with_records)
        with zipfile.ZipFile(path) as archive:
            content = path.read_bytes() + b"".join(archive.read(name) for name in archive.namelist())
        assert [secret.encode() in content for secret in _PLANTED] == [with_records] * 2
    # The size of each state by its name is in it.
    assert read_bundle(path).state_sizes["count"].keys() == {"seen", "timer"}
    with Dashboard() as opened, httpx.Client(base_url=opened.url, timeout=60) as client:
        opened.show(StaticQueryModel(read_bundle(path)))
        [entry] = client.get("/api/queries").json()
        assert entry["status"] == "failed"


def test_the_stages_of_a_query_are_those_of_its_running_jobs(spark: SparkSession, tmp_path: Path) -> None:
    """Spark puts the jobs of a query into a job group with the query's run id."""
    begun, go = tmp_path / "begun", tmp_path / "go"

    def wait(batches: Iterator[Any]) -> Iterator[Any]:
        begun.touch()
        while not go.exists():
            time.sleep(0.05)
        yield from batches

    def run() -> None:
        spark.sparkContext.setJobGroup("a run", "")
        spark.range(10).count()  # one that has ended
        spark.range(0, 10, 1, 2).mapInArrow(wait, "id LONG").collect()

    thread = InheritableThread(run)
    thread.start()
    try:
        # Spark reports running stages with a delay.
        while not (begun.exists() and any(stage.active for stage in stages_of(spark, "a run"))):
            time.sleep(0.05)
        [stage] = stages_of(spark, "a run", levels=1)
        assert (stage.tasks, stage.completed, stage.failed, stage.level) == (2, 0, 0, 0)
        assert stage.hosts == ["localhost"]
        assert stages_of(spark, "another run") == []
    finally:
        go.touch()
        thread.join()
    assert stages_of(spark, "a run") == []


@pytest.mark.long("three queries; the first test has one, and tests/dashboard several without Spark")
def test_several_programs_and_several_queries(
    spark: SparkSession, tmp_path: Path, opened: list[pillarbox.Dashboard]
) -> None:
    inboxes = [Inbox(tmp_path / name) for name in ("one", "two", "three")]
    # Before a query runs: the plan shows the newest epoch, which is to have the files of both programs.
    for number, inbox in enumerate(inboxes):
        inbox.put(*payments(number))
    frames = [
        counts(spark, inbox, uid=inbox.folder.name).to_dataframe("card STRING, seen LONG") for inbox in inboxes[:2]
    ]
    both = frames[0].unionAll(frames[1]).writeStream.format("noop").queryName("both")
    two = pillarbox.start(both.option("checkpointLocation", str(tmp_path / "both")))
    other = started(counts(spark, inboxes[2]), tmp_path / "third", "third")
    try:
        with client_of(two, opened) as client:
            assert pillarbox.dashboard(other, port=0) is opened[0]
            for query in (two, other):
                query.processAllAvailable()
                wait_for(client, query, lambda view: total(view["run"], "rows"))
            entries = {entry["name"]: entry for entry in client.get("/api/queries").json()}
            assert entries.keys() >= {"both", "third"}
            assert entries["third"]["rows"] == len(payments(2))
            view = view_of(client, two)
            results = {
                (vertex["program"], vertex["level"]): (vertex["run"]["operators"][0][0], vertex["level_share"] > 0)
                for vertex in view["plan"]["vertices"]
            }
            # The number in a program's name depends on the programs that the session had before.
            names = sorted({program for program, _ in results}, key=lambda name: (len(name), name))
            passed = [len([payment for payment in payments(number) if payment[0] != "test"]) for number in range(2)]
            assert results == {
                (names[0], 0): (len(payments(0)), True),
                (names[0], 1): (passed[0], True),
                (names[1], 0): (len(payments(1)), True),
                (names[1], 1): (passed[1], True),
            }
    finally:
        two.stop()
        other.stop()
