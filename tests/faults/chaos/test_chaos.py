from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.chaos.seeds import is_right, run_seed

pytestmark = [
    pytest.mark.fault,
    pytest.mark.timeout(3_600),
    pytest.mark.long("a seed takes some minutes"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc"),
]

# A sink has written a batch that Spark does not know of: once as a commit is undone, once as the driver dies.
FAULTS = ("kill_worker", "die_in_the_sink", "undo_a_commit", "kill_home", "set_the_clock", "stop_worker")
SEED = 559
EPOCHS = 6


def test_one_seed() -> None:
    result = run_seed(SEED, epochs=EPOCHS, only=FAULTS)
    assert is_right(result), "see what it printed"
    assert result["kinds"].keys() >= set(FAULTS)
    assert result["drivers"] >= 2
