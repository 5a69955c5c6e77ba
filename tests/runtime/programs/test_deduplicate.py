from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox import OperatorError, ProgramError, StreamExecutionEnvironment, WatermarkStrategy
from pillarbox.testing import ProgramTestHarness, row

BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def build(env, events):
    return events.assign_timestamps_and_watermarks(BY_AT).key_by("id").deduplicate("10 milliseconds")


# Late and equal times, times that are far ahead, and the last time that fits.
times = st.one_of(st.integers(-30, 60), st.sampled_from([10**6, 2**63 - 11, 2**63 - 10, 2**63 - 9, 2**63 - 1]))


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), times), max_size=5), max_size=6),
    st.integers(1, 3),
)
@example([[("b", 1000)], [("a", 5), ("a", 1001)]], 1)
@example([[("b", 1000)], [("a", 5)], [], [("a", 1000)]], 1)
def test_the_first_of_a_key_passes_and_hides_others_until_event_time_has_passed_it(epochs, parallelism):
    watermark = -(2**63)
    remembered: dict[str, int] = {}
    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        for epoch in epochs:
            expected = []
            for key, at in epoch:
                harness.push("events", row(id=key, at=at))
                if key not in remembered:
                    expected.append((key, at))
                    remembered |= {key: at + 10} if at + 10 > watermark else {}
            outputs = [tuple(value) for value in harness.run_epoch()["output"]]
            assert sorted(outputs) == sorted(expected)
            watermark = max([watermark, *(at - 1 for _, at in epoch)])
            remembered = {key: until for key, until in remembered.items() if until > watermark}
        assert harness.end_input()["output"] == []


def test_remembered_keys_survive_a_restart():
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
    with pytest.raises(ProgramError, match=r"deduplicate\(\): within= must be at least one millisecond, not 0"):
        StreamExecutionEnvironment().from_collection(["a"]).key_by(str).deduplicate(0)
