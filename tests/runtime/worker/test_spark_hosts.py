from __future__ import annotations

import gc
import hashlib
import weakref
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pillarbox import (
    KeyedProcessFunction,
    MapFunction,
    OperatorError,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from pillarbox._runtime.spark.rows.output import BufferOutput
from pillarbox._runtime.spark.savepoint import restore_host
from pillarbox._runtime.spark.savepoint.restore_host import RestoreRouter
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._runtime.spark.tasks.task_info import TaskInfo, TaskLayout
from pillarbox._runtime.spark.worker.source_host import SourceHost
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.log.many_objects import collector_paused
from pillarbox._state.savepoint.manifest import FileDigest, OperatorTable
from pillarbox._state.savepoint.table import Table
from pillarbox._unpickle import loads
from tests.runtime.spark_of_dicts import Query, rows_of

CLOSED: list[str] = []


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value, ctx):
        if value == 13:
            raise ValueError("thirteen")
        self.seen.update((self.seen.value() or 0) + 1)
        yield ctx.get_current_key(), self.seen.value()

    def close(self):
        CLOSED.append(f"count {self.subtask}")


class Remind(KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(value)

    def on_timer(self, timestamp, ctx):
        yield timestamp


class Seconds:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Seconds:
    return Seconds()


@pytest.fixture(autouse=True)
def worker(monkeypatch, clock):
    CLOSED.clear()
    residents = Residency(clock)
    monkeypatch.setattr(residency, "here", residents)
    yield residents
    residents.close_all()


def counting(parallelism: int = 2) -> Query:
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    stream = env.from_collection([]).map(lambda row: row.value).key_by(lambda value: value % 3).process(Count())
    return Query(env, stream.uid("count"))


def test_state_goes_from_batch_to_batch():
    query = counting()
    assert sorted(query.run_batch([0, 1, 2, 3], [4])) == [(0, 1), (0, 2), (1, 1), (1, 2), (2, 1)]
    assert sorted(query.run_batch([0, 5])) == [(0, 3), (2, 2)]
    tasks = [report for report in query.reports if report.uid == "count"]
    assert {report.subtask for report in tasks} == {0, 1}
    assert sum(report.records_in for report in tasks) == 2
    assert {report.state_sync for report in tasks} == {"in step"}


def test_no_value_is_asked_for_that_is_not_there(monkeypatch, clock):
    query = counting()
    query.run_batch([1, 2])
    query.run_batch([1])
    monkeypatch.setattr(residency, "here", Residency(clock))  # another worker, which has to restore the task
    assert query.run_batch([1]) == [(1, 3)]
    assert [handle.missed for handle in query.handles] == [0]


def test_a_batch_that_was_not_committed_leaves_nothing(worker):
    query = counting()
    query.run_batch([0, 1, 2])
    assert sorted(query.run_batch([0, 0], commit=False)) == [(0, 2), (0, 3)]
    assert sorted(query.run_batch([0])) == [(0, 2)]
    assert sorted(CLOSED) == ["count 0", "count 1"]  # the residents that had diverged were let go


def test_a_task_that_comes_back_from_another_process_is_made_anew(worker, clock, monkeypatch):
    query = counting()
    query.run_batch([0, 1, 2])
    other = Residency(clock)
    monkeypatch.setattr(residency, "here", other)
    assert sorted(query.run_batch([0])) == [(0, 2)]
    monkeypatch.setattr(residency, "here", worker)
    assert sorted(query.run_batch([0, 1])) == [(0, 3), (1, 2)]
    assert {report.state_sync for report in query.reports if report.uid == "count"} == {"loaded"}
    assert sorted(CLOSED) == ["count 0", "count 1"]  # watermarks reach both subtasks in each epoch
    other.close_all()


class CountLately(Count):
    def open(self, runtime_context):
        super().open(runtime_context)
        lately = ValueStateDescriptor("lately", int, default=0)
        lately.enable_time_to_live(StateTtlConfig(1000))
        self.seen = runtime_context.get_state(lately)


def test_state_expires_by_the_time_of_the_batch(worker, clock, monkeypatch):
    env = StreamExecutionEnvironment().set_parallelism(2)
    stream = env.from_collection([]).map(lambda row: row.value).key_by(lambda value: value % 3)
    query = Query(env, stream.process(CountLately()).uid("count"))
    assert sorted(query.run_batch([0, 0, 1], now=5_000)) == [(0, 1), (0, 2), (1, 1)]
    assert sorted(query.run_batch([0], now=5_999)) == [(0, 3)]
    for commit in (False, True):
        monkeypatch.setattr(residency, "here", Residency(clock))
        assert sorted(query.run_batch([0, 1], now=6_998, commit=commit)) == [(0, 4), (1, 1)]
    assert sorted(query.run_batch([0, 1], now=7_998)) == [(0, 1), (1, 1)]
    query.run_batch([2], now=20_000)
    query.run_batch([2], now=20_001)
    assert sum(report.keys or 0 for report in query.reports if report.uid == "count") == 1


def test_an_unused_resident_is_released(worker, clock):
    query, other = counting(1), counting(1)
    query.run_batch([0])
    clock.now = 601
    other.run_batch([0])
    assert CLOSED == ["count 0"]
    assert query.run_batch([0]) == [(0, 2)]


def test_a_home_keeps_its_tasks_for_as_long_as_it_lives_itself(monkeypatch, clock):
    monkeypatch.setattr(residency, "here", Residency(clock, idle=7_200))
    query = counting(1)
    query.run_batch([0])
    clock.now = 7_199
    assert query.run_batch([0]) == [(0, 2)] and CLOSED == []
    clock.now += 7_201
    assert query.run_batch([0]) == [(0, 3)] and CLOSED == ["count 0"]


def test_a_changed_program_has_residents_of_its_own(worker):
    query = counting(1)
    query.run_batch([0])
    again = counting(1)
    again.shipped[1] = again.shipped[1].__class__(**{**vars(again.shipped[1]), "digest": "another"})
    again.handles = query.handles
    assert again.run_batch([0]) == [(0, 2)]
    assert len(worker._residents) == 3 and worker.close_run("") == 3  # they share the source's


def test_a_task_that_failed_is_made_anew(worker):
    query = counting(1)
    query.run_batch([0])
    with pytest.raises(
        OperatorError, match=r"(?s)operator 'process: Count' failed at the record 13: ValueError: thirteen"
    ):
        query.run_batch([13])
    assert "count 0" in CLOSED
    assert query.run_batch([0]) == [(0, 2)]


def test_records_for_a_later_level_are_passed_on():
    env = StreamExecutionEnvironment().set_parallelism(2)
    numbers = env.from_collection([]).map(lambda row: row.value)
    counted = numbers.key_by(lambda value: value % 3).process(Count())
    both = counted.map(lambda pair: pair[0]).union(numbers).key_by(lambda value: value % 3).reduce(lambda a, b: a + b)
    query = Query(env, both)
    assert len(query.handles) == 2
    assert sorted(query.run_batch([1, 2])) == [1, 2, 2, 4]  # 1 + the key 1, 2 + the key 2
    assert sorted(query.run_batch([5]))[1:] == [11]  # 4 + 5 + the key 2, in any order


def test_a_timer_of_sparks_is_kept_at_the_earliest_one(monkeypatch):
    env = StreamExecutionEnvironment().set_parallelism(1)
    query = Query(env, env.from_collection([]).map(lambda row: row.value).key_by(lambda value: 0).process(Remind()))
    assert query.timers
    far = 4_000_000_000_000
    assert query.run_batch([far + 7, far + 3]) == []
    (handle,) = query.handles
    assert [sorted(timers) for timers in handle.timers.values()] == [[far + 3]]
    assert query.run_batch([far + 1]) == []
    assert [sorted(timers) for timers in query.handles[0].timers.values()] == [[far + 1]]
    # One that is overdue when it is set fires in the same epoch.
    assert query.run_batch([5]) == [5]
    assert [sorted(timers) for timers in query.handles[0].timers.values()] == [[far + 1]]


def test_a_subtask_has_one_epoch_in_a_batch():
    env = StreamExecutionEnvironment().set_parallelism(1)
    query = Query(env, env.from_collection([]).map(lambda row: row.value).key_by(lambda value: 0).process(Remind()))
    far = 4_000_000_000_000
    query.run_batch([far])
    assert query.run_batch([far + 7], now=far + 1) == []
    assert [report.epoch for report in query.reports if report.level == 1] == [2]


def test_full_collections_take_a_small_share_of_the_work(clock, monkeypatch):
    full = []
    worked = Seconds()
    worker = Residency(clock, worked, stay=True)

    def collect(generation=2):
        if generation == 2:
            full.append(worked.now)
            worked.now += 0.5
        return 0

    monkeypatch.setattr(gc, "collect", collect)
    for second in range(0, 1000, 10):
        worked.now = max(worked.now, float(second))
        clock.now += 1_000
        worker.spare_the_collector()
    # The first after a hundred seconds, each half a second: at most a hundredth of the work.
    assert full[0] >= 100
    assert 0.5 * len(full) <= 0.01 * worked.now
    assert len(full) > 10


def test_counting_a_workers_objects_takes_a_small_share_of_the_work(monkeypatch):
    counted = []
    worked = Seconds()
    worker = Residency(Seconds(), worked)

    def count():
        counted.append(worked.now)
        worked.now += 0.01
        return 300_000

    monkeypatch.setattr(gc, "get_freeze_count", count)
    monkeypatch.setattr(gc, "freeze", lambda: pytest.fail("the worker has few objects"))
    for epoch in range(1000):
        worked.now = max(worked.now, epoch * 0.05)
        worker.spare_the_collector()
    assert counted[0] == 0
    assert 10 < len(counted) <= worked.now


@pytest.mark.parametrize("many", [0, 1_000_000_000])
def test_many_objects_of_a_worker_are_left_out_of_collections(worker, monkeypatch, many):
    """PySpark runs a full garbage collection after each task. With many objects, it would take longer than the task."""
    monkeypatch.setattr(residency, "_MANY_OBJECTS", many)
    monkeypatch.setattr(worker, "_stay", False)
    env = StreamExecutionEnvironment().set_parallelism(1)
    query = Query(env, env.from_collection([]).map(lambda row: row.value))
    loaded: list[object] = []
    loaded.append(loaded)
    assert any(tracked is loaded for tracked in gc.get_objects())
    assert query.run_batch([1, 2]) == [1, 2]
    assert any(tracked is loaded for tracked in gc.get_objects()) == (many > 0)


def test_homes_freeze_nothing(monkeypatch):
    """Objects that are frozen before a fork share their memory, until a process unfreezes them."""
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda: pytest.fail("it belongs to the process that it was forked from"))
    worked = Seconds()
    home = Residency(Seconds(), worked, stay=True)
    for second in range(0, 1000, 10):
        worked.now = float(second)
        home.spare_the_collector()
    assert gc.get_freeze_count() > 0
    with collector_paused():  # as while a home reads state
        objects = [[number] for number in range(200_000)]
    assert len(objects) == 200_000


def test_a_task_that_ends_is_freed_without_a_look_at_what_was_there_before(worker, monkeypatch):
    env = StreamExecutionEnvironment().set_parallelism(1)
    query = Query(env, env.from_collection([]).map(Closes()))
    worker.spare_the_collector()
    task = worker.source_task(query.shipped[0], TaskInfo(query.program.layout))
    ended = weakref.ref(task)
    gc.collect()  # as during long work of a task: its objects then count as old
    worker.end(task)
    del task
    with monkeypatch.context() as patch:
        patch.setattr(gc, "unfreeze", lambda: pytest.fail("the worker looks at everything"))
        worker.spare_the_collector()
    assert ended() is None


def test_an_error_in_close_is_logged(worker, caplog):
    class Fails(MapFunction):
        def map(self, value):
            return value

        def close(self):
            raise RuntimeError("cannot close")

    env = StreamExecutionEnvironment().set_parallelism(1)
    query = Query(env, env.from_collection([]).map(Fails()).map(lambda row: row.value))
    assert query.run_batch([1, 2]) == [1, 2]
    worker.close_all()
    assert "closing the operators failed (operator " in caplog.text and "cannot close" in caplog.text


class Opened(MapFunction):
    def open(self, runtime_context):
        CLOSED.append("open")

    def map(self, value):
        return value


class Closes(Opened):
    def close(self):
        CLOSED.append("close")


class FailsToClose(Opened):
    def close(self):
        raise RuntimeError("cannot close")


@pytest.mark.parametrize(
    ("function", "bounded", "calls"),
    [
        (Closes(), True, ["open", "close", "open", "close"]),
        (Opened(), True, ["open"]),  # it has nothing to release
        (Closes(), False, ["open"]),  # in a streaming query it serves the next epoch
    ],
)
def test_functions_of_a_source_are_closed_at_the_end_of_a_batchs_task(function, bounded, calls):
    run = batch_of(function, bounded=bounded)
    run(), run()
    assert calls == CLOSED


def test_an_error_in_close_fails_the_task_of_a_batch():
    with pytest.raises(OperatorError, match=r"operator 'map: FailsToClose' failed in close\(\): RuntimeError: cannot"):
        batch_of(FailsToClose(), bounded=True)()


def batch_of(function: MapFunction, *, bounded: bool) -> Callable[[], list[pa.RecordBatch]]:
    env = StreamExecutionEnvironment().set_parallelism(1)
    query = Query(env, env.from_collection([]).map(function))
    layout = TaskLayout.of(query.program)
    host = SourceHost(query.shipped[0], layout, BufferOutput("report"), bounded=bounded, columns=["value"])
    return lambda: list(host(iter([pa.RecordBatch.from_pydict({"0": [1, 2]})])))


# -- state of a savepoint on its way to new subtasks --


def routed(query: Query, size: int) -> tuple[Table, dict[int, list[pa.RecordBatch]]]:
    vertex = query.program.vertices[1]
    codes = [code for code, (number, _) in query.program.subtasks.items() if number == vertex.number]
    views = []
    for code in codes:
        store = MemoryChunkStore()
        for number, payload in query.handles[0].state[code].items():
            store.put(number, payload)
        views.append(LogView(store, code))
    table = Table(OperatorTable.of([view.head for view in views]))
    whole = pa.concat_batches([batch for view in views for batch in table.encode(view.rows(), view.head.subtask)])
    batches = (whole.slice(start, size) for start in range(0, whole.num_rows, size))
    shares: dict[int, list[pa.RecordBatch]] = {code: [] for code in codes}
    contents = list(map(parquet, batches))
    digests = {f"{n}.parquet": digest_of(content) for n, content in enumerate(contents)}
    files = (
        pa.record_batch({"path": [f"file:/sp/state/count/{n}.parquet"], "content": [content]})
        for n, content in enumerate(contents)
    )
    for row in RestoreRouter(table.operator, codes, vertex.max_parallelism, query.shipped[1], digests)(files):
        ((code, number, payload),) = rows_of([row])
        assert number == 0
        shares[code].append(pa.ipc.open_stream(payload).read_next_batch())
    assert sum(batch.num_rows for share in shares.values() for batch in share) == whole.num_rows
    return table, shares


def digest_of(content: bytes) -> FileDigest:
    return FileDigest(len(content), hashlib.sha256(content).hexdigest())


def parquet(batch: pa.RecordBatch) -> bytes:
    file = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([batch]), file)
    content: bytes = file.getvalue().to_pybytes()
    return content


def counting_many(keys: int) -> Query:
    env = StreamExecutionEnvironment().set_parallelism(4)
    stream = env.from_collection([]).map(lambda row: row.value).key_by(lambda value: value).process(Count())
    query = Query(env, stream.uid("count"))
    query.run_batch([key for key in range(keys) if key != 13])
    return query


def test_the_shares_of_a_savepoint_are_few_and_large():
    """Spark processes each share as a row, which takes a hundred times as long as a key."""
    _, shares = routed(counting_many(500), 5)
    assert [len(share) for share in shares.values()] == [1] * len(shares)
    assert all(share[0].num_rows > 5 for share in shares.values())


@pytest.mark.parametrize(("limit", "bytes_"), [("_SHARE_BYTES", 1000), ("_WAITING_BYTES", 3000)])
def test_the_shares_of_a_savepoint_are_bounded(limit, bytes_, monkeypatch):
    query = counting_many(2000)
    monkeypatch.setattr(restore_host, "_ROUTED_ROWS", 50)
    monkeypatch.setattr(restore_host, limit, bytes_)
    table, shares = routed(query, 500)
    assert all(len(tables) >= 5 and max(share.num_rows for share in tables) <= 125 for tables in shares.values())
    keys = {key for tables in shares.values() for share in tables for key in table.keys(share, loads)}
    assert keys == {*range(2000)} - {13}
