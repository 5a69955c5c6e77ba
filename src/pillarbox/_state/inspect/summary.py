"""The figures of a subtask's state, as its log has it: how much there is, and of whom."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._errors import shorten
from pillarbox._state.inspect.view import LogView, ViewedRows
from pillarbox._state.keys.addresses import OPERATOR
from pillarbox._state.slots import CARRIED, state_name
from pillarbox._state.types.sizes import size_of_all

# Of each chunk this many of the keys with most state are kept by name.
_NAMED = 20
# Of each chunk about this many rows are looked at to learn what each state takes.
_SAMPLED = 256
_MINUS_ONE = 0x2545F4914F6CDD1D


@dataclass
class LogSummary:
    """What there is in a log, as plain data.

    Attributes:
        keys: number of keys that have state or timers; 0 of an operator by columns, whose keys are in Arrow streams.
        namespaces: number of rows of namespaces of keys, such as windows.
        timers: their number, by domain.
        next_timers: the earliest timestamp of each domain (epoch ms).
        watermark: the event time of the task (epoch ms).
        carried: number of requests that are carried on, by operator.
        state_bytes: about how many bytes the state takes in a new log.
        own_bytes: the same of the operator's own state, such as broadcast state.
        bytes_of: the same of each state by its name, without the keys themselves; an estimate of a sample of the rows.
        largest: the keys with most state, as text, and about how many bytes each takes.
    """

    keys: int = 0
    namespaces: int = 0
    timers: dict[str, int] = field(default_factory=dict)
    next_timers: dict[str, int] = field(default_factory=dict)
    watermark: int | None = None
    carried: dict[str, int] = field(default_factory=dict)
    state_bytes: int = 0
    own_bytes: int = 0
    bytes_of: dict[str, int] = field(default_factory=dict)
    largest: list[tuple[str, int]] = field(default_factory=list)

    @staticmethod
    def of(view: LogView, top: int, *, by_columns: bool = False) -> LogSummary:
        """Return the summary of a log, with its largest keys, so many of them.

        Args:
            by_columns: whether its operator keeps the rows of all keys under one.

        Raises:
            CheckpointMismatchError: something is missing, or is not what was written, or cannot be read.
        """
        found = LogSummary()
        found._add_task(view.task_state())
        hashes: list[npt.NDArray[np.int64]] = []
        sizes: list[npt.NDArray[np.float64]] = []
        named: dict[int, Any] = {}
        for every_row in view.rows():
            found._add_states(every_row)
            rows = found._without_own(every_row)
            every = np.fromiter(map(_hash, rows.keys), np.int64, len(rows.keys))
            mine, places, indexes = np.unique(every, return_index=True, return_inverse=True)
            hashes.append(mine)
            sizes.append(np.bincount(indexes, rows.sizes).astype(np.float64))
            for largest in np.argsort(sizes[-1])[-_NAMED:].tolist():
                named[int(mine[largest])] = rows.keys[places[largest]]
            for place, (name, kind) in enumerate(rows.layout, 1):
                if kind == "timers":
                    found._add_timers(name.rpartition("/")[2], [row[place] for row in rows.rows])
        if hashes:
            keys, indexes = np.unique(np.concatenate(hashes), return_inverse=True)
            totals = np.bincount(indexes, np.concatenate(sizes))
            found.state_bytes = found.own_bytes + round(float(totals.sum()))
            if by_columns:
                return found
            found.keys = len(keys)
            of = np.fromiter(named, np.int64, len(named))
            bytes_of = zip(named.values(), totals[np.searchsorted(keys, of)].tolist())
            ordered = sorted(bytes_of, key=lambda each: -each[1])[:top]
            found.largest = [(shorten(key), round(size)) for key, size in ordered]
        return found

    def _add_task(self, task: dict[str, Any]) -> None:
        gate = task.get("gate")
        if gate:
            self.watermark = gate["valve"]["watermark"]
        for uid, requests in (task.get("operators") or {}).items():
            if isinstance(requests, list):
                self.carried[uid] = sum(type(each) is tuple and each[0] in CARRIED for each in requests)

    def _without_own(self, rows: ViewedRows) -> ViewedRows:
        """Return rows without the row of the operator's own state, whose size is noted: it is of no key."""
        if rows.namespaces is None:
            return rows
        key, own, _ = OPERATOR
        others = [
            place for place, each in enumerate(zip(rows.keys, rows.namespaces)) if each[0] is not key or each[1] != own
        ]
        self.namespaces += len(others)
        if len(others) == len(rows.keys):
            return rows
        self.own_bytes += round(float(rows.sizes.sum() - rows.sizes[others].sum()))
        self.state_bytes = self.own_bytes
        return rows._replace(
            keys=[rows.keys[place] for place in others],
            namespaces=[rows.namespaces[place] for place in others],
            rows=[rows.rows[place] for place in others],
            sizes=rows.sizes[others],
        )

    def _add_states(self, rows: ViewedRows) -> None:
        """Share out what rows take among their states, by the sizes of values of some of them."""
        step = len(rows.rows) // _SAMPLED + 1
        some = rows.rows[::step]
        sizes = {
            state_name(name): size_of_all([value for row in some if (value := row[place]) is not None])
            for place, (name, kind) in enumerate(rows.layout, 1)
            if kind != "timers"
        }
        slots = [row[place] for row in some for place, (_, kind) in enumerate(rows.layout, 1) if kind == "timers"]
        rest = size_of_all(rows.keys[::step]) + size_of_all([slot for slot in slots if slot is not None])
        total = sum(sizes.values()) + rest
        for name, size in sizes.items():
            share = float(rows.sizes.sum()) * size / total if total else 0.0
            self.bytes_of[name] = self.bytes_of.get(name, 0) + round(share)

    def _add_timers(self, domain: str, slots: list[Any]) -> None:
        timestamps = [timestamp for slot in slots for timestamp in timestamps_in(slot)]
        if timestamps:
            self.timers[domain] = self.timers.get(domain, 0) + len(timestamps)
            self.next_timers[domain] = min(*timestamps, self.next_timers.get(domain, timestamps[0]))

    def add(self, other: LogSummary, top: int) -> None:
        """Add the summary of another subtask."""
        self.keys += other.keys
        self.namespaces += other.namespaces
        self.state_bytes += other.state_bytes
        self.own_bytes += other.own_bytes
        for name, size in other.bytes_of.items():
            self.bytes_of[name] = self.bytes_of.get(name, 0) + size
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


def _hash(key: Any) -> int:
    """Return the hash of a key, which for Python is the same of -1 and -2."""
    if isinstance(key, tuple):
        return hash((len(key), *map(_hash, key)))
    found = hash(key)
    return _MINUS_ONE if found == -2 and key == -1 else found


def timestamps_in(slot: Any) -> list[int]:
    """Return the timestamps in a slot of timers, in order."""
    if slot is None:
        return []
    return [slot] if isinstance(slot, int) else sorted(slot)
