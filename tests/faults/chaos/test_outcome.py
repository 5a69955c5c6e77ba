from __future__ import annotations

import random
import time

from tests.faults.chaos.damage import Damage, damage
from tests.faults.chaos.outcome import Outcome
from tests.faults.clock import SetClock, is_seen, set_clock
from tests.faults.oracles.oracle import answer
from tests.faults.programs.job import make_events

EPOCHS = make_events(1, epochs=4)
RIGHT = answer(EPOCHS)


def outcome_of(*damages: Damage) -> tuple[Outcome, list[str]]:
    messages: list[str] = []
    outcome = Outcome(EPOCHS, RIGHT, messages.append)
    outcome.damages += damages
    return outcome, messages


def test_right_rows_count_for_nothing():
    outcome, messages = outcome_of(Damage("state/0", "cut", 1))
    for batch, rows in RIGHT.output.items():
        outcome.compare_batch(batch, rows, f"batch {batch}")
    assert (outcome.lost, outcome.doubled, outcome.silent, messages) == (0, 0, 0, [])
    assert outcome.damages[0].outcome() == "harmless"


def test_wrong_rows_are_silent_only_after_damage_that_was_not_noticed():
    early, late = Damage("state/early", "cut", 1), Damage("state/late", "cut", 3)
    outcome, messages = outcome_of(early, late)
    early.take_back(2, "an error")
    for batch, missing in ((0, 1), (1, 1), (2, 1), (3, 2)):
        outcome.compare_batch(batch, RIGHT.output[batch][missing:], f"batch {batch}")
    assert (outcome.lost, outcome.doubled, outcome.silent) == (5, 0, 3)
    assert (early.wrong, late.wrong) == (1, 2)
    assert [damage.outcome() for damage in outcome.damages] == ["SILENT: 1 rows", "SILENT: 2 rows"]
    assert "SILENT: after cut: state/late" in messages


def test_a_row_that_came_twice():
    outcome, _ = outcome_of()
    rows = RIGHT.output[1]
    outcome.compare_batch(1, [*rows, rows[0]], "batch 1")
    assert (outcome.lost, outcome.doubled, outcome.silent) == (0, 1, 0)


def test_damage_is_done_and_taken_back(tmp_path):
    for kind in ("offsets", "commits", "state"):
        (tmp_path / kind).mkdir()
        for batch in range(6):
            (tmp_path / kind / str(batch)).write_bytes(bytes(range(200)))
            (tmp_path / kind / f".{batch}.crc").write_bytes(b"crc")
    whole = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for seed in range(50):
        done = damage(tmp_path, random.Random(seed))
        assert done is not None
        assert (tmp_path / done.file).read_bytes() != whole[tmp_path / done.file]
        assert done.batch <= 6
        assert done.is_there()
        done.take_back(6, "noticed")
        assert not done.is_there()
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == whole
        assert done.outcome() == "noticed"


def test_a_clock_is_set(tmp_path):
    file = tmp_path / "clock"
    clock = SetClock(str(file))
    before = clock.time_ns()
    assert abs(before - time.time_ns()) < 60 * 10**9
    set_clock(file, 1, -3_600_000)
    assert not is_seen(file, 1)
    assert clock.time_ns() < before
    assert is_seen(file, 1)
    assert clock.monotonic_ns() <= time.monotonic_ns()
