from __future__ import annotations

import os
from pathlib import Path

import pytest

from pillarbox._runtime.spark.homes.settings import processors


@pytest.mark.parametrize(
    "files, limit",
    [
        ({"cpu.max": "50000 100000\n"}, 0.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "25000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 0.25),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_a_container_limits_the_processors(tmp_path: Path, files: dict[str, str], limit: float | None) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    assert processors(str(tmp_path)) == (bound if limit is None else limit)
