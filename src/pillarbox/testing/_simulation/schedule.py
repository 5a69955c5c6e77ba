"""Plans a simulated run: the division of its input into epochs, and the limits to lower."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pillarbox._elements.records import Records
from pillarbox._operators.async_io.loop import host
from pillarbox._operators.async_keyed import operator as async_keyed
from pillarbox._operators.keyed import reduce
from pillarbox._state.log import limits as log_limits
from pillarbox._task import stream_task
from pillarbox._task.network import key_sorter, record_writer, spool
from pillarbox.testing._simulation.program import Inputs, SimulatedProgram
from pillarbox.testing._simulation.turns import Turns


@dataclass(frozen=True)
class ScheduledEpoch:
    """The input of an epoch.

    Attributes:
        slices: (start, end) of the epoch's records, by source.
        deal: seed for distributing the records over partitions.
        step: how far the clock advances before the epoch (milliseconds).
        records: the records of the final epoch, which has no slices, or None.
        calm: whether faults are disabled, so that slow work can complete.
    """

    slices: dict[str, tuple[int, int]]
    deal: int
    step: int
    records: Inputs | None = None
    bounded: bool = False
    calm: bool = False


def plan_epochs(
    program: SimulatedProgram, inputs: Mapping[str, Sequence[Any]], rng: random.Random, start: Mapping[str, int]
) -> list[ScheduledEpoch]:
    """Plan the remaining epochs: some read the input, one has the program's last records, and some are empty."""
    none_left = {name: (len(values), len(values)) for name, values in inputs.items()}
    if program.batch:
        return [
            ScheduledEpoch(
                {name: (0, end) for name, (_, end) in none_left.items()}, rng.getrandbits(32), 0, bounded=True
            )
        ]
    count = rng.randrange(1, 13 if program.timed else 9)
    longest = rng.choice([0, 30, 700, 700]) if program.timed else 0
    edges = {
        name: [start[name], *sorted(rng.randint(start[name], len(values)) for _ in range(count - 1)), len(values)]
        for name, values in inputs.items()
    }
    parts = {name: list(pairwise(places)) for name, places in edges.items()}
    epochs = []
    for number in range(count):
        slices = {name: parts[name][number] for name in inputs}
        epochs.append(ScheduledEpoch(slices, rng.getrandbits(32), rng.randint(0, longest)))
    if program.last:
        epochs.append(ScheduledEpoch(none_left, 0, 0, program.last))
    epochs += [ScheduledEpoch(none_left, 0, milliseconds, calm=True) for milliseconds in program.tail]
    if program.bounded:
        epochs[-1] = replace(epochs[-1], bounded=True)
    return epochs


def partitions(program: SimulatedProgram, inputs: Mapping[str, Sequence[Any]], epoch: ScheduledEpoch) -> Inputs:
    rng = random.Random(epoch.deal)
    result: Inputs = {}
    for name, values in inputs.items():
        if epoch.records is not None:
            result[name] = [epoch.records[name]]
            continue
        dealt: list[list[Any]] = [[] for _ in range(rng.randrange(1, 4))]
        places: dict[Any, int] = {}
        together = program.together.get(name)
        for value in values[slice(*epoch.slices[name])]:
            partition = rng.randrange(len(dealt))
            if together is not None:
                partition = places.setdefault(together(value), partition)
            dealt[partition].append(value)
        result[name] = dealt
    return result


def cut_into_runs(values: Sequence[Any], rng: random.Random) -> list[Records]:
    """Split a partition's records into batches, as Spark does."""
    size = rng.choice([1, 3, 1000])
    return [Records(list(values[start : start + size])) for start in range(0, len(values), size)]


def small_limits(rng: random.Random) -> list[tuple[Any, str, Any]]:
    return [
        (record_writer, "_BUFFER_RECORDS", rng.choice([1, 3, 1000])),
        (record_writer, "_QUEUE_BYTES", rng.choice([1, 200, 10**6])),
        (spool, "_MEMORY_BOUND", rng.choice([1, 10**6])),
        (log_limits, "CHUNK_ROWS", rng.choice([1, 4, 4096])),
        (log_limits, "CHUNK_BYTES", rng.choice([64, 10**6])),
        (log_limits, "SPARE_CHUNKS", rng.choice([0, 4, 64])),
        (log_limits, "GATHERING", rng.choice([1, 16])),
        (log_limits, "SLACK_BYTES", rng.choice([0, 500, 10**6])),
        (async_keyed, "TURNS", rng.choice([3, 50])),
    ]


def small_sorts(rng: random.Random) -> list[tuple[Any, str, Any]]:
    """Return limits so low that even a few records are sorted in files and in several rounds, and have equal hashes."""
    bits = rng.choice([0, 1, 2**31 - 1])
    return [
        (key_sorter, "_PORTION_BYTES", rng.choice([300, 3_000, 10**7])),
        (key_sorter, "_OBJECT_BYTES", rng.choice([0, 50])),
        (key_sorter, "_COLUMN_BYTES", 0),
        (key_sorter, "_BLOCK_BYTES", rng.choice([50, 10**6])),
        (key_sorter, "_FAN_IN", rng.choice([2, 64])),
        (key_sorter, "_REMEMBERED", rng.choice([2, 10**6])),
        (key_sorter, "_RUN_RECORDS", rng.choice([1, 3, 1024])),
        (key_sorter, "_HASH_BITS", np.uint64(bits)),
        (spool, "_MEMORY_BOUND", rng.choice([1, 10**6])),
        (reduce, "_MANY", rng.choice([1, 1024])),
    ]


def stepped_threads(turns: Turns) -> list[tuple[Any, str, Any]]:
    return [(host, "EventLoopThread", turns.event_loop), (stream_task, "ThreadedInputReader", turns.input)]


@contextmanager
def replaced(names: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    before = [(module, name, getattr(module, name)) for module, name, _ in names]
    try:
        for module, name, value in names:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
