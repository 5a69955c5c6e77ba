"""deduplicate in whole programs on the local runtime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import OperatorError, ProgramError, StreamExecutionEnvironment, WatermarkStrategy
from pillarbox.testing import ProgramTestHarness, row

BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def build(env, events):
    return events.assign_timestamps_and_watermarks(BY_AT).key_by("id").deduplicate("10 milliseconds")


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6)), max_size=30),
    st.integers(1, 3),
    st.sets(st.integers(0, 30)),
)
def test_the_first_of_a_key_passes(gaps, parallelism, epochs):
    """Each record is an epoch of its own, or several share one: event time goes on where an epoch ends."""
    now, watermark, pending = 0, -(2**63), None
    remembered: dict[str, int] = {}
    expected: list[tuple[str, int]] = []
    found: list[tuple[str, int]] = []
    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        for number, (key, gap) in enumerate(gaps):
            now += gap
            harness.push("events", row(id=key, at=now))
            if key not in remembered:
                remembered[key] = now + 10
                expected.append((key, now))
            pending = now
            if number in epochs:
                found += [tuple(value) for value in harness.run_epoch()["output"]]
                watermark = max(watermark, pending - 1)
                remembered = {key: until for key, until in remembered.items() if until > watermark}
        found += [tuple(value) for value in harness.end_input()["output"]]
    assert sorted(found) == sorted(expected)


def test_what_is_remembered_comes_back_after_a_restart():
    with ProgramTestHarness(build) as harness:
        harness.push("events", row(id="a", at=0))
        assert len(harness.run_epoch()["output"]) == 1
        snapshot = harness.snapshot()
    with ProgramTestHarness(build, snapshot=snapshot) as harness:
        harness.push("events", row(id="a", at=9), row(id="b", at=9))
        assert harness.run_epoch()["output"] == [("b", 9)]
        harness.push("events", row(id="c", at=12))
        harness.run_epoch()
        harness.push("events", row(id="a", at=13))
        assert harness.run_epoch()["output"] == [("a", 13)]


def test_it_needs_event_time():
    stream = StreamExecutionEnvironment().from_collection(["a"]).key_by(str).process(lambda text, ctx: [text])
    with pytest.raises(OperatorError, match=r"'deduplicate': the record 'a' has no timestamp.*put assign_timestamps"):
        stream.key_by(str).deduplicate("1 hour").execute_and_collect()
    with pytest.raises(ProgramError, match=r"deduplicate\(\): within has to be at least one millisecond, not 0"):
        StreamExecutionEnvironment().from_collection(["a"]).key_by(str).deduplicate(0)
