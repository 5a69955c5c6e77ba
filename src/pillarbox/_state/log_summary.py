"""The figures of a subtask's state, as its log has it: how much there is, and of whom."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._errors import shorten
from pillarbox._state.log_view import LogView

__all__ = ["LogSummary", "timestamps_in"]

# Of each chunk this many of the keys with most state are kept by name.
_NAMED = 20


@dataclass
class LogSummary:
    """What there is in a log, as plain data.

    Attributes:
        keys: number of keys that have state or timers.
        namespaces: number of rows of namespaces, such as windows.
        timers: their number, by domain.
        next_timers: the earliest timestamp of each domain (epoch ms).
        watermark: the event time of the task (epoch ms).
        carried: number of requests that are carried on, by operator.
        state_bytes: about how many bytes the state takes in a new log.
        largest: the keys with most state, as text, and about how many bytes each takes.
    """

    keys: int = 0
    namespaces: int = 0
    timers: dict[str, int] = field(default_factory=dict)
    next_timers: dict[str, int] = field(default_factory=dict)
    watermark: int | None = None
    carried: dict[str, int] = field(default_factory=dict)
    state_bytes: int = 0
    largest: list[tuple[str, int]] = field(default_factory=list)

    @staticmethod
    def of(view: LogView, top: int) -> LogSummary:
        """Return the summary of a log, with its largest keys, so many of them.

        Raises:
            CheckpointMismatchError: something is missing, or is not what was written, or cannot be read.
        """
        found = LogSummary()
        found._add_task(view.task_state())
        hashes: list[npt.NDArray[np.int64]] = []
        sizes: list[npt.NDArray[np.float64]] = []
        named: dict[int, Any] = {}
        for rows in view.rows():
            every = np.fromiter(map(hash, rows.keys), np.int64, len(rows.keys))
            mine, places, indexes = np.unique(every, return_index=True, return_inverse=True)
            hashes.append(mine)
            sizes.append(np.bincount(indexes, rows.sizes).astype(np.float64))
            for largest in np.argsort(sizes[-1])[-_NAMED:].tolist():
                named[int(mine[largest])] = rows.keys[places[largest]]
            if rows.namespaces is not None:
                found.namespaces += len(rows.keys)
            for place, (name, kind) in enumerate(rows.layout, 1):
                if kind == "timers":
                    found._add_timers(name.rpartition("/")[2], [row[place] for row in rows.rows])
        if hashes:
            keys, indexes = np.unique(np.concatenate(hashes), return_inverse=True)
            totals = np.bincount(indexes, np.concatenate(sizes))
            found.keys = len(keys)
            found.state_bytes = round(float(totals.sum()))
            of = np.fromiter(named, np.int64, len(named))
            bytes_of = zip(named.values(), totals[np.searchsorted(keys, of)].tolist())
            ordered = sorted(bytes_of, key=lambda each: -each[1])[:top]
            found.largest = [(shorten(key), round(size)) for key, size in ordered]
        return found

    def _add_task(self, task: dict[str, Any]) -> None:
        gate = task.get("gate")
        if gate:
            valve = gate["valve"] if isinstance(gate, dict) else gate[0]  # format 1
            self.watermark = valve["watermark"]
        for uid, requests in (task.get("operators") or {}).items():
            if isinstance(requests, list):
                self.carried[uid] = sum(type(each) is tuple and each[:1] == ("request",) for each in requests)

    def _add_timers(self, domain: str, slots: list[Any]) -> None:
        timestamps = [timestamp for slot in slots for timestamp in timestamps_in(slot)]
        if timestamps:
            self.timers[domain] = self.timers.get(domain, 0) + len(timestamps)
            self.next_timers[domain] = min(*timestamps, self.next_timers.get(domain, timestamps[0]))

    def add(self, other: LogSummary, top: int) -> None:
        """Add that of another subtask."""
        self.keys += other.keys
        self.namespaces += other.namespaces
        self.state_bytes += other.state_bytes
        for domain, count in other.timers.items():
            self.timers[domain] = self.timers.get(domain, 0) + count
        for domain, timestamp in other.next_timers.items():
            self.next_timers[domain] = min(timestamp, self.next_timers.get(domain, timestamp))
        for uid, count in other.carried.items():
            self.carried[uid] = self.carried.get(uid, 0) + count
        if other.watermark is not None:
            self.watermark = other.watermark if self.watermark is None else min(self.watermark, other.watermark)
        self.largest = sorted((*self.largest, *other.largest), key=lambda each: -each[1])[:top]

    def as_data(self) -> dict[str, Any]:
        """Return it as plain data, for JSON."""
        return asdict(self)


def timestamps_in(slot: Any) -> list[int]:
    """Return the timestamps in a slot of timers, in order."""
    if slot is None:
        return []
    return [slot] if isinstance(slot, int) else sorted(slot)
