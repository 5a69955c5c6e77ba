"""The flights program gives what the oracle gives, row for row, however it is run."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

_FOLDER = str(Path(__file__).parents[2] / "examples" / "flights")
if _FOLDER not in sys.path:
    sys.path.insert(0, _FOLDER)

import data  # noqa: E402
import oracle  # noqa: E402
import run  # noqa: E402


@cache
def year(months: int = 12):
    rows = data.flights(months)
    return rows, oracle.expected(rows)


@pytest.mark.parametrize(("parallelism", "batches", "months"), [(1, 1, 12), (2, 7, 2), (4, 7, 2), (2, 365, 1)])
def test_local_runtime(parallelism, batches, months):
    rows, expected = year(months)
    assert run.run_local(rows, batches, parallelism) == expected


def test_local_runtime_with_every_task_made_anew_after_every_epoch():
    rows, expected = year(2)
    assert run.run_local(rows, 11, 3, between=lambda job: job.reset()) == expected


@pytest.fixture
def flights_spark(spark, monkeypatch):
    """Workers import the program from its folder."""
    spark.addArtifacts(*(f"{_FOLDER}/{name}.py" for name in ("job", "data", "oracle", "run")), pyfile=True)
    return spark


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_batch_on_spark(flights_spark, tmp_path, parallelism):
    rows, expected = year()
    assert run.run_batch(flights_spark, rows, tmp_path / "run", parallelism) == expected


@pytest.mark.parametrize(("parallelism", "batches", "months"), [(1, 1, 12), (2, 7, 12), (4, 7, 2), (2, 30, 2)])
def test_streaming_on_spark(flights_spark, tmp_path, parallelism, batches, months):
    rows, expected = year(months)
    assert run.run_streaming(flights_spark, rows, tmp_path / "run", batches, parallelism) == expected
