"""A shuffle level's output is lost and recomputed. Each result is emitted once, or the epoch fails and is repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.faults.programs.lost_levels import LostLevels, lose_files
from tests.support.sessions import environment_without_spark

pytestmark = pytest.mark.fault

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = sorted(path.name.partition("-")[2] for path in (ROOT / ".venvs").glob("spark-*"))


@pytest.mark.parametrize(
    "kind", ["ticks", pytest.param("carry", marks=pytest.mark.long("ticks depend on the attempt as well"))]
)
def test_output_of_an_attempt_is_emitted_once(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    local = spark.conf.get("spark.local.dir")
    assert local is not None
    levels = LostLevels(spark, tmp_path / "query", kind, lose_files(Path(local)))
    levels.round()
    assert levels.stop() == {"lost": [], "doubled": []}
    assert levels.failures == []  # the level has run again, and the query continues


@pytest.mark.timeout(3_600)
@pytest.mark.long("some minutes, with sessions of their own")
@pytest.mark.parametrize("loss, rounds", [("files", 100), ("executors", 20)])
@pytest.mark.parametrize("kind", ["ticks", "carry"])
@pytest.mark.parametrize("version", ["here", *ELSEWHERE])
def test_each_version_again_and_again(tmp_path: Path, version: str, kind: str, loss: str, rounds: int) -> None:
    rounds = int(os.environ.get("PILLARBOX_FAULT_ROUNDS", rounds))
    for seed in (0, 1):
        result = lost_levels(version, tmp_path / str(seed), kind, loss, rounds // 2, seed)
        assert (result["lost"], result["doubled"]) == ([], []), result


def lost_levels(version: str, home: Path, *arguments: Any) -> dict[str, Any]:
    places = [ROOT / "src", ROOT] if version == "here" else [ROOT / ".venvs" / f"spark-{version}", ROOT / "src", ROOT]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.programs.lost_levels", str(home), *map(str, arguments)],
        env=environment_without_spark(SPARK_LOCAL_IP="127.0.0.1", PYTHONPATH=os.pathsep.join(map(str, places))),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    assert lines, ran.stderr[-6000:]
    document: dict[str, Any] = json.loads(lines[-1])
    return document
