"""One seed of `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos import is_right, run_seed

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

# Two queries, one of which carries requests over the end of an epoch; a driver is killed. It takes a minute.
SEED = 42
EPOCHS = 6


def test_one_seed() -> None:
    result = run_seed(SEED, epochs=EPOCHS)
    assert is_right(result), "see what it printed"
    assert result["faults"] >= 6
    assert result["drivers"] >= 2
