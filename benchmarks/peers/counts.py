# SPDX-License-Identifier: Apache-2.0
"""Keyed counts in pillarbox's and Spark's APIs."""

from __future__ import annotations

import sys
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks.harness.process import carry_whole
from pillarbox import KeyedProcessFunction, RuntimeExecutionMode, StreamExecutionEnvironment, ValueStateDescriptor

# Python workers do not import modules that only Spark's APIs need.
carry_whole(sys.modules[__name__])


class Count(KeyedProcessFunction):
    """Emits a key's count for each row.

    Args:
        carries: a further column to emit.
    """

    def __init__(self, carries: str = "") -> None:
        self.carries = carries

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))

    def process_element(self, row, ctx):
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        yield (row.key, getattr(row, self.carries), n) if self.carries else (row.key, n)


class CountWithTimer(KeyedProcessFunction):
    """A count, and a timer that each row (key, time) moves ahead. When the timer fires, the count is emitted.

    Args:
        ahead: milliseconds between a row's time and the timer.
        at_once: whether to emit a key's count for each row instead.
    """

    def __init__(self, ahead: int, *, at_once: bool = False) -> None:
        self.ahead = ahead
        self.at_once = at_once

    def open(self, ctx):
        self.n = ctx.get_state(ValueStateDescriptor("n"))
        self.due = ctx.get_state(ValueStateDescriptor("due"))

    def process_element(self, row, ctx):
        key, at = row
        n = (self.n.value() or 0) + 1
        self.n.update(n)
        timers = ctx.timer_service()
        due = self.due.value()
        if due is not None:
            timers.delete_event_time_timer(due)
        due = at + self.ahead
        timers.register_event_time_timer(due)
        self.due.update(due)
        return ((key, n),) if self.at_once else None

    def on_timer(self, timestamp, ctx):
        self.due.clear()
        return () if self.at_once else ((ctx.get_current_key(), self.n.value()),)


class SparkCount(StatefulProcessor):
    """``Count`` in Spark's row flavour."""

    def __init__(self, carries: str = "") -> None:
        self.carries = carries

    def init(self, handle):
        self.n = handle.getValueState("n", "n LONG")

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        n = 0 if state is None else state[0]
        for row in rows:
            n += 1
            yield Row(**{"key": key[0], self.carries: row[1], "n": n}) if self.carries else Row(key=key[0], n=n)
        self.n.update((n,))

    def close(self):
        pass


class PandasCount(SparkCount):
    """``Count`` in Spark's pandas flavour."""

    def handleInputRows(self, key, rows, timerValues):
        state = self.n.get()
        before = n = 0 if state is None else state[0]
        for frame in rows:
            n += len(frame)
        self.n.update((n,))
        yield pd.DataFrame({"key": key[0], "n": range(before + 1, n + 1)})


def count(
    source: DataFrame,
    output: str,
    function: Any,
    *,
    subtasks: int = 0,
    uid: str = "",
    mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING,
    **more: Any,
) -> DataFrame:
    """Return a pillarbox query: a keyed function over rows with a ``key``, in two partitions.

    Args:
        output: its output columns.
        subtasks: number of subtasks, or 0 for pillarbox's default.
        more: further arguments of ``process``.
    """
    env = StreamExecutionEnvironment.get_execution_environment(source.sparkSession).set_parallelism(2)
    env.set_runtime_mode(mode)
    if subtasks:
        env.set_max_parallelism(subtasks)
    counts = env.from_dataframe(source).key_by("key").process(function, **more)
    return (counts.uid(uid) if uid else counts).to_dataframe(output)
