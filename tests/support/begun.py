"""A program that has run one epoch. Tests resume other programs from its state, or check that they are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError, WatermarkStrategy
from pillarbox._graph.description import DescriptionDifferences, compare, describe_programs
from pillarbox.testing import ProgramTestHarness

__all__ = ["AT", "Begun", "Made"]

AT = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")

# Creates an operator's output stream from two streams.
Made = Callable[[Any, Any], Any]


def program(make: Made, uid: str = "op", savepoint: Path | None = None) -> Any:
    def build(env, left, right):
        if savepoint is not None:
            env.from_savepoint(savepoint, allow_non_restored_state=True)
        timed = (stream.assign_timestamps_and_watermarks(AT) for stream in (left, right))
        return make(*timed).uid(uid)

    return build


class Begun:
    def __init__(self, make: Made, folder: Path, **records: list[Any]) -> None:
        self._savepoint = folder / "savepoint"
        with ProgramTestHarness(program(make)) as harness:
            self.output = self._run(harness, records)
            harness.write_savepoint(self._savepoint)
            self._snapshot = harness.snapshot()
            self._description = describe_programs([harness._program])

    def _run(self, harness: ProgramTestHarness, records: dict[str, list[Any]]) -> list[Any]:
        for source, rows in records.items():
            harness.push_all(source, rows)
        return harness.run_epoch()["output"]

    def compared(self, make: Made) -> DescriptionDifferences:
        with ProgramTestHarness(program(make)) as harness:
            return compare(self._description, describe_programs([harness._program]))

    def resumes(self, make: Made, *epochs: list[Any], **records: list[Any]) -> list[Any]:
        with ProgramTestHarness(program(make), snapshot=self._snapshot) as harness:
            results = [result for rows in epochs for result in self._run(harness, {"left": rows})]
            return results + self._run(harness, records) + harness.end_input()["output"]

    def refuses(self, make: Made, words: str) -> None:
        (refusal,) = (text for text in self.compared(make).refused if "it kept" in text or "places" in text)
        assert words in refusal and "give it another uid() and start from a savepoint" in refusal
        with pytest.raises(CheckpointMismatchError) as caught:
            self.resumes(make)
        assert words in str(caught.value) and "start from a savepoint with allow_non_restored_state=True" in str(
            caught.value
        )
        with (
            pytest.raises(CheckpointMismatchError) as caught,
            ProgramTestHarness(program(make, savepoint=self._savepoint)) as harness,
        ):
            harness.run_epoch()
        assert words in str(caught.value) and "drop the state with allow_non_restored_state" in str(caught.value)
        with ProgramTestHarness(program(make, "another", self._savepoint)) as harness:
            assert self._run(harness, {}) == []
