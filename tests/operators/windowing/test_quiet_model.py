"""Event time that advances with the clock, compared with a plain model."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import OutputTag, ProcessWindowFunction, TumblingEventTimeWindows
from pillarbox.testing import ProgramTestHarness
from tests.support.programs import bounded, first

LATE = OutputTag("late")
LONG = bool(os.environ.get("PILLARBOX_LONG"))
START = 5_000
NEVER = -(2**63)


class Numbers(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, tuple(context.window()), sorted(element[2] for element in elements)


class Source:
    """A source's last record, previous watermark and current watermark."""

    def __init__(self, bound: int, timeout: int | None) -> None:
        self.bound, self.timeout = bound, timeout
        self.watermark = self.emitted = NEVER
        self.active: int | None = None

    def epoch(self, now: int, partitions: list[list[Any]]) -> None:
        latest = [max(time for _, time, _ in records) for records in partitions if records]
        if latest:
            self.watermark = self.emitted = max(self.watermark, min(latest) - self.bound - 1)
            self.active = now
        elif self.active is None:
            self.active = now
        elif self.timeout is not None and self.emitted > NEVER and now - self.active >= self.timeout:
            self.watermark = self.emitted + now - self.active - self.timeout


records = st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300)), max_size=3)
of_source: st.SearchStrategy[list[Any]] = st.one_of(
    st.just([[], []]), st.just([[], []]), st.lists(records, min_size=2, max_size=2)
)
epochs: st.SearchStrategy[list[Any]] = st.lists(
    st.tuples(st.integers(0, 150), of_source, of_source, st.sampled_from(["", "fails", "restarts", "restarts"])),
    min_size=5,
    max_size=14,
)


@pytest.mark.slow("a model")
@given(epochs, st.integers(0, 30), st.sampled_from([50, 120]), st.sampled_from([50, 90, 90, None]), st.integers(1, 2))
def test_windows_close_as_the_model_says(epochs, bound, timeout, other, parallelism):
    def build(env, left, right):
        timed = [
            stream.assign_timestamps_and_watermarks(
                bounded(bound) if after is None else bounded(bound).with_wall_clock_progress(after)
            )
            for stream, after in ((left, timeout), (right, other))
        ]
        windows = timed[0].union(timed[1]).key_by(first).window(TumblingEventTimeWindows.of(50))
        windows = windows.side_output_late_data(LATE).process(Numbers())
        return {"windows": windows, "late": windows.get_side_output(LATE)}

    sources = [Source(bound, timeout), Source(bound, other)]
    there: dict[Any, list[int]] = {}
    watermark, number, now = NEVER, 0, START
    with ProgramTestHarness(build, parallelism=parallelism, processing_time=START) as harness:
        for passes, lefts, rights, accident in epochs:
            harness.advance_processing_time(passes)
            now += passes
            late = []
            for name, source, partitions in (("left", sources[0], lefts), ("right", sources[1], rights)):
                numbered = []
                for partition, content in enumerate(partitions):
                    records = []
                    for key, time in content:
                        number += 1
                        records.append((key, time, number))
                    numbered.append(records)
                    harness.push_all(name, records, partition=partition)
                    for record in records:
                        window = record[0], (record[1] // 50 * 50, record[1] // 50 * 50 + 50)
                        if window[1][1] - 1 <= watermark:
                            late.append(record)
                        else:
                            there.setdefault(window, []).append(record[2])
                source.epoch(now, numbered)
            watermark = max(watermark, min(source.watermark for source in sources))
            fired = [(*window, sorted(there.pop(window))) for window in sorted(there) if window[1][1] - 1 <= watermark]
            if accident == "fails":
                harness.fail_epoch()
            outputs = harness.run_epoch()
            assert sorted(outputs["windows"]) == fired
            assert sorted(outputs["late"]) == sorted(late)
            if accident == "restarts":
                harness.restore(harness.snapshot())
