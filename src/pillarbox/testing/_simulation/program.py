"""A simulated program, and the part of its outcome that must be the same in every run.

The outcome may depend on the division of records into epochs and partitions, unless the program is ``cut_free``. If the
program is ``timed``, its outcome must not depend on when exactly epochs run, so ``tail`` must advance the clock until
all sources and subtasks are idle.
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
    """A program, its inputs, and how to compare its outcomes.

    Attributes:
        inputs: draws the records of each source.
        last: records for one more epoch, after all inputs.
        tail: clock advances (ms), one before each empty epoch at the end.
        together: key functions by source. Within an epoch, all records of a key are in one partition, in order.
        order: key functions by output. The order of records with the same key is compared.
        bounded: whether the last epoch ends the input.
        view: extracts the comparable part of an output's records.
        key_by_key: whether an ordered output must emit each key's records consecutively.
        event_time: whether event times after each epoch must be the same with and without faults.
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
    """Return each output's records for comparison, in order for each key, or as counts if the output is unordered."""
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
