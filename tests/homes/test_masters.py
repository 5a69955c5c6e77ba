"""Home processes with several executors, and with other Spark versions. No process may be left afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.homes.program import EPOCHS, KEYS, MARK, PARTITIONS, processes
from tests.support.sessions import environment_without_spark

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "local-cluster[2,4,2048]"
VERSIONS = sorted(path.name.partition("-")[2] for path in (ROOT / ".venvs").glob("spark-*"))

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]

CASES = [
    pytest.param(master, mode, version, id=f"{master.partition('[')[0]}-{mode}-{version or 'installed'}")
    for master in ("local[8]", CLUSTER)
    for mode in ("fork", "spawn", "off")
    for version in (None, *VERSIONS)
]


def run(tmp_path: Path, version: str | None = None, **options: Any) -> dict[str, Any]:
    mark = uuid.uuid4().hex
    path = [ROOT / ".venvs" / f"spark-{version}"] if version else []
    env = environment_without_spark(
        **{MARK: mark},
        PYTHONPATH=os.pathsep.join(map(str, [*path, ROOT / "src", ROOT])),
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    command = [sys.executable, "-m", "tests.homes.program", str(tmp_path), json.dumps(options)]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-6000:]
    until = time.monotonic() + 10
    while processes(mark):
        assert time.monotonic() < until, f"these processes have not ended: {processes(mark)}"
        time.sleep(0.05)
    document: dict[str, Any] = json.loads([line for line in ran.stdout.splitlines() if line.startswith("{")][-1])
    return document


RIGHT = sorted([key, count] for key in range(KEYS) for count in range(1, EPOCHS + 1))


@pytest.mark.long("a Spark for each master, mode and version; spark/test_homes.py has one")
@pytest.mark.parametrize(("master", "mode", "version"), CASES)
def test_functions_live_in_homes_wherever_spark_runs_their_tasks(
    master: str, mode: str, version: str | None, tmp_path: Path
) -> None:
    result = run(tmp_path, version, master=master, homes=mode)
    assert result["counted"] == RIGHT and result["asked"] == EPOCHS * KEYS
    if mode == "off":
        return
    assert result["alive"] == [], "functions are closed, and their processes end, with the query"
    if master == CLUSTER:
        # Spark may move a partition: then its task is created again, and repeats pending requests.
        assert result["homes"] <= 2 * PARTITIONS
        return
    assert result["homes"] == PARTITIONS
    assert result["in_fields"] == result["requests"] == EPOCHS * KEYS, (
        "a field counts what state counts, a request is one"
    )


@pytest.mark.long("a cluster of processes; test_homes.py kills homes and their starters without one")
def test_an_executor_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    result = run(tmp_path, master=CLUSTER, homes="fork", kills=True)
    assert result["counted"] == RIGHT and result["asked"] == EPOCHS * KEYS
    assert PARTITIONS < result["homes"] <= 3 * PARTITIONS
