"""A simulated program: the conditions of its outcome, and the parts of the outcome that must agree between two runs.

An outcome may depend on nothing but the records of an epoch and of its partitions; a ``cut_free`` program's not even on
these. A ``timed`` program must not depend on the exact times of epochs, so it needs a ``tail`` that makes all sources
and subtasks idle.
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
        last: the last records, in their own epoch.
        tail: advances of the clock before the following epochs without input (milliseconds).
        together: source -> a record's key. Records of a key in one epoch are in one partition, which keeps their order.
        order: output -> a record's key. Records of one key are emitted in a defined order.
        cut_free: the outcome does not depend on the cut into epochs and partitions.
        timed: the program uses the clock.
        bounded: the last epoch ends the input.
        view: extracts the comparable part of an output's records.
        batch: runs in batch mode, with all input in one epoch.
        key_by_key: in ordered outputs, the records of a key are consecutive.
        event_time: event times after each epoch depend on the epochs and their times, not on faults.
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
