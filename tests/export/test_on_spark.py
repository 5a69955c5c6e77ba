from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import functions as F

import pillarbox
from pillarbox import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

pytestmark = [pytest.mark.spark, pytest.mark.slow("three queries")]

Scraped = dict[tuple[str, tuple[str, ...]], float]


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.seen.update((self.seen.value() or 0) + 1)
        yield value.key, self.seen.value()


def put(spark: Any, inbox: Path, rows: int, keys: int) -> None:
    frame = spark.range(rows).select((F.col("id") % keys).alias("key"))
    frame.coalesce(1).write.mode("append").parquet(str(inbox))


def start(spark: Any, folder: Path, name: str) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(4)
    rows = env.from_dataframe(spark.readStream.schema("key LONG").parquet(str(folder / name)))
    writer = rows.key_by("key").process(Count()).uid("count").to_dataframe("key LONG, seen LONG").writeStream
    return pillarbox.start(
        writer.format("noop").queryName(name).option("checkpointLocation", str(folder / f"{name} checkpoint"))
    )


def series_of(sample: Any) -> tuple[str, tuple[str, ...]]:
    labels = sorted(sample.labels.items(), key=lambda label: (label[0] != "query", label[0]))
    return sample.name, tuple(value for _, value in labels)


class Scraper:
    """Scrapes a server, and checks that no counter decreases between two scrapes."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._before: Scraped = {}

    def scrape(self) -> Scraped:
        with urlopen(self._url, timeout=60) as answer:
            families = [*text_string_to_metric_families(answer.read().decode())]
        samples = [(family.type, sample) for family in families for sample in family.samples]
        results = {series_of(sample): sample.value for _, sample in samples}
        assert len(results) == len(samples), "a series is there twice"
        counters = {series_of(sample) for kind, sample in samples if kind == "counter"}
        fallen = {counter for counter in counters if results[counter] < self._before.get(counter, 0)}
        gone = {
            gone_series
            for gone_series in self._before
            if gone_series[0].endswith("_total") and gone_series not in results
        }
        assert not fallen | gone
        self._before = results
        return results

    def until(self, holds: Callable[[Scraped], bool]) -> Scraped:
        deadline = time.monotonic() + 60
        while not holds(samples := self.scrape()):
            assert time.monotonic() < deadline, {
                series: value for series, value in samples.items() if len(series[1]) == 1
            }
            time.sleep(0.2)
        return samples


def served(spark: Any, folder: Path) -> tuple[Scraped, Scraped]:
    put(spark, folder / "one", 70, 7)
    put(spark, folder / "other", 30, 3)
    first, second = start(spark, folder, "one"), start(spark, folder, "other")
    with pillarbox.serve_metrics(first, port=0) as server:
        try:
            assert pillarbox.serve_metrics(second, port=0) is server
            scraper = Scraper(server.url)

            def rows(name: str, count: int) -> Callable[[Scraped], bool]:
                return lambda results: results.get(("pillarbox_rows_in_total", (name,))) == count

            scraper.until(rows("one", 70))
            before = scraper.until(rows("other", 30))
            first.stop()
            first.awaitTermination()
            ended = scraper.until(lambda results: not results["pillarbox_query_up", ("one",)])
            assert ended["pillarbox_records_in_total", ("one", "count")] == 70
            put(spark, folder / "one", 1_000, 500)
            first = start(spark, folder, "one")
            assert pillarbox.serve_metrics(first, port=0) is server
            pillarbox.serve_metrics(first, port=0)  # twice is once
            put(spark, folder / "other", 9, 9)
            scraper.until(rows("one", 1_070))
            return before, scraper.until(rows("other", 39))
        finally:
            first.stop()
            second.stop()


def check(before: Scraped, after: Scraped) -> None:
    def of(samples: Scraped, name: str) -> dict[str, float]:
        return {
            labels[0]: value
            for (metric, labels), value in samples.items()
            if (metric, labels[1:]) == (name, ("count",))
        }

    assert of(before, "pillarbox_records_in_total") == {"one": 70, "other": 30}
    assert of(after, "pillarbox_records_in_total") == {"one": 1_070, "other": 39}
    assert of(after, "pillarbox_records_out_total") == {"one": 1_070, "other": 39}
    assert of(before, "pillarbox_keys") == {"one": 7, "other": 3}
    assert of(after, "pillarbox_keys") == {"one": 500, "other": 9}
    queries = {name: value for (metric, (name, *_)), value in after.items() if metric == "pillarbox_query_starts_total"}
    assert queries == {"one": 2, "other": 1}
    assert after["pillarbox_query_up", ("one",)] == 1
    # 500 keys have as many series as 7, and a query that has started again as many as one that has started once.
    assert {series for series in after if series[0] != "pillarbox_query_info"} == {
        series for series in before if series[0] != "pillarbox_query_info"
    }
    assert len(after) == len(before) < 2 * 150


@pytest.mark.long("three queries; see/test_exporters.py has it as well, and test_ledger.py has the sums")
def test_several_queries_and_one_again(spark: Any, tmp_path: Path) -> None:
    check(*served(spark, tmp_path))


@pytest.mark.long("a server of Spark Connect, and the same counters; test_connect.py hears its metrics")
def test_under_spark_connect(connect: Any, tmp_path: Path) -> None:
    check(*connect.run(served, tmp_path))
