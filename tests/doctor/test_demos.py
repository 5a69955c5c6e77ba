from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pillarbox_tools.doctor.rules import examine
from pillarbox_tools.watching.stored import stored_snapshot
from tests.support.docs import HOME
from tests.support.sessions import environment_without_spark

pytestmark = pytest.mark.spark

# Each with the options of a small size, and the checkpoints of its queries.
DEMOS = {
    "flights/demo.py": (["--months", "1", "--batches", "12"], ["checkpoint"]),
    "flights/upgrade.py": (["--months", "1", "--batches", "12"], ["checkpoint", "checkpoint-2"]),
    "delays/demo.py": (["--months", "1", "--batches", "6"], ["checkpoint"]),
    "agents/demo.py": (["--files", "12", "--no-kill"], ["checkpoint"]),
    "enrichment/demo.py": (["--days", "2", "--batches", "2", "--dead-seconds", "0.5"], ["checkpoint"]),
}
# Rules without facts here: the demos run for less than an hour, without a memory limit.
UNKNOWN = {"executor_memory", "container_memory", "memory_runs_out", "endless_state"}


def test_these_are_all_demos() -> None:
    results = {str(path.relative_to(HOME / "examples")) for path in (HOME / "examples").glob("*/demo.py")}
    assert results | {"flights/upgrade.py"} == set(DEMOS)


@pytest.mark.long("each demo has a Spark of its own")
@pytest.mark.parametrize("demo", DEMOS)
def test_a_demo_is_well(spark: SparkSession, demo: str, tmp_path: Path) -> None:
    options, checkpoints = DEMOS[demo]
    command = [sys.executable, str(HOME / "examples" / demo), *options, "--out", str(tmp_path)]
    done = subprocess.run(
        command, env=environment_without_spark(), cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pillarbox doctor" not in done.stderr
    for checkpoint in checkpoints:
        snapshot = stored_snapshot(spark, str(tmp_path / checkpoint))
        assert snapshot.epochs
        result = examine(snapshot)
        assert [f"{finding.rule}: {finding.message}" for finding in result if finding.status == "wrong"] == []
        # It had something to judge.
        unknown = {finding.rule for finding in result if finding.status == "unknown"} - UNKNOWN
        if len([epoch for epoch in snapshot.epochs if epoch.rows]) < 10:
            unknown -= {"stuck_watermark"}
        assert unknown == ({"partitions_and_cores"} if demo.startswith("enrichment") else set())  # it has no state
