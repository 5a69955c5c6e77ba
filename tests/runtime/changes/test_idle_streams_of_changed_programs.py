"""Idle streams in changed programs. An idle stream sends nothing, so new receivers must be notified of its idleness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, TumblingEventTimeWindows, WatermarkStrategy, WindowFunction
from pillarbox.testing import ProgramTestHarness, row

BY_AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
IDLE = BY_AT.with_idleness("1 second")


class Pass(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Count(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, window.start, len(list(inputs))


def windows(stream: Any) -> Any:
    return stream.key_by("card").window(TumblingEventTimeWindows.of("1 second")).apply(Count()).uid("windows")


def paid(*times: int) -> list[Any]:
    return [row(card="c", at=at) for at in times]


def of_a_strategy(stream: Any, name: str) -> Any:
    passed = stream.key_by("card").process(Pass()).uid(f"pass-{name}")
    return passed.assign_timestamps_and_watermarks(IDLE).uid(f"times-{name}")


def of_a_source(stream: Any, name: str) -> Any:
    return stream.assign_timestamps_and_watermarks(IDLE).key_by("card").process(Pass()).uid(f"pass-{name}")


def run(before: Any, after: Any, by: str, folder: Path, *, more: Any = ()) -> list[Any]:
    with ProgramTestHarness(before, parallelism=2) as first:
        for source in ("a", "b"):
            first.push_all(source, paid(1_000))
        first.run_epoch()
        first.advance_processing_time(10_000)
        first.push_all("a", paid(2_000))
        first.run_epoch()
        first.run_epoch()
        first.write_savepoint(folder / "savepoint")
        snapshot, now = first.snapshot(), first.processing_time_service.current_processing_time()

    def again(env, a, b):
        if by == "savepoint":
            env.from_savepoint(folder / "savepoint")
        return after(env, a, b)

    state = None if by == "savepoint" else snapshot
    with ProgramTestHarness(again, parallelism=2, processing_time=now, snapshot=state) as second:
        second.push_all("a", paid(5_000, 9_000))
        second.run_epoch()
        return second.run_epoch()["windows"] + second.get_output("windows")


@pytest.mark.parametrize("by", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("timed", [of_a_strategy, of_a_source])
def test_an_operator_that_is_new(tmp_path: Path, timed: Any, by: str) -> None:
    def streams(a: Any, b: Any) -> dict[str, Any]:
        return {"a": timed(a, "a"), "b": timed(b, "b")}

    def after(env, a, b):
        result = streams(a, b)
        return {"windows": windows(result["a"].union(result["b"])), **result}

    assert ("c", 5_000, 1) in run(lambda env, a, b: streams(a, b), after, by, tmp_path)


@pytest.mark.parametrize("by", ["savepoint", "checkpoint"])
@pytest.mark.parametrize("timed", [of_a_strategy, of_a_source])
def test_an_input_more_of_an_operator(tmp_path: Path, timed: Any, by: str) -> None:
    def before(env, a, b):
        first, second = timed(a, "a"), timed(b, "b")
        return {"a": first, "b": second, "windows": windows(first)}

    def after(env, a, b):
        first, second = timed(a, "a"), timed(b, "b")
        return {"a": first, "b": second, "windows": windows(first.union(second))}

    assert ("c", 5_000, 1) in run(before, after, by, tmp_path)


@pytest.mark.parametrize("by", ["savepoint", "checkpoint"])
def test_a_stream_more_where_streams_meet_in_a_task(tmp_path: Path, by: str) -> None:
    def build(more: bool) -> Any:
        def built(env, a, b):
            passed = a.union(b.map(lambda value: row(card="d", at=value.at))).key_by("card").process(Pass()).uid("pass")
            parts = {
                card: passed.filter(lambda value, card=card: value.card == card)
                .assign_timestamps_and_watermarks(IDLE)
                .uid(f"times-{card}")
                for card in ("c", "d")
            }
            met = parts["c"].union(parts["d"]) if more else parts["c"]
            return {"d": parts["d"], "windows": windows(met.map(lambda value: value).uid("met"))}

        return built

    assert ("c", 5_000, 1) in run(build(more=False), build(more=True), by, tmp_path)


def test_nothing_is_said_twice_to_those_who_know() -> None:
    def build(env, a, b):
        first, second = of_a_source(a, "a"), of_a_source(b, "b")
        return {"b": second, "windows": windows(first.union(second))}

    sent = []
    for made_anew in (False, True):
        with ProgramTestHarness(build, parallelism=2) as harness:
            harness.push_all("b", paid(1_000))
            harness.run_epoch()
            harness.advance_processing_time(10_000)
            harness.run_epoch()
            if made_anew:
                harness.restore(harness.snapshot())
            harness.push_all("a", paid(5_000))
            harness.run_epoch()
            sent.append([(report.vertex, report.subtask, report.bytes_out) for report in harness._job.reports])
    assert sent[0] == sent[1]
