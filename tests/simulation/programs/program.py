"""What is promised about a program that is simulated, and how its input is drawn.

A program's outcome may depend on what Spark promises (which records an epoch has, and which of them are in a partition
together), and on nothing else. One that does not even depend on that is ``cut_free``; one that heeds the clock is
``timed``: its outcome may not depend on when exactly an epoch runs.

A runtime cannot promise more of a timed program: which source or subtask becomes idle before the last record comes,
and which behind it, is up to the clock. So it has to have a ``tail`` in which all become idle that ever do. That the
clock is that of the epochs, and restarts change nothing, shows after each epoch: ``event_time``.
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

FAR = 10**9

LETTERS = "abcdefgh"

# Why plain Python does not say what comes of a program.
SUBTASKS = "its outcome depends on the number of subtasks"


@dataclass(frozen=True)
class SimulatedProgram:
    """A program and what is promised about it.

    Attributes:
        inputs: draws the records of each source.
        last: records that come last, in an epoch of their own.
        tail: by how many milliseconds the clock goes on before each of the epochs without input behind that.
        together: for a source, the key of a record; the records of a key in one epoch are in one partition, so their
            order is known.
        order: for an output, the key of a record; records of one key come in a known order.
        cut_free: the outcome does not depend on how the input is cut into epochs and partitions.
        timed: the program looks at the clock.
        bounded: the last epoch is the end of the input.
        view: makes of an output's records what has to agree.
        batch: it runs in batch mode: all of its input in one epoch.
        key_by_key: for outputs in order, the records of a key come without others between them.
        event_time: event time goes by the epochs and their times alone: an undisturbed run of the same epochs, at the
            same times, is as far after each of them, in each subtask.
        oracle: works out what comes of the inputs, without pillarbox; None: that is left to the undisturbed run.
        batch_oracle: the same in batch mode, by default the same; or why that is left to the undisturbed run.
        batch_view: the same as ``view``, in batch mode.
        sorted_in_batch: whether batch mode sorts records by key, so that those of a key come without others between
            them; it does not where functions can have no state.
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
    batch_oracle: Callable[[Inputs], Mapping[str, Any]] | str | None = None
    batch_view: Callable[[str, Sequence[Any]], Sequence[Any]] | None = None
    sorted_in_batch: bool = True


def keyed_events(rng: random.Random, *, most: int = 60, keys: str = LETTERS, until: int = 1500) -> list[Any]:
    """Return events (key, time, number) about in order; no two have the same number."""
    count = rng.randrange(most + 1)
    times = sorted(rng.randrange(until) for _ in range(count))
    return [(rng.choice(keys), max(0, at - rng.choice([0, 0, 20, 100])), n) for n, at in enumerate(times)]


LAST: Inputs = {"events": [("z", FAR, 0)]}


def of_events(build: Build, *, most: int = 60, **promises: Any) -> SimulatedProgram:
    """Return a program of one source, ``events``.

    Args:
        most: how many events there are at the most.
        promises: further fields of the program.
    """
    return SimulatedProgram(build, lambda rng: {"events": keyed_events(rng, most=most)}, **promises)


def outcome(program: SimulatedProgram, outputs: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Return what has to agree: of each output the records of each key in their order, or how often there is each."""
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
