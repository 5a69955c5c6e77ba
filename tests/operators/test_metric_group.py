from __future__ import annotations

import json
from decimal import Decimal

import numpy as np
import pytest

from pillarbox import AsyncDataStream, AsyncFunction, MapFunction, StreamExecutionEnvironment
from pillarbox.testing import ProgramTestHarness


class Measured(MapFunction):
    def open(self, runtime_context):
        group = runtime_context.get_metrics_group()
        self.seen = group.counter("seen")
        self.odd = group.add_group("kind", "odd").meter("events", 10)
        self.sizes = group.distribution("sizes")
        self.latest = 0
        group.gauge("latest", lambda: self.latest)

    def map(self, value):
        self.seen.inc()
        self.latest = value
        self.sizes.update(value)
        if value % 2:
            self.odd.mark_event(2)
        return value, self.seen.get_count()


def reports(harness, level):
    return [report for report in harness._job.reports if report.level == level]


def test_metrics_are_those_of_the_epoch():
    def build(env, numbers):
        return numbers.key_by(lambda number: 0).map(Measured()).uid("measured")

    with ProgramTestHarness(build) as harness:
        harness.push("numbers", 4, 1, 7)
        assert harness.run_epoch()["output"] == [(4, 1), (1, 2), (7, 3)]
        (report,) = reports(harness, 1)
        assert report.counters == {"measured.seen": 3, "measured.kind.odd.events": 4, "measured.sizes.count": 3}
        assert report.gauges.pop("measured.kind.odd.events.rate") > 0
        assert report.gauges == {
            "measured.latest": 7.0,
            "measured.sizes.sum": 12.0,
            "measured.sizes.min": 1.0,
            "measured.sizes.max": 7.0,
            "measured.sizes.mean": 4.0,
        }
        harness.run_epoch()
        (report,) = reports(harness, 1)
        assert set(report.counters.values()) == {0}
        assert report.gauges == {"measured.latest": 7.0, "measured.kind.odd.events.rate": 0.0}


def test_sources_report_those_of_each_partition():
    def build(env, numbers):
        return numbers.map(Measured()).uid("measured")

    with ProgramTestHarness(build) as harness:
        harness.push("numbers", 4, partition=0)
        harness.push("numbers", 1, 7, partition=1)
        harness.run_epoch()
        assert [report.counters["measured.seen"] for report in reports(harness, 0)] == [1, 2]


def test_async_functions_have_metrics():
    class Asks(AsyncFunction):
        async def open(self, runtime_context):
            self.asked = runtime_context.get_metrics_group().counter("asked")

        async def async_invoke(self, value):
            self.asked.inc()
            return [value]

    def build(env, numbers):
        return AsyncDataStream.ordered_wait(numbers, Asks(), timeout="5 seconds").uid("asks")

    with ProgramTestHarness(build) as harness:
        harness.push("numbers", 1, 2, 3)
        harness.run_epoch()
        (report,) = reports(harness, 0)
        assert report.counters["asks.asked"] == 3


@pytest.mark.parametrize(
    ("step", "count"), [(np.int64(2), 4), (True, 2), (0.5, 1.0), (np.float32(0.5), 1.0), (Decimal("0.5"), 1.0)]
)
def test_counters_add_numbers_of_other_types(step, count):
    class Counts(MapFunction):
        def open(self, runtime_context):
            self.counter = runtime_context.get_metrics_group().counter("a")
            self.meter = runtime_context.get_metrics_group().meter("b")

        def map(self, value):
            self.counter.inc(step)
            self.meter.mark_event(step)
            return value

    with ProgramTestHarness(lambda env, numbers: numbers.map(Counts()).uid("counts")) as harness:
        harness.push("numbers", 1, 2)
        harness.run_epoch()
        (report,) = reports(harness, 0)
        # Spark gets a report as JSON.
        assert json.loads(json.dumps(report.counters)) == {"counts.a": count, "counts.b": count}


def test_a_metric_of_an_async_function_cannot_replace_a_metric_of_its_operator():
    class Asks(AsyncFunction):
        def open(self, runtime_context):
            self.failed = runtime_context.get_metrics_group().counter("failed")

        async def async_invoke(self, value):
            return [value]

    def build(env, numbers):
        return AsyncDataStream.ordered_wait(numbers, Asks(), timeout="5 seconds")

    with ProgramTestHarness(build) as harness:
        harness.push("numbers", 1)
        with pytest.raises(Exception, match="a metric named 'failed', but the operator has"):
            harness.run_epoch()


class Wrong(MapFunction):
    def __init__(self, define):
        self.define = define

    def open(self, runtime_context):
        self.define(runtime_context.get_metrics_group())

    def map(self, value):
        return value


def two_kinds(group):
    group.counter("a")
    group.meter("a")


@pytest.mark.parametrize(
    ("define", "message"),
    [
        (two_kinds, "has two metrics named 'a', of different kinds"),
        (lambda group: group.counter(""), "a metric's name must be a non-empty string"),
        (lambda group: group.add_group(5), "a metric's name must be a non-empty string, not 5"),
        (lambda group: group.counter("dead_letters"), "'map: Wrong': its function has a metric named 'dead_letters'"),
        (lambda group: group.add_group("a").meter("late_records_dropped"), "a metric named 'late_records_dropped'"),
        (lambda group: group.gauge("a", 5), r"gauge\('a'\) takes a function that returns a number, not 5"),
        (lambda group: group.gauge("a", lambda: "x"), r"operator 'map: Wrong': the gauge 'map-\d+.a' failed"),
        (lambda group: group.gauge("a", lambda: float("nan")), "it returned nan, which is not a finite number"),
    ],
)
def test_wrong_metrics_are_named(define, message):
    stream = StreamExecutionEnvironment().from_collection([1]).map(Wrong(define))
    with pytest.raises(Exception, match=message):
        stream.execute_and_collect()


def test_the_same_name_means_the_same_metric():
    def define(group):
        assert group.counter("a") is group.counter("a")
        assert group.counter("a") is not group.add_group("b").counter("a")

    assert StreamExecutionEnvironment().from_collection([1]).map(Wrong(define)).execute_and_collect() == [1]
