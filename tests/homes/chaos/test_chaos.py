"""Runs of home processes with a few faults of each kind. (`make chaos-homes` causes two hundred faults.)"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.fault,
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "seed, faults, most", [(5, 8, 8), pytest.param(6, 40, 2, marks=pytest.mark.long("minutes; one seed shows that"))]
)
def test_nothing_is_lost_doubled_or_left_behind(seed: int, faults: int, most: int) -> None:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    arguments = ["--seed", seed, "--faults", faults, "--stop", 1, "--most", most]
    ran = subprocess.run(
        [sys.executable, "-m", "tests.homes.chaos", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = ran.stdout.splitlines()[-1:]
    output = json.loads(last[0]) if last and last[0].startswith("{") else {}
    assert (output.get("wrong"), output.get("left"), output.get("late")) == ([], [], []), ran.stdout + ran.stderr
    assert sum(output["faults"].values()) == faults
