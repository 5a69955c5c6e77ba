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

# Three queries, which start from threads of their own. The clock of workers is behind. A sink has written a batch that
# Spark does not know of: once as a commit is undone, once as the driver dies. It takes a minute.
SEED = 559
EPOCHS = 6


def test_one_seed() -> None:
    result = run_seed(SEED, epochs=EPOCHS)
    assert is_right(result), "see what it printed"
    assert result["faults"] >= 6
    assert result["kinds"].keys() >= {"undo_a_commit", "die_in_the_sink"}
    assert result["drivers"] >= 2
