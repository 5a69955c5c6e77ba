"""A simulated program: the conditions of its outcome, and which parts of the outcome must agree between two runs.

A program's outcome may depend on the records of an epoch and of its partitions, which Spark guarantees, and on nothing
else. If it does not depend on these either, the program is ``cut_free``. A program that uses the clock is ``timed``:
its outcome must not depend on the exact times of epochs.

Whether a source or subtask becomes idle before or after the last record depends on the clock. So a timed program needs
a ``tail`` that makes all of them idle. ``event_time`` checks after each epoch that the clock is the epochs' clock, and
that restarts change nothing.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from pillarbox.testing._program_harness import Build

Inputs = dict[str, list[Any]]


@dataclass(frozen=True)
class SimulatedProgram:
    """A program and the conditions of its outcome.

    Attributes:
        inputs: draws the records of each source.
        last: the last records, in an epoch of their own.
        tail: advances of the clock before the following epochs without input (milliseconds).
        together: a record's key, by source. Records of a key in one epoch are in one partition, so their order is
            known.
        order: a record's key, by output. Records of one key are emitted in a known order.
        cut_free: the outcome does not depend on the cut into epochs and partitions.
        timed: the program uses the clock.
        bounded: the last epoch ends the input.
        view: extracts the comparable part of an output's records.
        batch: runs in batch mode, with all input in one epoch.
        key_by_key: in ordered outputs, the records of a key are consecutive.
        event_time: event time depends only on the epochs and their times: a run without faults with the same epochs and
            times has the same event time in each subtask after each epoch.
        oracle: computes the outcome from the inputs without pillarbox, or None.
    """

    build: Build
    inputs: Callable[[random.Random], Inputs]
    last: Inputs = field(default_factory=dict)
    tail: tuple[int, ...] = ()
    together: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    order: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    cut_free: bool = False
    timed: bool = False
    bounded: bool = False
    view: Callable[[str, Sequence[Any]], Sequence[Any]] = lambda name, values: values
    parallelism: tuple[int, ...] = (1, 2, 3)
    batch: bool = False
    key_by_key: bool = False
    event_time: bool = False
    oracle: Callable[[Inputs], Mapping[str, Any]] | None = None


def outcome(program: SimulatedProgram, outputs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return the comparable outcome: each output's records by key in order, or their counts."""
    result: dict[str, Any] = {}
    for name, values in outputs.items():
        seen = program.view(name, list(values))
        if name in program.order and program.key_by_key:
            stretches = groupby(seen, program.order[name])
            result[name] = Counter(repr((key, list(stretch))) for key, stretch in stretches)
        elif name in program.order:
            by_key: defaultdict[Any, list[str]] = defaultdict(list)
            for value in seen:
                by_key[program.order[name](value)].append(repr(value))
            result[name] = dict(by_key)
        else:
            result[name] = Counter(map(repr, seen))
    return result
