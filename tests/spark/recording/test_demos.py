"""Records fifty epochs of the demos, in operators of the first and the last level. Each replay gives the same state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.delays import run as delays
from examples.delays.data import tables
from examples.flights import run as flights
from examples.flights.data import flights as all_flights
from pillarbox._runtime.spark.starting.started import find
from pillarbox_tools.recording.target import Target
from tests.support.recorded import replay_epochs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.long("fifty epochs run again, some minutes; test_record.py and test_sources.py show each kind"),
]
EPOCHS = 13


def replayed(query: Any, folder: Path) -> int:
    query.awaitTermination()
    started = find(query)
    assert started is not None
    (program,) = started.programs
    assert program.summary is not None
    assert program.summary.plan is not None
    vertices = program.summary.plan.vertices
    last = max(vertices, key=lambda vertex: vertex.level)
    source = next(vertex for vertex in vertices if vertex.level == 0)
    tasks = [(Target(program, vertex, 0, 0, None, None).uid, subtask) for subtask, vertex in enumerate((source, last))]
    return replay_epochs(started.start.writer, str(started.checkpoint), tasks, folder, newest=EPOCHS)


def test_flights(spark: SparkSession, tmp_path: Path) -> None:
    table = all_flights(1)
    query, _ = flights.start_streaming(spark, table.slice(0, 8_000), tmp_path / "flights", EPOCHS, 2)
    assert replayed(query, tmp_path) >= 2 * EPOCHS - 3


def test_delays(spark: SparkSession, tmp_path: Path) -> None:
    streams = {name: table.slice(0, 4_000) for name, table in tables(1).items()}
    query, _ = delays.start_streaming(spark, streams, tmp_path / "delays", EPOCHS, 2)
    assert replayed(query, tmp_path) >= 2 * EPOCHS - 3
