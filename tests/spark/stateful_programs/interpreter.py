"""Random programs, stored in rows, and processors that run them on Spark and on pillarbox.

Each key has its own program. A row contains calls of state and timer methods as JSON. The calls' results are emitted.
"""

from __future__ import annotations

import json
import random
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

SCHEMA = "k STRING, t TIMESTAMP, n INT, calls STRING, later STRING"
OUTPUT = "k STRING, said STRING"
START = 1_600_000_000
METHODS = {
    "value": ["exists", "get", "clear", "update"],
    "list": ["exists", "get", "clear", "put", "appendValue", "appendList"],
    "map": ["exists", "clear", "getValue", "containsKey", "updateValue", "removeKey", "keys", "values", "iterator"],
    "timer": ["register", "register", "delete", "list"],
}
_NUMBER_OF_ARGUMENTS = {"getValue": 1, "containsKey": 1, "updateValue": 2, "removeKey": 1}


def _argument(draw: random.Random, method: str) -> list[Any]:
    number: Any = draw.choice([0, 1, 2, 3, 2**40, None, 1.5, True])
    if method == "update":
        return [[number, draw.choice(["a", 5, None])]]
    if method in ("put", "appendList"):
        return [[[draw.choice([1, 2, 3])] for _ in range(draw.randrange(1, 3))]]
    if method == "appendValue":
        return [[number]]
    if method in _NUMBER_OF_ARGUMENTS:
        return [[draw.choice("xy")], [number]][: _NUMBER_OF_ARGUMENTS[method]]
    return []


def draw_calls(draw: random.Random, most: int, *, timers: bool) -> str:
    calls: list[Any] = []
    for _ in range(draw.randrange(1, most)):
        state = draw.choice(list(METHODS)[: 4 if timers else 3])
        method = draw.choice(METHODS[state])
        # Timers: seconds after the row's time.
        arguments = [draw.choice([0, 1, 3, 8])] if state == "timer" else _argument(draw, method)
        calls.append([state, method, *arguments])
    return json.dumps(calls)


def draw_rows(seed: int, programs: int, batches: int, *, timers: bool) -> list[list[dict[str, Any]]]:
    """Return random rows for each micro-batch. Some are late, and some exactly at the watermark. The first key is null.

    Args:
        timers: whether to include timer calls. (Without a time mode, ``listTimers`` crashes Spark's worker.)
    """
    draw = random.Random(seed)
    rows: list[list[dict[str, Any]]] = []
    for batch in range(batches):
        rows.append([])
        for program in range(programs):
            for number in range(draw.choice([0, 1, 1, 2])):
                second = START + 5 * batch + draw.choice([-12, -7, -2, 0, 1, 4])
                micros = draw.choice([0, 0, 500])
                rows[-1].append(
                    {
                        "k": f"p{program}" if program else None,
                        "t": f"{datetime.fromtimestamp(second, timezone.utc):%Y-%m-%dT%H:%M:%S}.{micros:06}Z",
                        "n": number,
                        "calls": draw_calls(draw, 6, timers=timers),
                        "later": draw_calls(draw, 3, timers=timers),
                    }
                )
    return rows


def write_rows(rows: list[list[dict[str, Any]]], folder: Path) -> None:
    import os

    folder.mkdir(parents=True)
    for number, batch in enumerate(rows):
        path = folder / f"{number:03}.json"
        path.write_text("".join(json.dumps(row) + "\n" for row in batch))
        os.utime(path, (START + number, START + number))  # Spark reads the oldest file first


def shown(value: Any) -> Any:
    if hasattr(value, "__next__"):
        value = list(value)
        return sorted(value, key=repr)
    return value


def outcome(call: Any, *arguments: Any) -> str:
    try:
        return repr(shown(call(*arguments)))
    except Exception as error:
        return type(error).__name__


def _tuples(argument: Any) -> Any:
    return tuple(argument) if not argument or not isinstance(argument[0], list) else list(map(tuple, argument))


class Interpreter(StatefulProcessor):
    """Runs the calls that rows contain, and the calls for expired timers.

    Args:
        ttl: time-to-live of the states (ms), or None.
        by_clock: whether timers use processing time. If so, times are relative to the clock.
    """

    def __init__(self, ttl: int | None = None, *, by_clock: bool = False) -> None:
        self.ttl = ttl
        self.by_clock = by_clock

    def init(self, handle):
        self.handle = handle
        self.states = {
            "value": handle.getValueState("value", "n INT, s STRING", self.ttl),
            "list": handle.getListState("list", "n INT", self.ttl),
            "map": handle.getMapState("map", "k STRING", "n INT", self.ttl),
        }
        self.later = handle.getValueState("later", "calls STRING")

    def handleInputRows(self, key, rows, timerValues):
        for number, row in enumerate(rows):
            yield self.say(key, f"row {number} {row.n}", self.run(row.calls, self.base(timerValues, row.t)))
            self.later.update((row.later,))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        base = timerValues.getCurrentProcessingTimeInMs() if self.by_clock else expiry
        calls = (self.later.get() or ("[]",))[0]
        at = self.shown_time(expiry, base)
        yield self.say(key, f"timer {at} {tuple(key)} {key.k}", self.run(calls, base))

    def base(self, timerValues, t):
        return timerValues.getCurrentProcessingTimeInMs() if self.by_clock else int(t.timestamp() * 1000)

    def run(self, calls: str, base: int) -> list[str]:
        return [self.call(base, *call) for call in json.loads(calls)]

    def call(self, base: int, state: str, method: str, *arguments: Any) -> str:
        if state != "timer":
            return outcome(getattr(self.states[state], method), *map(_tuples, arguments))
        at = base + 1000 * arguments[0] * (3600 if self.by_clock else 1)
        if method == "list":
            return outcome(lambda: iter([self.shown_time(timer, base) for timer in self.handle.listTimers()]))
        return outcome(getattr(self.handle, f"{method}Timer"), at)

    def shown_time(self, time: int, base: int) -> int:
        """Return a time to emit. Processing times are relative, as Spark's micro-batches begin at other times."""
        return round((time - base) / 3_600_000) if self.by_clock else time

    def say(self, key, what: str, outcomes: list[str]):
        return Row(said=f"{what} {outcomes}", k=key[0])


class FrameInterpreter(Interpreter):
    """Runs the calls of state methods that pandas frames contain."""

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            for row in frame.itertuples():
                at = row.t.tz_localize("UTC")
                yield self.say(key, f"row {row.n}", self.run(row.calls, self.base(timerValues, at)))
                self.later.update((row.later,))

    def say(self, key, what: str, outcomes: list[str]):
        return pd.DataFrame({"k": [key[0]], "said": [f"{what} {outcomes}"]})


def run_with_state(key, frames, state):
    before, calls = state.getOption, []
    for frame in frames:
        for row in frame.itertuples():
            calls += [(call, row.t.tz_localize("UTC")) for call in json.loads(row.calls)]
    outcomes = []
    for (name, method, *arguments), t in calls:
        if name == "timer" and method != "list":
            outcomes.append(outcome(state.setTimeoutTimestamp, int(t.timestamp() * 1000) + 1000 * arguments[0]))
        elif method in ("clear", "put"):
            outcomes.append(outcome(state.remove))
        elif method == "update":
            outcomes.append(outcome(state.update, tuple(arguments[0])))
        else:
            outcomes.append(repr((state.exists, state.getOption)))
    if state.hasTimedOut and before is not None and before[0] == 1:
        state.remove()
    if state.hasTimedOut and before is not None and before[0] == 2:
        state.update((3, "timed out"))
    text = f"{state.hasTimedOut} {key} {type(key[0]).__name__} {before} {state.getCurrentWatermarkMs()} {outcomes}"
    yield pd.DataFrame({"k": [key[0]], "said": [text]})
