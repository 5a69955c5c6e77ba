"""``simulate``, which runs a program under many schedules and shrinks failures."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._runtime.local import source_copier
from pillarbox._time.duration import DurationLike, to_millis
from pillarbox.testing._program_harness import Build
from pillarbox.testing._simulation.cluster import FAULTS
from pillarbox.testing._simulation.program import SimulatedProgram
from pillarbox.testing._simulation.run import MAX_PARALLELISM, SimulatedPrograms, SimulatedRun, SimulatedRunMismatch

Records = Mapping[str, Sequence[Any]]
Key = str | Callable[[Any], Any]

# Limits of runs for shrinking, and of seeds per candidate. Small inputs need more seeds, because few schedules break
# them.
_SHRINKING_RUNS = 800
_SEEDS_OF_A_CANDIDATE = 8
_SEEDS_OF_A_SMALL_CANDIDATE = 32
_SMALL = 8


class SimulationError(AssertionError):
    """A program has a wrong outcome under some schedule.

    Attributes:
        seed: the seed that fails with the original inputs.
        inputs: the smallest failing inputs.
        faults: the kinds of faults that reproduce the failure, if known.
    """

    def __init__(self, message: str, seed: int, inputs: dict[str, list[Any]], faults: tuple[str, ...]) -> None:
        super().__init__(message)
        self.seed = seed
        self.inputs = inputs
        self.faults = faults


def simulate(
    build: Build,
    inputs: Records,
    *,
    seeds: int | Iterable[int] = 1000,
    key_by: Key | Mapping[str, Key] | None = None,
    ordered_by: Key | Mapping[str, Key] | None = None,
    oracle: Callable[[dict[str, list[Any]]], Mapping[str, Iterable[Any]]] | None = None,
    parallelism: int | Sequence[int] = (1, 2, 3),
    faults: Collection[str] = tuple(FAULTS),
    time_passes: DurationLike | None = None,
    end_input: bool = True,
) -> None:
    """Run a program under many schedules, and check that faults do not change its outcome.

    A seed determines a schedule: the division of the input into epochs and partitions, the order of buffers, task
    failures, lost workers, restarts from an earlier epoch, and parallelism. Limits are small, so that a few records
    fill buffers that hold millions under Spark.

    Each run with faults is compared with a run of the same epochs without faults, and with ``oracle``. A failing run is
    shrunk by removing records and kinds of faults. The error contains the remaining records, the run's steps, and the
    call that repeats it.

    >>> from pillarbox import KeyedProcessFunction
    >>> from pillarbox.testing import SimulationError, simulate
    >>> class CountInAField(KeyedProcessFunction):
    ...     '''Has a bug: a field does not survive the worker.'''
    ...
    ...     def open(self, runtime_context):
    ...         self.counts = {}
    ...
    ...     def process_element(self, card, ctx):
    ...         self.counts[card] = self.counts.get(card, 0) + 1
    ...         yield card, self.counts[card]
    >>> def build(env, cards):
    ...     return cards.key_by(str).process(CountInAField())
    >>> try:
    ...     simulate(build, {"cards": ["ann", "ann", "ann", "ann"]}, seeds=50)
    ... except SimulationError as error:
    ...     print(error.inputs)
    {'cards': ['ann', 'ann']}

    Args:
        build: builds the program, as in :class:`ProgramTestHarness`.
        inputs: records by source name, in the order of writing.
        seeds: the number of schedules (with seeds 0, 1, ...), or the seeds themselves.
        key_by: the key of input records: a column or function, or a dict of these by source. Records with the same key
            are in one partition, in order, as in Kafka. Without a key, records of an epoch arrive in any order.
        ordered_by: the key of emitted records: a column or function, or a dict of these by output. Records with the
            same key must be emitted in the same order in all runs. Without a key, the order is not compared.
        oracle: computes the expected records by output name (``"output"`` for a single stream) from ``inputs``, without
            pillarbox. Only for programs whose outcome does not depend on the division into epochs.
        faults: ``"move"`` (a subtask moves to another worker), ``"fail"`` (an attempt at a task fails at some record),
            ``"retry"`` (completed work is lost and repeated), ``"kill"`` (a worker is lost), ``"restart"`` (the query
            restarts from an earlier epoch), ``"rescale"`` (it restarts at a different parallelism), ``"reorder"``
            (buffers of different senders arrive in any order), ``"delay"`` (the clock advances while tasks run).
        time_passes: how far the clock advances after the last record, so that timers and timeouts fire. If set, the
            outcome must not depend on when exactly epochs run.
        end_input: whether the input ends with the last epoch, which fires all event-time timers.

    Raises:
        SimulationError: a run failed or had a wrong outcome.
    """
    __tracebackhide__ = True
    unknown = sorted(set(faults) - FAULTS.keys())
    if unknown:
        raise ProgramError(f"simulate(): unknown fault {unknown[0]!r}: choose from {', '.join(FAULTS)}")
    records = {name: list(values) for name, values in inputs.items()}
    levels = (parallelism,) if isinstance(parallelism, int) else tuple(parallelism)
    if not levels or any(not is_count(level) or level > MAX_PARALLELISM for level in levels):
        raise ProgramError(f"simulate(): parallelism= must be from 1 to {MAX_PARALLELISM}, not {shorten(parallelism)}")
    passes = 0 if time_passes is None else to_millis(time_passes)
    program = SimulatedProgram(
        build=build,
        inputs=lambda rng: {name: list(values) for name, values in records.items()},
        together=_keys(key_by, records, "key_by"),
        parallelism=levels,
        timed=time_passes is not None,
        bounded=end_input,
        tail=() if time_passes is None else (passes // 2, passes - passes // 2),
        oracle=oracle,
    )
    programs = SimulatedPrograms(program)
    compiled = programs.at(levels[0])
    if records.keys() != compiled.vertices.keys():
        raise ProgramError(
            f"simulate(): the program's sources are {', '.join(compiled.vertices)}, but inputs= has"
            f" {', '.join(records) or 'none'}: pass a list of records for each"
        )
    for name, number in compiled.vertices.items():
        if number is not None:
            copier = source_copier(compiled.program, number)
            records[name] = list(map(copier.copied, records[name]))
    outputs = compiled.program.outputs
    order = _keys(ordered_by, outputs, "ordered_by")
    programs.simulated = replace(program, order=order, batch=compiled.program.batch)
    logger = logging.getLogger("pillarbox")
    level, is_verbose = logger.level, logger.isEnabledFor(logging.DEBUG)
    if not is_verbose:
        logger.setLevel(logging.ERROR)
    try:
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            failure = _failure(programs, seed, records, faults)
            if failure is not None:
                raise _explained(programs, seed, records, tuple(faults), failure)
    finally:
        logger.setLevel(level)


def _keys(keys: Key | Mapping[str, Key] | None, names: Iterable[str], argument: str) -> dict[str, Callable[[Any], Any]]:
    names = list(names)
    if keys is None:
        return {}
    by_name = keys if isinstance(keys, Mapping) else dict.fromkeys(names, keys)
    for name, key in by_name.items():
        if name not in names:
            raise ProgramError(
                f"simulate(): {argument}= has the unknown name {name!r}; valid names are {', '.join(names)}"
            )
        if not callable(key) and not isinstance(key, str):
            raise ProgramError(f"simulate(): {argument}= must be a column name or a function, not {shorten(key)}")
    return {name: key if callable(key) else _column(key) for name, key in by_name.items()}


def _column(name: str) -> Callable[[Any], Any]:
    return lambda record: record[name]


def _failure(
    programs: SimulatedPrograms, seed: int, inputs: Records, faults: Collection[str]
) -> SimulatedRunMismatch | None:
    try:
        SimulatedRun(programs, str(seed), faults=faults, inputs=inputs).verify()
    except SimulatedRunMismatch as error:
        return error
    return None


def _explained(
    programs: SimulatedPrograms,
    seed: int,
    records: dict[str, list[Any]],
    faults: tuple[str, ...],
    failure: SimulatedRunMismatch,
) -> SimulationError:
    shrinker = _Shrinker(programs, seed, records, faults, failure)
    shrinker.shrink()
    count, before = sum(map(len, shrinker.inputs.values())), sum(map(len, records.values()))
    lines = [
        f"seed {seed}: the program has a wrong outcome.",
        f"The smallest failing case has {count} of {before} records:",
        *(f"  {name} = {values!r}" for name, values in shrinker.inputs.items()),
        f"  kinds of faults: {', '.join(shrinker.faults) or 'none'}",
        str(shrinker.failure),
        f"Repeat it with simulate(..., inputs, seeds=[{seed}]), or the smallest case with simulate(..., inputs,"
        f" seeds=[{shrinker.seed}], faults={list(shrinker.faults)!r}, parallelism={shrinker.levels!r})",
    ]
    error = SimulationError("\n".join(lines), seed, shrinker.inputs, shrinker.faults)
    error.__cause__ = failure.__cause__
    return error


class _Shrinker:
    """Shrinks a failing run by removing faults, parallelisms and records."""

    def __init__(
        self,
        programs: SimulatedPrograms,
        seed: int,
        inputs: dict[str, list[Any]],
        faults: tuple[str, ...],
        failure: SimulatedRunMismatch,
    ) -> None:
        self.programs = programs
        self.seed = seed
        self.inputs = inputs
        self.faults = faults
        self.failure = failure
        self._runs = _SHRINKING_RUNS
        self._right: set[object] = set()

    @property
    def levels(self) -> tuple[int, ...]:
        return self.programs.simulated.parallelism

    def shrink(self) -> None:
        if len(self.levels) > 1:
            for level in sorted(self.levels):
                if self._try(levels=(level,)):
                    break
        before = None
        while before != (self.faults, self.inputs) and self._runs > 0:
            before = self.faults, self.inputs
            for fault in self.faults:
                self._try(faults=tuple(kind for kind in self.faults if kind != fault))
            for name in self.inputs:
                self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        length = len(self.inputs[name])
        while length:
            start = 0
            while start < len(self.inputs[name]) and self._runs > 0:
                values = self.inputs[name]
                if not self._try(inputs={**self.inputs, name: values[:start] + values[start + length :]}):
                    start += length
            length //= 2

    def _try(
        self,
        *,
        inputs: dict[str, list[Any]] | None = None,
        faults: tuple[str, ...] | None = None,
        levels: tuple[int, ...] | None = None,
    ) -> bool:
        inputs = self.inputs if inputs is None else inputs
        faults = self.faults if faults is None else faults
        before = self.programs.simulated
        if levels is not None:
            self.programs.simulated = replace(before, parallelism=levels)
        small = sum(map(len, inputs.values())) <= _SMALL
        varied = faults, self.levels, tuple(tuple(map(id, values)) for values in inputs.values())
        for seed in self._seeds(_SEEDS_OF_A_SMALL_CANDIDATE if small else _SEEDS_OF_A_CANDIDATE):
            if (seed, varied) in self._right:
                continue
            self._runs -= 1
            failure = _failure(self.programs, seed, inputs, faults)
            if failure is not None:
                self.seed, self.inputs, self.faults, self.failure = seed, inputs, faults, failure
                return True
            self._right.add((seed, varied))
        self.programs.simulated = before
        return False

    def _seeds(self, count: int) -> Iterator[int]:
        yield self.seed
        yield from range(10**6, 10**6 + count)
