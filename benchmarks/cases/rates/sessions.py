# SPDX-License-Identifier: Apache-2.0
"""Keyed sessions: pillarbox compared with Spark's stateful Python APIs and PyFlink, in rows per second.

The work: a session ends when a key has had no row for 30 seconds. Each row's time is added to a list state, the key's
old event-time timer is deleted, and a new timer is set 30 seconds after the row. When the timer fires, or a row arrives
that is past it, emit (key, first, last, number of rows). There are 100,000 keys, and micro-batches of 1,000,000 rows
that cover five minutes each, so of ten rows of a key, about four begin a session. ``--keys`` and ``--rows`` set other
sizes.

Peers, limits and schedule are as in ``keyed.py`` and ``keyed_contest.py``. A key's rows arrive in order, because
they are all in one part of the input. Spark's APIs return a key's rows in no defined order, so they are sorted there.
Spark's sides are as economical as their APIs allow: per key and micro-batch, one timer is deleted and one is set, and
list and value state are written once. Sessions that begin and end within a micro-batch are never stored in state.

All sides must emit the same sessions: the sessions of a micro-batch, or of PyFlink's whole job, are checked exactly.

In the last line, ``ratio`` is pillarbox's rows per second divided by the rate of the fastest of Spark's three,
``ratio_flink`` divided by the rate of PyFlink's faster mode, and ``of_identity`` the share of that limit. ``bare_loop``
is the bare loop's rows per second.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.cases.rates.keyed_contest import (
    DELAY,
    SCHEMA,
    SMALL,
    KeyedBatches,
    KeyedContest,
    KeyedFunctions,
    options,
    present,
    run_keyed,
)
from benchmarks.cases.rates.window_rows import end_sessions
from benchmarks.harness.case import Outcome, shown
from benchmarks.harness.rows import FOR_EVER, Columns, Ints
from pillarbox import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

__all__ = ["BLOCKS", "DELAY", "FUNCTIONS", "SCHEMA", "SMALL", "options", "present", "query", "run"]

GAP = 30_000
WORK = "sessions"
OUTPUT = "key INT, first LONG, last LONG, n LONG"

# -- pillarbox --


class Sessions(KeyedProcessFunction):
    """Collects a key's rows until a gap without rows. Then emits the first time, the last time and the number."""

    def open(self, ctx):
        self.times = ctx.get_list_state(ListStateDescriptor("times"))
        self.end = ctx.get_state(ValueStateDescriptor("end"))

    def process_element(self, row, ctx):
        ts = row.ts
        end = self.end.value()
        if end is not None:
            ctx.timer_service().delete_event_time_timer(end)
            if ts >= end:
                yield self.session(ctx)
                self.times.clear()
        self.times.add(ts)
        self.end.update(ts + GAP)
        ctx.timer_service().register_event_time_timer(ts + GAP)

    def on_timer(self, timestamp, ctx):
        yield self.session(ctx)
        self.times.clear()
        self.end.clear()

    def session(self, ctx):
        times = list(self.times)
        return ctx.get_current_key(), times[0], times[-1], len(times)


# -- Spark --


def split(times, more):
    """Return the sessions of stored and new times. The last session is still open."""
    sessions = [times] if times else []
    for ts in more:
        if sessions and ts < sessions[-1][-1] + GAP:
            sessions[-1].append(ts)
        else:
            sessions.append([ts])
    return sessions


class RowSessions(StatefulProcessor):
    """The same in Spark's row flavour."""

    def init(self, handle):
        self.handle = handle
        self.times = handle.getListState("times", "ts LONG")
        self.end = handle.getValueState("end", "ts LONG")

    def handleInputRows(self, key, rows, timerValues):
        for session in self.move(sorted([row[1] for row in rows])):
            yield Row(key=key[0], first=session[0], last=session[-1], n=len(session))

    def move(self, more):
        """Add the times of new rows, and return the sessions that they end."""
        state = self.end.get()
        stored = None if state is None else state[0]
        if stored is not None and more[0] < stored:
            # The stored session continues, and is read only if it also ends here.
            sessions = split([], more)
            if len(sessions) > 1:
                sessions[0] = [time[0] for time in self.times.get()] + sessions[0]
                self.times.put([(ts,) for ts in sessions[-1]])
            else:
                self.times.appendList([(ts,) for ts in sessions[0]])
        else:
            sessions = split([], more)
            if stored is not None:
                sessions.insert(0, [time[0] for time in self.times.get()])
            self.times.put([(ts,) for ts in sessions[-1]])
        if stored is not None:
            self.handle.deleteTimer(stored)
        self.handle.registerTimer(more[-1] + GAP)
        self.end.update((more[-1] + GAP,))
        return sessions[:-1]

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        session = self.ended()
        yield Row(key=key[0], first=session[0], last=session[-1], n=len(session))

    def ended(self):
        """Remove and return the session whose timer has fired."""
        session = [time[0] for time in self.times.get()]
        self.times.clear()
        self.end.clear()
        return session

    def close(self):
        pass


class PandasSessions(RowSessions):
    """The same in Spark's pandas flavour."""

    def handleInputRows(self, key, rows, timerValues):
        sessions = self.move(sorted([ts for frame in rows for ts in frame["ts"].tolist()]))
        if sessions:
            yield frame_of(key[0], sessions)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        yield frame_of(key[0], [self.ended()])


def frame_of(key, sessions):
    """Return a key's sessions as a pandas frame."""
    return pd.DataFrame(
        {
            "key": key,
            "first": [session[0] for session in sessions],
            "last": [session[-1] for session in sessions],
            "n": [len(session) for session in sessions],
        }
    )


def sessions_with_state(key, frames, state):
    """The same for ``applyInPandasWithState``, which calls it for the key's rows or its timeout."""
    stored = np.frombuffer(state.get[0], np.int64).tolist() if state.exists else []
    if state.hasTimedOut:
        state.remove()
        yield frame_of(key[0], [stored])
        return
    sessions = split(stored, sorted([ts for frame in frames for ts in frame["ts"].tolist()]))
    state.update((np.array(sessions[-1], np.int64).tobytes(),))
    state.setTimeoutTimestamp(sessions[-1][-1] + GAP)
    if len(sessions) > 1:
        yield frame_of(key[0], sessions[:-1])


FUNCTIONS = KeyedFunctions(OUTPUT, Sessions, RowSessions, PandasSessions, sessions_with_state, state="times BINARY")
query = FUNCTIONS.query


# -- expected results --


class SessionBatches(KeyedBatches):
    """Micro-batches for sessions with a moving timer."""

    def _rows(self, key: Ints, ts: Ints) -> Ints:
        return np.stack([key, ts, np.ones_like(key)])

    def results(self, *, late: bool) -> Iterator[Columns]:
        # Rows of open sessions.
        rows = np.empty((3, 0), np.int64)
        watermark = -1
        for number in count():
            now = self._rows(**self.columns(number))
            after = int(now[1].max()) - DELAY - 1
            rows, ended = end_sessions(np.append(rows, now, axis=1), GAP, watermark if late else after, at_once=True)
            watermark = after
            yield ended[:4]

    def of_job(self, number: int) -> Columns:
        return end_sessions(self._rows(**self.job_columns(number)), GAP, FOR_EVER)[1][:4]


class Keyed(KeyedContest):
    """The contest of keyed sessions."""

    module = __name__
    flink = "benchmarks.peers.flink_jobs:KeyedSessions"
    title = "sessions with a gap of 30 seconds"
    kind = SessionBatches


def run(arguments: argparse.Namespace, directory: Path) -> Outcome:
    return run_keyed(Keyed, WORK, arguments, directory)


BLOCKS = {"sessions": shown(present, "sessions")}
