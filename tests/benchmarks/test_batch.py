from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from benchmarks.cases.rates.batch import BATCH, counted
from benchmarks.harness.case import Results
from benchmarks.harness.jobs import Jobs
from benchmarks.harness.rows import checksums, summary
from benchmarks.report.pages import fill, pages
from benchmarks.report.results import command
from tests.support.docs import HOME


@given(st.lists(st.integers(0, 5), min_size=1))
def test_each_row_has_the_number_of_those_of_its_key_so_far(keys):
    seen: Counter[int] = Counter()
    expected = []
    for key in keys:
        seen[key] += 1
        expected.append((key, seen[key]))
    results = [column.tolist() for column in counted(np.array(keys))]
    assert sorted(zip(*results)) == sorted(expected)


@pytest.mark.long("it runs a benchmark's jobs on Spark, and make bench-batch does")
def test_a_job_with_wrong_results_is_named(spark: SparkSession):
    right = summary([np.arange(3)])
    sides = {"right": lambda: spark.range(3), "wrong": lambda: spark.range(4), "anything": lambda: spark.range(5)}
    jobs = Jobs(sides, lambda side: checksums(["id"]), {"right": right, "wrong": right}, 3)
    jobs.run(1)
    assert jobs.wrong == [f"wrong: {summary([np.arange(4)])}, not {right}"] * 2, "also in the round that warms up"
    result = jobs.figures()
    assert result["rows_per_s"].keys() == result["cpu_s_per_1m_rows"].keys() == sides.keys()
    assert all(len(rates) == 1 and rates[0] > 0 for rates in jobs.rates.values())


def test_the_block_compares_each_side_with_batch():
    rates = {BATCH: 300_000, "applyInPandas": 200_000, "(identity)": 600_000}
    by_keys = {"1000": {"rows_per_s": rates}, "100000": {"rows_per_s": {**rates, "applyInPandas": 30_000}}}
    stored = {"command": command("batch"), "result": {"by_keys": by_keys}}
    page = HOME / "docs" / "howto" / "backfill.md"
    assert page in pages()
    text = fill(page.read_text(), Results({"batch": stored}, Path()))
    assert "    make bench-batch\n" in text
    assert "| applyInPandas | 200,000 | 1.50 | 30,000 | 10.00 |" in text
    assert "| identity | 600,000 | 0.50 | 600,000 | 0.50 |" in text
