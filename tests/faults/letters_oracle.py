"""What the functions of ``letters_job.py`` must give, in plain Python: to them, what is refused has never been."""

from __future__ import annotations

import json

from tests.faults.job import Event
from tests.faults.ledger_oracle import Accounts
from tests.faults.letters_job import is_odd_one, is_refused, is_refused_timer

__all__ = ["LettersModel"]


class LettersModel(Accounts):
    """The accounts of a ledger that refuses, and the function without key.

    Attributes:
        refused: ids of the records that were refused under their key, since somebody took them.
    """

    def __init__(self) -> None:
        super().__init__(18)
        self.refused: list[int] = []

    def record(self, event: Event) -> None:
        """Take a record."""
        self._halve(event)
        if is_refused(event):
            self.refused.append(event.id)
            letter = [event.id, None, "strict", f"ValueError: {event.id} is refused", True]
            self.rows.append((23, event.key, event.ts, json.dumps(letter)))
        else:
            self.rows.append((19, event.key, event.ts, json.dumps(event.id)))
            super().record(event)

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
