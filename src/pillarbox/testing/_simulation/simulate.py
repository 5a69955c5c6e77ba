"""``simulate()``: a user's program under many schedules; and the smallest input and faults that show a failure."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._time.duration import DurationLike, to_millis
from pillarbox.testing._program_harness import Build
from pillarbox.testing._simulation.cluster import FAULTS
from pillarbox.testing._simulation.program import SimulatedProgram
from pillarbox.testing._simulation.run import MAX_PARALLELISM, Disagreement, Programs, Run

Records = Mapping[str, Sequence[Any]]
Key = str | Callable[[Any], Any]

# How many runs may be spent on making a failure smaller; and how many seeds are tried for each smaller input, as
# another input gives the same seed another schedule. Few records meet a fault that matters under few schedules.
_SHRINKING_RUNS = 800
_SEEDS_OF_A_CANDIDATE = 8
_SEEDS_OF_A_SMALL_CANDIDATE = 32
_SMALL = 8


class SimulationError(AssertionError):
    """A program comes out other than it should under some schedule.

    Attributes:
        seed: the seed under which it does, with the inputs that were given.
        inputs: the smallest inputs that were found to show it.
        faults: the kinds of faults that it takes, at the least that was found.
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
    """Run a program under many schedules, and check that faults change nothing.

    A schedule is drawn from a seed: how the input is cut into epochs and dealt out to partitions, in which order
    buffers arrive, which tasks fail and where, which workers are lost, when the query is started again from an earlier
    epoch, and at which parallelism. Small limits make a few records fill what takes millions under Spark. All of it
    runs in this thread, on the task runtime that Spark's workers run, without a JVM. The same seed repeats the same
    run.

    Each disturbed run is compared with a run of the same epochs without any fault, and with ``oracle``, if there is
    one. A failure is made smaller, records and kinds of faults are left out as long as it is one, and then shown with
    what was done in it and the call that repeats it.

    This is how FoundationDB tests itself, brought to a stream program:

    >>> from pillarbox import KeyedProcessFunction
    >>> from pillarbox.testing import SimulationError, simulate
    >>> class CountInAField(KeyedProcessFunction):
    ...     '''Counts in a field, which does not survive the worker: a bug.'''
    ...
    ...     def open(self, runtime_context):
    ...         self.counts = {}
    ...
    ...     def process_element(self, card, ctx):
    ...         self.counts[card] = self.counts.get(card, 0) + 1
    ...         yield card, self.counts[card]
    >>> try:
    ...     simulate(
    ...         lambda env, cards: cards.key_by(lambda card: card).process(CountInAField()),
    ...         {"cards": ["ann", "ann", "ann", "ann"]},
    ...         seeds=50,
    ...     )
    ... except SimulationError as error:
    ...     print(error.inputs)
    {'cards': ['ann', 'ann']}

    Args:
        build: builds the program, as for a :class:`ProgramTestHarness`.
        inputs: the records of each source, by the name of its parameter, in the order in which they were written.
        seeds: how many schedules (seeds 0, 1, ...), or which seeds.
        key_by: the key of a source's records, a column or a function, for all sources or by name: records of one key
            stay in one partition and in their order, as Kafka keeps them. None: records come in any order within an
            epoch, so a program whose result depends on it fails.
        ordered_by: the key of an output's records, for all outputs or by name: records of one key have to come out in
            the same order. None: which records come out is compared, and not their order.
        oracle: works out, without pillarbox, which records have to come out for ``inputs``: a mapping by output
            (``"output"``, if ``build`` returns one stream). Say it only of a program whose result does not depend on
            how its input is cut into epochs.
        parallelism: which parallelisms are tried.
        faults: which kinds of faults there are: ``"move"`` (a subtask goes to another worker), ``"fail"`` (an attempt
            at a task fails at some record), ``"retry"`` (work that was done is lost and done again), ``"kill"`` (a
            worker is lost), ``"restart"`` (the query starts again from an earlier epoch), ``"rescale"`` (at another
            parallelism), ``"reorder"`` (buffers of different senders arrive in any order), ``"delay"`` (the clock moves
            while tasks run).
        time_passes: for a program that looks at the clock: for how long it advances after the last record, so that
            timers and timeouts fire; which records come out may then not depend on when exactly an epoch runs. None:
            the clock stands still.
        end_input: whether the last epoch is the end of the input, at which all event-time timers fire.

    Raises:
        SimulationError: a run came out other than it should, or failed.
        ProgramError: a source, an output or a kind of fault is none that there is.
    """
    __tracebackhide__ = True  # pytest shows the call, and not this
    unknown = sorted(set(faults) - FAULTS.keys())
    if unknown:
        raise ProgramError(f"simulate(): there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}")
    records = {name: list(values) for name, values in inputs.items()}
    levels = (parallelism,) if isinstance(parallelism, int) else tuple(parallelism)
    if not levels or any(not is_count(level) or level > MAX_PARALLELISM for level in levels):
        raise ProgramError(f"simulate(): parallelism is from 1 to {MAX_PARALLELISM}, not {shorten(parallelism)}")
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
    programs = Programs(program)
    compiled = programs.at(levels[0])
    if records.keys() != compiled.vertices.keys():
        raise ProgramError(
            f"simulate(): the program's sources are {', '.join(compiled.vertices)}, but inputs has"
            f" {', '.join(records) or 'none'}: give a list of records for each"
        )
    outputs = compiled.program.outputs
    order = _keys(ordered_by, outputs, "ordered_by")
    programs.simulated = replace(program, order=order, batch=compiled.program.batch)
    logger = logging.getLogger("pillarbox")
    level, said = logger.level, logger.isEnabledFor(logging.DEBUG)
    if not said:  # restarts and lost workers are no news here
        logger.setLevel(logging.ERROR)
    try:
        for seed in range(seeds) if isinstance(seeds, int) else seeds:
            failure = _failure(programs, seed, records, faults)
            if failure is not None:
                raise _explained(programs, seed, records, tuple(faults), failure)
    finally:
        logger.setLevel(level)


def _keys(
    given: Key | Mapping[str, Key] | None, names: Iterable[str], argument: str
) -> dict[str, Callable[[Any], Any]]:
    """Return the key functions of sources or outputs, by name."""
    names = list(names)
    if given is None:
        return {}
    by_name = given if isinstance(given, Mapping) else dict.fromkeys(names, given)
    for name, key in by_name.items():
        if name not in names:
            raise ProgramError(f"simulate(): {argument} names {name!r}, but there are only {', '.join(names)}")
        if not callable(key) and not isinstance(key, str):
            raise ProgramError(f"simulate(): {argument} is a column's name or a function, not {shorten(key)}")
    return {name: key if callable(key) else _column(key) for name, key in by_name.items()}


def _column(name: str) -> Callable[[Any], Any]:
    return lambda record: record[name]


def _failure(programs: Programs, seed: int, inputs: Records, faults: Collection[str]) -> Disagreement | None:
    """Run a program under a seed; return what is wrong with it."""
    try:
        Run(programs, str(seed), faults=faults, inputs=inputs).verify()
    except Disagreement as error:
        return error
    return None


def _explained(
    programs: Programs, seed: int, records: dict[str, list[Any]], faults: tuple[str, ...], failure: Disagreement
) -> SimulationError:
    """Return the error for a failure, as small as it can be made."""
    smaller = _Smaller(programs, seed, records, faults, failure)
    smaller.shrink()
    count, before = sum(map(len, smaller.inputs.values())), sum(map(len, records.values()))
    lines = [
        f"seed {seed}: the program comes out other than it should.",
        f"Made smaller, from {before} records to {count}:",
        *(f"  {name} = {values!r}" for name, values in smaller.inputs.items()),
        f"  kinds of faults: {', '.join(smaller.faults) or 'none'}",
        str(smaller.failure),
        f"To repeat it: simulate(..., inputs, seeds=[{seed}]), or with the smaller inputs: simulate(..., inputs,"
        f" seeds=[{smaller.seed}], faults={list(smaller.faults)!r}, parallelism={smaller.levels!r})",
    ]
    error = SimulationError("\n".join(lines), seed, smaller.inputs, smaller.faults)
    error.__cause__ = failure.__cause__
    return error


class _Smaller:
    """A failure that is made smaller: fewer faults, fewer parallelisms and fewer records show it, too."""

    def __init__(
        self,
        programs: Programs,
        seed: int,
        inputs: dict[str, list[Any]],
        faults: tuple[str, ...],
        failure: Disagreement,
    ) -> None:
        self.programs = programs
        self.seed = seed
        self.inputs = inputs
        self.faults = faults
        self.failure = failure
        self._runs = _SHRINKING_RUNS
        # The runs that came out right, by their seeds and all that is varied: they are not made again.
        self._right: set[object] = set()

    @property
    def levels(self) -> tuple[int, ...]:
        """The parallelisms that are tried."""
        return self.programs.simulated.parallelism

    def shrink(self) -> None:
        """Leave out parallelisms, then kinds of faults and records, again and again, as long as a run fails."""
        if len(self.levels) > 1:
            for level in sorted(self.levels):
                if self._try(levels=(level,)):
                    break
        before = None
        while before != (self.faults, self.inputs) and self._runs > 0:
            before = self.faults, self.inputs
            for fault in self.faults:
                self._try(faults=tuple(each for each in self.faults if each != fault))
            for name in self.inputs:
                self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        """Leave out stretches of a source's records, long ones first."""
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
        """Take a smaller case, if it fails under the seed or under one of some others."""
        inputs = self.inputs if inputs is None else inputs
        faults = self.faults if faults is None else faults
        before = self.programs.simulated
        if levels is not None:
            self.programs.simulated = replace(before, parallelism=levels)
        small = sum(map(len, inputs.values())) <= _SMALL
        # Records are the objects that were given, whatever is left out.
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
