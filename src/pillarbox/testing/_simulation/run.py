"""Runs a program on a simulated cluster, under a schedule drawn from a seed; compares it with its undisturbed run."""

from __future__ import annotations

import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from pillarbox._elements import Records
from pillarbox._graph.description import describe_programs
from pillarbox._graph.program import Program
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._program_harness import PatientJob, program_of
from pillarbox.testing._simulation.cluster import SimulatedJob, Story, Weather
from pillarbox.testing._simulation.program import Inputs, SimulatedProgram, outcome
from pillarbox.testing._simulation.schedule import (
    Epoch,
    cut_into_runs,
    in_turn,
    partitions,
    plan_epochs,
    replaced,
    small_limits,
    small_sorts,
)
from pillarbox.testing._simulation.turns import Turns

# Key groups: so many subtasks there can be.
MAX_PARALLELISM = 16
# How often a run goes back, at most: so it ends.
_RETURNS = 3


class Disagreement(AssertionError):
    """A disturbed run came out other than the undisturbed one."""


class Compiled(NamedTuple):
    """A program at some parallelism, and the vertex that reads each source."""

    program: Program
    vertices: dict[str, int | None]


class Programs:
    """A program as it is compiled at each parallelism; it is built once for each."""

    def __init__(self, program: SimulatedProgram) -> None:
        self.simulated = program
        self._compiled: dict[int, Compiled] = {}

    def at(self, parallelism: int, savepoint: str | None = None) -> Compiled:
        """Return the program at a parallelism, to start from a savepoint's directory or with nothing."""
        if savepoint is not None:
            return self._compile(parallelism, savepoint)
        if parallelism not in self._compiled:
            self._compiled[parallelism] = self._compile(parallelism, None)
        return self._compiled[parallelism]

    def _compile(self, parallelism: int, savepoint: str | None) -> Compiled:
        build = self.simulated.build
        return Compiled(*program_of(build, parallelism, max_parallelism=MAX_PARALLELISM, savepoint=savepoint))


class Run:
    """A program with its input, to be run undisturbed and disturbed.

    Args:
        programs: the program.
        seed: what all is drawn from, with the program's name.
        faults: which disturbances there may be; None: all.
        inputs: the records of each source; None: what the program draws.
        turns: makes what stands in for threads.
    """

    def __init__(
        self,
        programs: Programs,
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
        self.story = Story()
        #: After each epoch of the last run how far event time was in each subtask.
        self.event_times: list[dict[str, Any]] = []
        #: The epochs that were committed in the disturbed run, and their times.
        self.schedule: list[tuple[Epoch, int]] = []
        self._faults = faults
        self._turns = turns
        start = dict.fromkeys(self.inputs, 0)
        self.epochs = plan_epochs(self.program, self.inputs, self.rng, start)
        self.story.tell(f"parallelism {self.parallelism}, {len(self.epochs)} epochs")

    def undisturbed(self, schedule: Sequence[tuple[Epoch, int]] | None = None) -> list[dict[str, list[Any]]]:
        """Run in the program's order, in one worker; return what comes out of each epoch.

        Args:
            schedule: the epochs, and the time of each; None: those that are planned.
        """
        if schedule is None:
            schedule = list(zip(self.epochs, accumulate(epoch.step for epoch in self.epochs)))
        self.event_times = []
        clock = ManualProcessingTimeService(0)
        outputs = []
        turns = self._turns(clock, None)
        with replaced(in_turn(turns)), PatientJob(turns, self.compiled.program, clock=clock) as job:
            for epoch, time in schedule:
                clock.set_current_time(time)
                turns.settle()
                dealt = partitions(self.program, self.inputs, epoch)
                inputs = self._read(self.compiled, dealt, lambda part: [Records(part)])
                outputs.append(job.run_epoch(inputs, bounded=epoch.bounded))
                self.event_times.append(_event_times(job))
        return outputs

    def disturbed(self) -> list[dict[str, list[Any]]]:
        """Run on the simulated cluster; return what came out of each epoch that was committed."""
        rng = self.rng
        weather = Weather.draw(rng, self._faults)
        self.story.tell(str(weather))
        clock = ManualProcessingTimeService(0)
        turns = self._turns(clock, rng)
        limits = small_limits(rng)
        if self.program.batch:
            limits += small_sorts(rng)
        with replaced([*limits, *in_turn(turns)]):
            return _Disturbed(self, weather, turns, clock).run()

    def _read(
        self, compiled: Compiled, dealt: Inputs, cut: Callable[[list[Any]], list[Records]]
    ) -> dict[int, list[list[Records]]]:
        read = {}
        for source, parts in dealt.items():
            vertex = compiled.vertices[source]
            if vertex is not None:
                read[vertex] = [cut(part) for part in parts]
        return read

    def verify(self) -> None:
        """Run the program undisturbed and disturbed, and compare.

        Raises:
            Disagreement: it came out other than without disturbances, or than plain Python says.
        """
        state = random.getstate()  # functions may seed it: nothing else here may notice
        try:
            try:
                right = self.undisturbed()
            except Exception as error:
                what = f"it failed without any fault: {type(error).__name__}: {error}"
                raise Disagreement(self.told(what)) from error
            if self.program.oracle is not None:
                expected = self.program.oracle(self.inputs)
                self.compare(joined(right), expected, "without any fault, compared with the oracle")
            try:
                found = self.disturbed()
            except Exception as error:
                raise Disagreement(self.told(f"it failed: {type(error).__name__}: {error}")) from error
            if self.program.event_time:
                self._check_event_time()
        finally:
            random.setstate(state)
        if not self.program.cut_free and not self.program.timed:
            for number, (one, other) in enumerate(zip(found, right)):
                self.compare(one, other, f"epoch {number}")
        self.compare(joined(found), joined(right), "all epochs")

    def _check_event_time(self) -> None:
        found, schedule = self.event_times, self.schedule
        self.undisturbed(schedule)
        for number, (one, other) in enumerate(zip(found, self.event_times, strict=True)):
            if one != other:
                wrong = [
                    f"  {place}: {one[place]}, should be {other[place]}" for place in one if one[place] != other[place]
                ]
                what = f"epoch {number}, at {schedule[number][1]}: event time is another than it should be"
                raise Disagreement(self.told("\n".join([what, *wrong])))

    def compare(self, found: Mapping[str, Any], right: Mapping[str, Any], what: str) -> None:
        """Compare outputs.

        Raises:
            Disagreement: they differ; it shows the first differences.
        """
        one, other = outcome(self.program, found), outcome(self.program, right)
        if one != other:
            lines = [f"{what}: the outcome is another than it should be"]
            for name in sorted(one.keys() | other.keys()):
                mine, theirs = one.get(name, {}), other.get(name, {})
                for key in sorted(mine.keys() | theirs.keys(), key=repr):
                    if mine.get(key) != theirs.get(key):
                        lines.append(f"  {name} {key}: {mine.get(key)}, should be {theirs.get(key)}")
            raise Disagreement(self.told("\n".join(lines[:20])))

    def told(self, what: str) -> str:
        """Return what was done, and what came of it."""
        return "\n".join(["what was done:", *(f"  {line}" for line in self.story.lines), what])


class _Disturbed:
    """A run on the simulated cluster."""

    def __init__(self, run: Run, weather: Weather, turns: Turns, clock: ManualProcessingTimeService) -> None:
        self._run = run
        self._rng = run.rng
        self._weather = weather
        self._turns = turns
        self._clock = clock
        self._epochs = run.epochs
        self._compiled = run.compiled
        self._parallelism = run.parallelism
        self._job = self._new_job(run.compiled.program)
        # Before each epoch: the state, and the parallelism that it was written at.
        self._savepoints: list[tuple[int, Savepoint]] = []
        self._outputs: list[dict[str, list[Any]]] = []

    def _new_job(self, program: Program) -> SimulatedJob:
        return SimulatedJob(program, self._weather, self._turns, self._rng, self._run.story, clock=self._clock)

    def run(self) -> list[dict[str, list[Any]]]:
        run, rng = self._run, self._rng
        run.event_times, run.schedule = [], []
        returns = _RETURNS
        try:
            while (number := self._job.epoch) < len(self._epochs):
                for each in (self._savepoints, self._outputs, run.event_times, run.schedule):
                    del each[number:]
                job = self._job
                self._savepoints.append((self._parallelism, job.savepoint()))
                epoch = self._epochs[number]
                self._clock.advance(epoch.step)
                if epoch.calm:
                    job.calm_down()
                job.tick()
                dealt = partitions(run.program, run.inputs, epoch)
                inputs = run._read(self._compiled, dealt, lambda part: cut_into_runs(part, rng))
                output = job.attempt_epoch(inputs, bounded=epoch.bounded)
                if output is None:
                    continue
                self._outputs.append(output)
                run.event_times.append(_event_times(job))
                run.schedule.append((epoch, job.epoch_time))
                if returns and not epoch.calm and rng.random() < self._weather.go_back:
                    returns -= 1
                    self._go_back()
        except BaseException:
            self._job.reset()
            raise
        self._job.close()
        return self._outputs

    def _go_back(self) -> None:
        """Start again from an earlier epoch; where it may not matter, with the rest of the input cut in another way."""
        run, rng, job = self._run, self._rng, self._job
        back = max(0, len(self._savepoints) - rng.choice([1, 1, 2, 3, 8]))
        parallelism, savepoint = self._savepoints[back]
        wanted = parallelism
        if self._weather.rescale and rng.random() < self._weather.rescale:
            wanted = rng.choice(run.program.parallelism)
        if wanted == self._parallelism == parallelism:
            stay = rng.random() < 0.8
            run.story.tell(f"from epoch {job.epoch} back to {back}, {'same' if stay else 'other'} workers")
            job.go_back(back, savepoint, workers_stay=stay)
        else:
            run.story.tell(f"from epoch {job.epoch} back to {back}, at parallelism {wanted} instead of {parallelism}")
            self._restart(back, parallelism, savepoint, wanted)
        start = {source: self._epochs[back].slices[source][0] for source in run.inputs}
        if not run.program.cut_free or all(start[source] == len(values) for source, values in run.inputs.items()):
            return
        self._epochs = [*self._epochs[:back], *plan_epochs(run.program, run.inputs, rng, start)]

    def _restart(self, back: int, parallelism: int, savepoint: Savepoint, wanted: int) -> None:
        """Start another job, at the wanted parallelism, from a state that was written at ``parallelism``."""
        former = self._job
        former.reset()
        self._compiled = self._run.programs.at(wanted)
        if wanted == parallelism or not back:
            self._job = self._new_job(self._compiled.program)
            state = savepoint if wanted == parallelism else {}
        else:
            with tempfile.TemporaryDirectory(prefix="pillarbox-") as folder:
                directory = str(Path(folder) / "savepoint")
                programs = describe_programs([self._run.programs.at(parallelism).program])["programs"]
                write_savepoint(directory, savepoint, epoch=back - 1, programs=programs)
                self._job = self._new_job(self._run.programs.at(wanted, directory).program)
            state = self._job.savepoint()
        self._parallelism = wanted
        self._savepoints[back] = (wanted, state)
        self._job.go_back(back, state, workers_stay=False)
        self._job.take_times(former)


def _event_times(job: LocalJob) -> dict[str, Any]:
    return {f"{each.uid}, subtask {each.subtask}": each.watermark for each in job.reports if each.level}


def joined(outputs: Iterable[Mapping[str, list[Any]]]) -> dict[str, list[Any]]:
    """Return the records of each output in all epochs."""
    together: defaultdict[str, list[Any]] = defaultdict(list)
    for output in outputs:
        for name, values in output.items():
            together[name] += values
    return together
