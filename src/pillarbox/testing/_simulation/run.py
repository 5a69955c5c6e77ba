"""Runs a program on a simulated cluster with faults, and compares the outcome with a run without faults."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox._elements.records import Records
from pillarbox._graph.description import describe_programs
from pillarbox._graph.program import Program
from pillarbox._runtime.local import LocalJob, Savepoint, source_copier
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._program_harness import ProgramHarnessJob, program_of
from pillarbox.testing._simulation.cluster import ClusterFaultRates, ClusterStepLog, SimulatedClusterJob
from pillarbox.testing._simulation.program import Inputs, SimulatedProgram, outcome
from pillarbox.testing._simulation.schedule import (
    ScheduledEpoch,
    cut_into_runs,
    partitions,
    plan_epochs,
    replaced,
    small_limits,
    small_sorts,
    stepped_threads,
)
from pillarbox.testing._simulation.turns import Turns

# Number of key groups, and thus the maximum number of subtasks.
MAX_PARALLELISM = 16
_RETURNS = 3


class SimulatedRunMismatch(AssertionError):
    """A run with faults has a different outcome."""


class CompiledProgram(NamedTuple):
    """A program compiled for a given parallelism, and the vertex number of each source."""

    program: Program
    vertices: dict[str, int | None]


class SimulatedPrograms:
    """A program, compiled once for each parallelism."""

    def __init__(self, program: SimulatedProgram) -> None:
        self.simulated = program
        self._compiled: dict[int, CompiledProgram] = {}

    def at(self, parallelism: int, savepoint: str | None = None) -> CompiledProgram:
        if savepoint is not None:
            return self._compile(parallelism, savepoint)
        if parallelism not in self._compiled:
            self._compiled[parallelism] = self._compile(parallelism, None)
        return self._compiled[parallelism]

    def _compile(self, parallelism: int, savepoint: str | None) -> CompiledProgram:
        build = self.simulated.build
        return CompiledProgram(*program_of(build, parallelism, max_parallelism=MAX_PARALLELISM, savepoint=savepoint))


class SimulatedRun:
    """Runs a program with and without faults, on the same input.

    Args:
        faults: the kinds of faults, or None for all.
        inputs: the records of each source, or None for random records.
        turns: creates the ``Turns``, which interleave the work of threads.
    """

    def __init__(
        self,
        programs: SimulatedPrograms,
        seed: str,
        *,
        faults: Collection[str] | None = None,
        inputs: Mapping[str, Sequence[Any]] | None = None,
        turns: Callable[[ManualProcessingTimeService, random.Random | None], Turns] = Turns,
    ) -> None:
        self.rng = random.Random(seed)
        self.programs = programs
        self.program = programs.simulated
        self.parallelism = self.rng.choice(self.program.parallelism)
        self.compiled = programs.at(self.parallelism)
        drawn = self.program.inputs(self.rng) if inputs is None else inputs
        self.inputs: Inputs = {name: list(values) for name, values in drawn.items()}
        if self.program.batch:
            self.inputs = {name: [*values, *self.program.last.get(name, ())] for name, values in self.inputs.items()}
        self.steps = ClusterStepLog()
        #: Each subtask's event time after each epoch of the last run.
        self.event_times: list[dict[str, Any]] = []
        #: The committed epochs of the run with faults, and their times.
        self.schedule: list[tuple[ScheduledEpoch, int]] = []
        self._faults = faults
        self._turns = turns
        start = dict.fromkeys(self.inputs, 0)
        self.epochs = plan_epochs(self.program, self.inputs, self.rng, start)
        self.steps.add(f"parallelism {self.parallelism}, {len(self.epochs)} epochs")

    def run_without_faults(
        self, schedule: Sequence[tuple[ScheduledEpoch, int]] | None = None
    ) -> list[dict[str, list[Any]]]:
        """Run the epochs in order, in one worker, and return each epoch's output."""
        if schedule is None:
            schedule = list(zip(self.epochs, accumulate(epoch.step for epoch in self.epochs)))
        self.event_times = []
        clock = ManualProcessingTimeService(0)
        outputs = []
        turns = self._turns(clock, None)
        with replaced(stepped_threads(turns)), ProgramHarnessJob(turns, self.compiled.program, clock=clock) as job:
            for epoch, time in schedule:
                turns.set_clock(time)
                turns.settle()
                dealt = partitions(self.program, self.inputs, epoch)
                inputs = self._read(self.compiled, dealt, self._copied)
                outputs.append(job.run_epoch(inputs, bounded=epoch.bounded))
                self.event_times.append(_event_times(job))
        return outputs

    def run_with_faults(self) -> list[dict[str, list[Any]]]:
        rng = self.rng
        rates = ClusterFaultRates.draw(rng, self._faults)
        self.steps.add(str(rates))
        clock = ManualProcessingTimeService(0)
        turns = self._turns(clock, rng)
        limits = small_limits(rng)
        if self.program.batch:
            limits += small_sorts(rng)
        with replaced([*limits, *stepped_threads(turns)]):
            return _FaultyRun(self, rates, turns, clock).run()

    def _read(
        self, compiled: CompiledProgram, dealt: Inputs, cut: Callable[[int, list[Any]], list[Records]]
    ) -> dict[int, list[list[Records]]]:
        read = {}
        for source, parts in dealt.items():
            vertex = compiled.vertices[source]
            if vertex is not None:
                read[vertex] = [cut(vertex, part) for part in parts]
        return read

    def _copied(self, source: int, part: list[Any]) -> list[Records]:
        return [Records(part).copied(source_copier(self.compiled.program, source).copied)]

    def verify(self) -> None:
        """Compare runs without and with faults. Raises :class:`SimulatedRunMismatch`."""
        state = random.getstate()  # functions may seed `random`, which must not affect the caller
        try:
            try:
                reference = self.run_without_faults()
            except Exception as error:
                what = f"it failed without any fault: {type(error).__name__}: {error}"
                raise SimulatedRunMismatch(self.report(what)) from error
            if self.program.oracle is not None:
                expected = self.program.oracle(self.inputs)
                self.compare(joined(reference), expected, "without any fault, compared with the oracle")
            try:
                outputs = self.run_with_faults()
            except Exception as error:
                raise SimulatedRunMismatch(self.report(f"it failed: {type(error).__name__}: {error}")) from error
            if self.program.event_time:
                self._check_event_time()
        finally:
            random.setstate(state)
        if not self.program.cut_free and not self.program.timed:
            for number, (output, expected) in enumerate(zip(outputs, reference)):
                self.compare(output, expected, f"epoch {number}")
        self.compare(joined(outputs), joined(reference), "all epochs")

    def _check_event_time(self) -> None:
        event_times, schedule = self.event_times, self.schedule
        self.run_without_faults(schedule)
        for number, (actual, expected) in enumerate(zip(event_times, self.event_times, strict=True)):
            if actual != expected:
                lines = [f"epoch {number}, at {schedule[number][1]}: event time differs"]
                lines += _differences("", actual, expected)
                raise SimulatedRunMismatch(self.report("\n".join(lines)))

    def compare(self, outputs: Mapping[str, Any], reference: Mapping[str, Any], what: str) -> None:
        actual, expected = outcome(self.program, outputs), outcome(self.program, reference)
        if actual != expected:
            lines = [f"{what}: the outcome differs"]
            for name in sorted(actual.keys() | expected.keys()):
                lines += _differences(f"{name} ", actual.get(name, {}), expected.get(name, {}))
            raise SimulatedRunMismatch(self.report("\n".join(lines[:20])))

    def report(self, what: str) -> str:
        return "\n".join(["steps:", *(f"  {line}" for line in self.steps.lines), what])


def _differences(prefix: str, actual: Mapping[Any, Any], expected: Mapping[Any, Any]) -> Iterator[str]:
    for key in sorted(actual.keys() | expected.keys(), key=repr):
        if actual.get(key) != expected.get(key):
            yield f"  {prefix}{key}: {actual.get(key)}, should be {expected.get(key)}"


class _FaultyRun:
    def __init__(
        self, run: SimulatedRun, rates: ClusterFaultRates, turns: Turns, clock: ManualProcessingTimeService
    ) -> None:
        self._run = run
        self._rng = run.rng
        self._rates = rates
        self._turns = turns
        self._clock = clock
        self._epochs = run.epochs
        self._compiled = run.compiled
        self._parallelism = run.parallelism
        self._job = self._new_job(run.compiled.program)
        self._savepoints: list[tuple[int, Savepoint]] = []
        self._outputs: list[dict[str, list[Any]]] = []

    def _new_job(self, program: Program) -> SimulatedClusterJob:
        return SimulatedClusterJob(program, self._rates, self._turns, self._rng, self._run.steps, clock=self._clock)

    def run(self) -> list[dict[str, list[Any]]]:
        run, rng = self._run, self._rng
        run.event_times, run.schedule = [], []
        returns = _RETURNS
        try:
            while (number := self._job.epoch) < len(self._epochs):
                for history in (self._savepoints, self._outputs, run.event_times, run.schedule):
                    del history[number:]
                job = self._job
                self._savepoints.append((self._parallelism, job.savepoint()))
                epoch = self._epochs[number]
                self._turns.set_clock(self._clock.current_processing_time() + epoch.step)
                if epoch.calm:
                    job.stop_faults()
                job.tick()
                dealt = partitions(run.program, run.inputs, epoch)
                inputs = run._read(self._compiled, dealt, lambda _, part: cut_into_runs(part, rng))
                output = job.attempt_epoch(inputs, bounded=epoch.bounded)
                if output is None:
                    continue
                self._outputs.append(output)
                run.event_times.append(_event_times(job))
                run.schedule.append((epoch, job.epoch_time))
                if returns and not epoch.calm and rng.random() < self._rates.restart:
                    returns -= 1
                    self._go_back()
        except BaseException:
            self._job.reset()
            raise
        self._job.close()
        return self._outputs

    def _go_back(self) -> None:
        """Restart from an earlier epoch. Divide the rest of a ``cut_free`` program's input into different epochs."""
        run, rng, job = self._run, self._rng, self._job
        back = max(0, len(self._savepoints) - rng.choice([1, 1, 2, 3, 8]))
        parallelism, savepoint = self._savepoints[back]
        target = parallelism
        if self._rates.rescale and rng.random() < self._rates.rescale:
            target = rng.choice(run.program.parallelism)
        if target == self._parallelism == parallelism:
            stay = rng.random() < 0.8
            run.steps.add(f"from epoch {job.epoch} back to {back}, {'same' if stay else 'other'} workers")
            job.go_back(back, savepoint, workers_stay=stay)
        else:
            run.steps.add(f"from epoch {job.epoch} back to {back}, at parallelism {target} instead of {parallelism}")
            self._restart(back, parallelism, savepoint, target)
        start = {source: self._epochs[back].slices[source][0] for source in run.inputs}
        if not run.program.cut_free or all(start[source] == len(values) for source, values in run.inputs.items()):
            return
        self._epochs = [*self._epochs[:back], *plan_epochs(run.program, run.inputs, rng, start)]

    def _restart(self, back: int, parallelism: int, savepoint: Savepoint, target: int) -> None:
        former = self._job
        former.reset()
        self._compiled = self._run.programs.at(target)
        is_stateless = len(self._compiled.program.levels) == 1
        if target == parallelism or not back or is_stateless:
            self._job = self._new_job(self._compiled.program)
            state = savepoint if target == parallelism else {}
        else:
            with tempfile.TemporaryDirectory(prefix="pillarbox-") as folder:
                directory = str(Path(folder) / "savepoint")
                programs = describe_programs([self._run.programs.at(parallelism).program])["programs"]
                write_savepoint(directory, savepoint, epoch=back - 1, programs=programs)
                self._job = self._new_job(self._run.programs.at(target, directory).program)
            state = self._job.savepoint()
        self._parallelism = target
        self._savepoints[back] = (target, state)
        self._job.go_back(back, state, workers_stay=False)
        self._job.keep_times_of(former)


def _event_times(job: LocalJob) -> dict[str, Any]:
    return {f"{report.uid}, subtask {report.subtask}": report.watermark for report in job.reports if report.level}


def joined(outputs: Iterable[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    together: defaultdict[str, list[Any]] = defaultdict(list)
    for output in outputs:
        for name, values in output.items():
            together[name] += values
    return together
