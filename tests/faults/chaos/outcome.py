"""Compares a ``make chaos`` run with the expected output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.faults.chaos.damage import Damage
from tests.faults.chaos.sinks import LoggedFiles
from tests.faults.oracles.oracle import Answer
from tests.faults.programs import async_job
from tests.faults.programs.job import Epoch, FileSink
from tests.faults.programs.limited_job import first_sums_answer
from tests.faults.programs.second_job import GIVEN_UP

__all__ = ["Outcome"]


class Outcome:
    """The wrong rows of one seed's run.

    Args:
        say: called with the text of each error.

    Attributes:
        damages: damage to files of the first program's checkpoint.
        lost: number of missing rows.
        doubled: number of duplicated or unexpected rows.
        silent: number of lost and doubled rows after unnoticed damage.
        given_up: number of requests that the second program gave up on.
    """

    def __init__(self, epochs: Sequence[Epoch], right: Answer, say: Callable[[str], None]) -> None:
        self._epochs = epochs
        self._right = right
        self._say = say
        self.damages: list[Damage] = []
        self.lost = self.doubled = self.silent = self.given_up = 0

    def wrong_batches(self, out: Path, damage: Damage) -> list[int]:
        results = [(batch, rows) for batch, rows in FileSink(out).output().items() if damage.may_have_spoilt(batch)]
        return sorted(batch for batch, rows in results if any(_differ(rows, self._due(batch))))

    def check(self, out: Path) -> None:
        sink = FileSink(out)
        output = sink.output()
        for batch in sorted(output.keys() | self._right.output.keys()):
            self.compare_batch(batch, output.get(batch, []), f"batch {batch}")
        for batch, rows in sink.earlier():
            self.compare_batch(batch, rows, f"an earlier attempt at batch {batch}")

    def check_frames(self, out: Path, right: Mapping[int, Sequence[Any]]) -> None:
        sink = FileSink(out)
        output = sink.output()
        for batch in sorted(output.keys() | right.keys()):
            self._compare(output.get(batch, []), right.get(batch, []), f"the functions' batch {batch}", [])
        for batch, rows in sink.earlier():
            self._compare(rows, right.get(batch, []), f"an earlier attempt at the functions' batch {batch}", [])

    def check_files(self, files: LoggedFiles, right: Mapping[int, Sequence[Any]]) -> None:
        self._compare(files.rows(), [row for rows in right.values() for row in rows], "the functions' files", [])

    def compare_totals(self, batch: int, totals: Mapping[int, int], reader: str) -> None:
        right = self._right.totals[min(batch, len(self._right.totals) - 1)]
        suspects = [damage for damage in self.damages if damage.may_have_spoilt(batch)]
        self._compare(list(totals.items()), list(right.items()), f"what {reader} found after batch {batch}", suspects)

    def check_first_sums(self, file: Path) -> None:
        document, right = json.loads(file.read_text()), first_sums_answer(self._epochs)
        self._compare(list(enumerate(map(tuple, document))), list(enumerate(map(tuple, right))), "the first sums", [])

    def check_squares(self, out: Path, *, may_give_up: bool) -> None:
        results = [row for rows in async_job.batches_of(FileSink(out)).values() for row in rows]
        events = [event for parts in self._epochs[:-1] for part in parts for event in part]
        given_up = {row.id for row in results if row.square == GIVEN_UP and may_give_up}
        self.given_up = len(given_up)
        right = [(event.id, event.key, GIVEN_UP if event.id in given_up else event.id**2) for event in events]
        self._compare([(row.id, row.key, row.square) for row in results], right, "the squares", [])

    def compare_batch(self, batch: int, rows: Sequence[Any], what: str) -> None:
        self._compare(
            rows, self._due(batch), what, [damage for damage in self.damages if damage.may_have_spoilt(batch)]
        )

    def _due(self, batch: int) -> list[Any]:
        return self._right.output.get(batch, [])

    def _compare(self, rows: Sequence[Any], right: Sequence[Any], what: str, suspects: Sequence[Damage]) -> None:
        missing, extra = _differ(rows, right)
        if not missing and not extra:
            return
        self._say(f"WRONG: {what}: {missing} rows missing, {extra} too many")
        self.lost += missing
        self.doubled += extra
        if suspects:
            self.silent += missing + extra
        for suspect in suspects:
            suspect.wrong += missing + extra
            self._say(f"SILENT: after {suspect.how}: {suspect.file}")


def _differ(rows: Sequence[Any], right: Sequence[Any]) -> tuple[int, int]:
    actual, expected = Counter(rows), Counter(right)
    return sum((expected - actual).values()), sum((actual - expected).values())
