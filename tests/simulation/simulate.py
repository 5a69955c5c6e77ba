"""Runs a program on a simulated cluster, under a schedule drawn from a seed; compares it with its undisturbed run."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

from pillarbox._elements import Records
from pillarbox._graph import Program
from pillarbox._operators.async_io.loop import host
from pillarbox._operators.keyed import reduce
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.keys.key_groups import stable_hash
from pillarbox._state.log import limits as log_limits
from pillarbox._task import stream_task
from pillarbox._task.network import input_gate, key_sorter, record_spool, record_writer
from pillarbox._time import ManualProcessingTimeService
from pillarbox.testing._program_harness import PatientJob, program_of
from tests.simulation import service
from tests.simulation.cluster import SimulatedJob, Story, Weather
from tests.simulation.every_program import PROGRAMS
from tests.simulation.programs.program import Inputs, SimulatedProgram, outcome
from tests.simulation.turns import Turns


class Disagreement(AssertionError):
    """A disturbed run came out other than the undisturbed one."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch reads.

    Attributes:
        slices: from where to where in the records of each source.
        deal: seeds how these are dealt out to partitions.
        step: by how many milliseconds the clock moves on before.
        records: what is read instead: the last records of a program.
        bounded: whether the input ends here.
        calm: whether no worker and no attempt is lost any more, so that what takes its time comes to an end.
    """

    slices: dict[str, tuple[int, int]]
    deal: int
    step: int
    records: Inputs | None = None
    bounded: bool = False
    calm: bool = False


def plan_epochs(program: SimulatedProgram, inputs: Inputs, rng: random.Random, start: dict[str, int]) -> list[Epoch]:
    """Cut what is left of the input into epochs; then come a program's last records, and epochs without input."""
    none_left = {name: (len(values), len(values)) for name, values in inputs.items()}
    if program.batch:
        return [Epoch({name: (0, end) for name, (_, end) in none_left.items()}, rng.getrandbits(32), 0, bounded=True)]
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
        bounded = program.bounded and number == count - 1
        epochs.append(Epoch(slices, rng.getrandbits(32), rng.randint(0, longest), bounded=bounded))
    if program.last:
        epochs.append(Epoch(none_left, 0, 0, program.last))
    return [*epochs, *(Epoch(none_left, 0, milliseconds, calm=True) for milliseconds in program.tail)]


def partitions(program: SimulatedProgram, inputs: Inputs, epoch: Epoch) -> Inputs:
    """Deal the records of an epoch out to the partitions of each source."""
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
            place = rng.randrange(len(dealt))
            if together is not None:
                place = places.setdefault(together(value), place)
            dealt[place].append(value)
        result[name] = dealt
    return result


def cut_into_runs(values: Sequence[Any], rng: random.Random) -> list[Records]:
    """Return a partition's records as Spark hands them over: a number at a time."""
    size = rng.choice([1, 3, 1000])
    return [Records(list(values[start : start + size])) for start in range(0, len(values), size)]


@cache
def compiled(name: str, parallelism: int) -> tuple[Program, dict[str, int | None]]:
    return program_of(PROGRAMS[name].build, parallelism)


def small_limits(rng: random.Random) -> list[tuple[Any, str, Any]]:
    """Return limits at which few records fill a chunk, a buffer, the writer's queue: what takes long runs elsewhere is
    met here."""
    return [
        (record_writer, "_BUFFER_RECORDS", rng.choice([1, 3, 1000])),
        (record_writer, "_QUEUE_BYTES", rng.choice([1, 200, 10**6])),
        (input_gate, "_MEMORY_BOUND", rng.choice([1, 10**6])),
        (log_limits, "CHUNK_ROWS", rng.choice([1, 4, 4096])),
        (log_limits, "CHUNK_BYTES", rng.choice([64, 10**6])),
        (log_limits, "SPARE_CHUNKS", rng.choice([0, 4, 64])),
        (log_limits, "GATHERING", rng.choice([1, 16])),
        (log_limits, "SLACK_BYTES", rng.choice([0, 500, 10**6])),
    ]


def small_sorts(rng: random.Random) -> list[tuple[Any, str, Any]]:
    """Return limits at which a few records are sorted in a file, in several rounds, and keys that share a hash."""
    hashes = rng.choice([1, 3, 2**31])
    return [
        (key_sorter, "_PORTION_BYTES", rng.choice([300, 3_000, 10**7])),
        (key_sorter, "_OBJECT_BYTES", rng.choice([0, 50])),
        (key_sorter, "_BLOCK_BYTES", rng.choice([50, 10**6])),
        (key_sorter, "_FAN_IN", rng.choice([2, 64])),
        (key_sorter, "_REMEMBERED", rng.choice([2, 10**6])),
        (key_sorter, "_STEP_RECORDS", rng.choice([1, 3, 1024])),
        (key_sorter, "stable_hash", lambda key: stable_hash(key) % hashes),
        (record_spool, "_MEMORY_BOUND", rng.choice([1, 10**6])),
        (reduce, "_MANY", rng.choice([1, 1024])),
    ]


def in_turn(turns: Turns) -> list[tuple[Any, str, Any]]:
    """Return what async operators and their tasks have instead of threads."""
    return [(host, "EventLoopThread", turns.event_loop), (stream_task, "ThreadedReader", turns.input)]


@contextmanager
def replaced(names: Sequence[tuple[Any, str, Any]]) -> Iterator[None]:
    """Have other values for names of modules."""
    before = [(module, name, getattr(module, name)) for module, name, _ in names]
    try:
        for module, name, value in names:
            setattr(module, name, value)
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


class Run:
    """A program with its input, to be run undisturbed and disturbed."""

    def __init__(self, name: str, seed: int) -> None:
        self.rng = random.Random(f"{name} {seed}")
        self.program = PROGRAMS[name]
        parallelism = self.rng.choice(self.program.parallelism)
        self.compiled, self.vertices = compiled(name, parallelism)
        self.inputs = self.program.inputs(self.rng)
        if self.program.batch:
            self.inputs = {name: [*values, *self.program.last.get(name, ())] for name, values in self.inputs.items()}
        self.story = Story()
        #: After each epoch of the last run how far event time was in each subtask.
        self.event_times: list[dict[str, Any]] = []
        #: The epochs that were committed in the disturbed run, and their times.
        self.schedule: list[tuple[Epoch, int]] = []
        start = dict.fromkeys(self.inputs, 0)
        self.epochs = plan_epochs(self.program, self.inputs, self.rng, start)
        self.story.tell(f"parallelism {parallelism}, {len(self.epochs)} epochs")

    def undisturbed(self, schedule: Sequence[tuple[Epoch, int]] | None = None) -> list[dict[str, list[Any]]]:
        """Run in the program's order, in one worker; return what comes out of each epoch.

        Args:
            schedule: the epochs, and the time of each; None: those that are planned.
        """
        if schedule is None:
            schedule = list(zip(self.epochs, accumulate(epoch.step for epoch in self.epochs)))
        self.event_times = []
        clock = ManualProcessingTimeService(0)
        service.begin(0)
        outputs = []
        turns = Turns(clock, None)
        with replaced(in_turn(turns)), PatientJob(turns, self.compiled, clock=clock) as job:
            for epoch, time in schedule:
                clock.set_current_time(time)
                turns.settle()
                dealt = partitions(self.program, self.inputs, epoch)
                outputs.append(job.run_epoch(self._read(dealt, lambda part: [Records(part)]), bounded=epoch.bounded))
                self.event_times.append(_event_times(job))
        return outputs

    def disturbed(self) -> list[dict[str, list[Any]]]:
        """Run on the simulated cluster; return what came out of each epoch that was committed."""
        rng = self.rng
        weather = Weather.draw(rng)
        self.story.tell(str(weather))
        clock = ManualProcessingTimeService(0)
        service.begin(0)
        outputs: list[dict[str, list[Any]]] = []
        self.event_times = []
        self.schedule = []
        savepoints: list[Savepoint] = []
        epochs = self.epochs
        returns = 3
        turns = Turns(clock, rng)
        job = SimulatedJob(self.compiled, weather, turns, rng, self.story, clock=clock)
        limits = small_limits(rng)
        if self.program.batch:
            limits += small_sorts(rng)
        with replaced([*limits, *in_turn(turns)]), job:
            while job.epoch < len(epochs):
                for each in (savepoints, outputs, self.event_times, self.schedule):
                    del each[job.epoch :]
                savepoints.append(job.savepoint())
                epoch = epochs[job.epoch]
                clock.advance(epoch.step)
                if epoch.calm:
                    job.calm_down()
                job.tick()
                dealt = partitions(self.program, self.inputs, epoch)
                inputs = self._read(dealt, lambda part: cut_into_runs(part, rng))
                output = job.attempt_epoch(inputs, bounded=epoch.bounded)
                if output is None:
                    continue
                outputs.append(output)
                self.event_times.append(_event_times(job))
                self.schedule.append((epoch, job.epoch_time))
                if returns and not epoch.calm and rng.random() < weather.go_back:
                    returns -= 1
                    epochs = self._go_back(job, epochs, savepoints)
        return outputs

    def _go_back(self, job: SimulatedJob, epochs: list[Epoch], savepoints: list[Savepoint]) -> list[Epoch]:
        """Start again from an earlier epoch; where it may not matter, with the rest of the input cut anew."""
        rng = self.rng
        back = max(0, len(savepoints) - rng.choice([1, 1, 2, 3, 8]))
        stay = rng.random() < 0.8
        self.story.tell(f"from epoch {job.epoch} back to {back}, {'same' if stay else 'other'} workers")
        job.go_back(back, savepoints[back], workers_stay=stay)
        start = {source: epochs[back].slices[source][0] for source in self.inputs}
        if not self.program.cut_free or all(start[source] == len(values) for source, values in self.inputs.items()):
            return epochs
        return [*epochs[:back], *plan_epochs(self.program, self.inputs, rng, start)]

    def _read(self, dealt: Inputs, cut: Callable[[list[Any]], list[Records]]) -> dict[int, list[list[Records]]]:
        read = {}
        for source, parts in dealt.items():
            vertex = self.vertices[source]
            assert vertex is not None
            read[vertex] = [cut(part) for part in parts]
        return read


def simulate(name: str, seed: int) -> Story:
    """Run a program under a seed's schedule.

    Raises:
        Disagreement: it came out other than without disturbances, or than plain Python says.
    """
    run = Run(name, seed)
    state = random.getstate()  # functions may seed it: nothing else here may notice
    try:
        right = run.undisturbed()
        if run.program.oracle is not None:
            _compare(run, _joined(right), run.program.oracle(run.inputs), "plain Python: undisturbed")
        try:
            found = run.disturbed()
        except Exception as error:
            raise Disagreement(_told(run.story, f"it failed: {type(error).__name__}: {error}")) from error
        if run.program.event_time:
            _check_event_time(run)
    finally:
        random.setstate(state)
    if not run.program.cut_free and not run.program.timed:
        for number, (one, other) in enumerate(zip(found, right)):
            _compare(run, one, other, f"epoch {number}")
    _compare(run, _joined(found), _joined(right), "all epochs")
    return run.story


def _check_event_time(run: Run) -> None:
    found, schedule = run.event_times, run.schedule
    run.undisturbed(schedule)
    for number, (one, other) in enumerate(zip(found, run.event_times, strict=True)):
        if one != other:
            wrong = [
                f"  {place}: {one[place]}, should be {other[place]}" for place in one if one[place] != other[place]
            ]
            what = f"epoch {number}, at {schedule[number][1]}: event time is another than it should be"
            raise Disagreement(_told(run.story, "\n".join([what, *wrong])))


def _event_times(job: LocalJob) -> dict[str, Any]:
    return {f"{each.uid}, subtask {each.subtask}": each.watermark for each in job.reports if each.level}


def _joined(outputs: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    joined: defaultdict[str, list[Any]] = defaultdict(list)
    for output in outputs:
        for name, values in output.items():
            joined[name] += values
    return joined


def _compare(run: Run, found: Mapping[str, Any], right: Mapping[str, Any], what: str) -> None:
    one, other = outcome(run.program, found), outcome(run.program, right)
    if one != other:
        lines = [f"{what}: the outcome is another than it should be"]
        for name in sorted(one.keys() | other.keys()):
            mine, theirs = one.get(name, {}), other.get(name, {})
            for key in sorted(mine.keys() | theirs.keys(), key=repr):
                if mine.get(key) != theirs.get(key):
                    lines.append(f"  {name} {key}: {mine.get(key)}, should be {theirs.get(key)}")
        raise Disagreement(_told(run.story, "\n".join(lines[:20])))


def _told(story: Story, what: str) -> str:
    return "\n".join(["what was done:", *(f"  {line}" for line in story.lines), what])


def command(name: str, seed: int) -> str:
    """Return the command that repeats a run."""
    return f"make simulate PROGRAM={name} SEED={seed}"
