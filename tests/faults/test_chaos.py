"""One seed of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos import is_right, run_seed

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

SEED = 5  # without a second program beside the first: it takes a minute


def test_one_seed() -> None:
    result = run_seed(SEED)
    assert is_right(result), "see what it printed"
    assert result["faults"] >= 8
