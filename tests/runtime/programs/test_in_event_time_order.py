from __future__ import annotations

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import OperatorError, StreamExecutionEnvironment, WatermarkStrategy
from pillarbox.testing import ProgramTestHarness, row

BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")


def build(env, events):
    return events.assign_timestamps_and_watermarks(BY_AT).key_by("id").in_event_time_order().uid("by time")


@given(
    st.lists(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=8), max_size=6),
    st.integers(1, 3),
)
def test_records_of_a_key_come_by_time_and_late_ones_not_at_all(epochs, parallelism):
    watermark, number = -(2**63), 0
    waiting: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    with ProgramTestHarness(build, parallelism=parallelism) as harness:
        for epoch in [*epochs, None]:
            for key, at in epoch or ():
                number += 1
                harness.push("events", row(id=key, at=at, n=number))
                if at > watermark:
                    waiting[key].append((key, at, number))
            output = harness.end_input() if epoch is None else harness.run_epoch()
            watermark = max([watermark, *(at - 1 for _, at in epoch or ())]) if epoch is not None else 2**63 - 1
            for key in "abc":
                due = sorted(
                    (record for record in waiting[key] if record[1] <= watermark), key=lambda record: record[1:]
                )
                assert [tuple(value) for value in output["output"] if value.id == key] == due
                waiting[key] = [record for record in waiting[key] if record[1] > watermark]


def test_waiting_records_are_emitted_after_a_restart_and_late_records_are_counted():
    with ProgramTestHarness(build) as harness:
        harness.push("events", row(id="a", at=9), row(id="a", at=7))
        assert harness.run_epoch()["output"] == [("a", 7)]
        snapshot = harness.snapshot()
    with ProgramTestHarness(build, snapshot=snapshot) as harness:
        harness.push("events", row(id="a", at=8), row(id="a", at=10))
        assert harness.run_epoch()["output"] == [("a", 9)]
        (late,) = [counter for report in harness._job.reports for counter in report.counters.items() if counter[1]]
        assert late == ("by time.late_records_dropped", 1)
        assert harness.end_input()["output"] == [("a", 10)]


def test_it_needs_event_time():
    stream = StreamExecutionEnvironment().from_collection(["a"]).key_by(str).process(lambda text, ctx: [text])
    with pytest.raises(OperatorError, match=r"'in_event_time_order': the record 'a' has no timestamp.*put assign_time"):
        stream.key_by(str).in_event_time_order().execute_and_collect()
