"""In the last epoch of a drained query, all subtasks run, and event time ends in each of them."""

from __future__ import annotations

from collections import Counter

import pytest

from pillarbox import KeyedProcessFunction, ListStateDescriptor, StreamExecutionEnvironment
from pillarbox._runtime.spark.tasks import residency
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from tests.runtime.spark_of_dicts import Query

NEVER = 10**15
SUBTASKS = 3


@pytest.fixture(autouse=True)
def worker(monkeypatch):
    residents = Residency()
    monkeypatch.setattr(residency, "here", residents)
    yield residents
    residents.close_all()


class Due(KeyedProcessFunction):
    uses_processing_time = True  # pytest's own code, behind the assertion, is too much to look for it

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1000 + value)
        ctx.timer_service().register_processing_time_timer(NEVER)

    def on_timer(self, timestamp, ctx):
        assert timestamp < NEVER, "no timer of processing time that is not due fires at the end"
        yield timestamp - 1000


class AtTheEnd(KeyedProcessFunction):
    def open(self, runtime_context):
        self.values = runtime_context.get_list_state(ListStateDescriptor("values"))

    def process_element(self, value, ctx):
        self.values.add(value)
        ctx.timer_service().register_event_time_timer(2**62)

    def on_timer(self, timestamp, ctx):
        yield from self.values
        self.values.clear()


def two_sources() -> Query:
    env = StreamExecutionEnvironment().set_parallelism(SUBTASKS)
    parts = [
        env.from_collection([]).map(lambda row: row.value).key_by(lambda value: value % 8).process(Due()).uid(name)
        for name in ("left", "right")
    ]
    ended = parts[0].union(parts[1]).key_by(lambda value: value % 5).process(AtTheEnd()).uid("all")
    return Query(env, ended)


def test_all_timers_of_event_time_fire_whichever_source_has_input():
    query = two_sources()
    assert query.run_batch(list(range(10))) == query.run_batch(list(range(10, 20)), source=1) == []
    # One record from one source: most subtasks get none, and the other source's subtasks nothing at all.
    lost = query.run_batch([20], last=True, commit=False)
    out = query.run_batch([20], last=True)
    assert Counter(out) == Counter(lost) == Counter(range(21))
    tasks = [report for report in query.reports if report.level]
    every = [(uid, subtask) for uid in ("all", "left", "right") for subtask in range(SUBTASKS)]
    assert sorted((report.uid, report.subtask) for report in tasks) == every
    assert {report.watermark for report in tasks} == {MAX_WATERMARK}
    assert sum(report.event_time_timers or 0 for report in tasks) == 0
    assert sum(report.processing_time_timers or 0 for report in tasks) == 16  # one for each key of both
    # Continued state has event time at its end.
    assert Counter(query.run_batch([21])) == Counter()
    assert {report.watermark for report in query.reports if report.level} == {MAX_WATERMARK}


def test_another_batch_than_the_last_one_is_as_ever():
    query = two_sources()
    assert query.run_batch([1, 2, 3]) == []
    assert {report.uid for report in query.reports if report.level} == {"left", "all"}
