"""What the functions of ``letters_job.py`` must give, in plain Python: to them, what is refused has never been."""

from __future__ import annotations

import json
from collections import defaultdict

from tests.faults.oracles.ledger_oracle import Accounts
from tests.faults.programs.job import Event
from tests.faults.programs.letters_job import is_odd_one, is_refused, is_refused_timer, is_spoilt, is_unfit
from tests.faults.programs.window_job import TUMBLING

__all__ = ["LettersModel"]


class LettersModel(Accounts):
    """The accounts of a ledger that refuses, the function without key, and windows that refuse.

    Faults' places are the ids of the records that were refused under their key, and its timers.
    """

    def __init__(self) -> None:
        super().__init__(18, "letter timer")
        self._windows: defaultdict[tuple[int, int], list[int]] = defaultdict(list)

    def record(self, event: Event) -> None:
        """Take a record."""
        self._halve(event)
        self._to_window(event)
        if is_refused(event):
            self.points["letter"].append(event.id)
            letter = [event.id, None, "strict", f"ValueError: {event.id} is refused", True]
            self.rows.append((23, event.key, event.ts, json.dumps(letter)))
        else:
            self.rows.append((19, event.key, event.ts, json.dumps(event.id)))
            super().record(event)

    def advance(self, watermark: int) -> None:
        """Let event time go on: windows end, too."""
        before = self.watermark
        super().advance(watermark)
        for (key, start), ids in self._windows.items():
            end = start + TUMBLING - 1
            if before < end <= watermark and is_spoilt(sum(ids)):
                letter = [[[len(ids), sum(ids)]], "picky", f"ArithmeticError: {sum(ids)} is refused", True]
                self.rows.append((40, key, end, json.dumps(letter)))
            elif before < end <= watermark:
                self.rows.append((39, key, start, json.dumps([len(ids), sum(ids)])))

    def _to_window(self, event: Event) -> None:
        start = event.ts - event.ts % TUMBLING
        if start + TUMBLING - 1 <= self.watermark:
            return
        if is_unfit(event):
            letter = [event.id, "picky", f"KeyError: {event.id}", True]
            self.rows.append((40, event.key, event.ts, json.dumps(letter)))
        else:
            self._windows[event.key, start].append(event.id)

    def timer(self, key: int, timestamp: int) -> None:
        """Take a timer, which has fired also if it is refused."""
        if is_refused_timer(timestamp):
            error = f"ValueError: the timer at {timestamp} is refused"
            self.rows.append((23, key, timestamp, json.dumps([None, "event time", "strict", error, True])))
        else:
            super().timer(key, timestamp)

    def _halve(self, event: Event) -> None:
        if is_odd_one(event):
            letter = [event.id, None, "halves", f"LookupError: {event.id} has one part", True]
            self.rows.append((24, event.key, event.ts, json.dumps(letter)))
        else:
            self.rows += [(22, event.key, event.ts, json.dumps([event.id, part])) for part in (1, 2)]
