"""A whole program in this process: the local runtime, epoch by epoch, with a clock that a test sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from types import TracebackType
from typing import Any

from pillarbox._copies import copied
from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._datastream.environment.execution_mode import RuntimeExecutionMode
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._elements import Records
from pillarbox._errors import ProgramError, shorten
from pillarbox._graph.description import describe_programs
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import SourceTransformation
from pillarbox._runtime.local import LocalJob, Savepoint
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._time.duration import DurationLike
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._patience import Patience

Build = Callable[..., DataStream | Mapping[str, DataStream]]


@dataclass(frozen=True)
class ProgramSnapshot:
    """A program's committed state: to be given to another harness, and to be pickled."""

    epoch: int
    stores: Savepoint


class PatientJob(LocalJob):
    """A job whose operators wait with a given patience."""

    def __init__(self, patience: Patience, program: Program, **options: Any) -> None:
        super().__init__(program, **options)
        self._patience = patience

    def _new_source(self, number: int) -> SourceStreamTask:
        task = super()._new_source(number)
        self._patience.attach(task.chain.operators)
        return task

    def _new_task(self, number: int, subtask: int) -> MultipleInputStreamTask:
        task = super()._new_task(number, subtask)
        self._patience.attach(task.chain.operators)
        return task


class ProgramTestHarness:
    """Runs a program on elements that a test pushes, with the same vertices, shuffles and barriers as under Spark.

    Elements are queued until :meth:`run_epoch`: an epoch corresponds to a micro-batch under Spark. Functions are copied
    on the way into the tasks, as they are on the way to Spark's workers.

    Args:
        build: builds the program: ``build(env, payments, limits)`` gets a stream for each parameter after the first
            (without default), whose name is the source's, and returns the stream to look at (its output is called
            ``"output"``), or several of them, side outputs too, in a dict by name.
        parallelism: number of subtasks after a shuffle.
        processing_time: where the clock stands at first, epoch milliseconds.
        snapshot: state to start from, as :meth:`snapshot` returned it.
        limit: how long an epoch may wait for requests of an async function (seconds, by the real clock).
        batch: whether it runs in batch mode: all of its input comes in one epoch, :meth:`end_input`.
        time_zone: the time zone of naive datetimes, as a Spark session has one: ``"Europe/Berlin"``; None: they are no
            points in time.

    Attributes:
        epoch: number of epochs that were committed.
        processing_time_service: the clock.

    Raises:
        ProgramError: ``build`` takes no source, returns no stream, or the program cannot run.
        CheckpointMismatchError: (in the first epoch) the snapshot is one of another program or parallelism.
    """

    def __init__(
        self,
        build: Build,
        *,
        parallelism: int = 1,
        processing_time: int = 0,
        snapshot: ProgramSnapshot | None = None,
        limit: float = 10.0,
        batch: bool = False,
        time_zone: str | None = None,
    ) -> None:
        self._program, self._vertices = program_of(build, parallelism, batch=batch, time_zone=time_zone)
        self._pending: dict[str, dict[int, list[Any]]] = {name: {} for name in self._vertices}
        self._outputs: dict[str, list[Any]] = {name: [] for name in self._program.outputs}
        self.processing_time_service: ManualProcessingTimeService = ManualProcessingTimeService(processing_time)
        self._patience = Patience(self.processing_time_service, limit)
        self._job = self._start(snapshot)

    def _start(self, snapshot: ProgramSnapshot | None) -> LocalJob:
        if snapshot is not None and not isinstance(snapshot, ProgramSnapshot):
            raise ProgramError(
                f"a ProgramTestHarness starts from a snapshot() of another one, not from {shorten(snapshot)}; from a"
                " savepoint by env.from_savepoint(directory)"
            )
        job = PatientJob(
            self._patience,
            self._program,
            clock=self.processing_time_service,
            savepoint=None if snapshot is None else snapshot.stores,
        )
        job.epoch = 0 if snapshot is None else snapshot.epoch
        return job

    @property
    def epoch(self) -> int:
        """The number of epochs that were committed."""
        return self._job.epoch

    # -- input --

    def push(self, source: str, *elements: Any, partition: int = 0) -> None:
        """Queue elements of a source for the next epoch.

        Args:
            source: name of the source: of the parameter of ``build``.
            elements: any Python objects, which are copied; ``row(card="c1")`` makes a row, as a DataFrame has them.
            partition: which partition of the source they are in: watermarks are made for each of its own.

        Raises:
            ProgramError: there is no such source, or no output depends on it.
        """
        self.push_all(source, elements, partition=partition)

    def push_all(self, source: str, elements: Iterable[Any], *, partition: int = 0) -> None:
        """Queue elements of a source for the next epoch; as :meth:`push`."""
        if source not in self._pending:
            raise ProgramError(f"there is no source {source!r}; the sources are {', '.join(self._pending)}")
        if self._vertices[source] is None:
            raise ProgramError(f"no output depends on the source {source!r}: elements pushed there would be lost")
        self._pending[source].setdefault(partition, []).extend(map(copied, elements))

    def set_processing_time(self, timestamp: int) -> None:
        """Set the clock (epoch milliseconds). Timers that are due fire in the next epoch, as they do under Spark."""
        self.processing_time_service.set_current_time(timestamp)

    def advance_processing_time(self, milliseconds: int) -> None:
        """Set the clock forward.

        Raises:
            ValueError: ``milliseconds`` is negative.
        """
        self.processing_time_service.advance(milliseconds)

    # -- epochs --

    def run_epoch(self, *, time_passes: DurationLike = 0) -> dict[str, list[Any]]:
        """Run the queued elements, and the timers that are due, as one epoch; return the records of each output.

        An epoch that raises leaves no trace: state is as before, nothing came out, its elements are gone.

        Args:
            time_passes: the time by which the clock is set forward while requests of an async function are under
                way, so that their timeouts fire: from timer to timer, whenever nothing else happens.

        Raises:
            OperatorError: a function raised.
            TimeoutError: requests did not end.
        """
        return self._run(bounded=False, time_passes=time_passes)

    def end_input(self, *, time_passes: DurationLike = 0) -> dict[str, list[Any]]:
        """Run the queued elements as the last epoch: event time ends, so all its timers fire.

        Args:
            time_passes: as in :meth:`run_epoch`.
        """
        return self._run(bounded=True, time_passes=time_passes)

    def fail_epoch(self) -> None:
        """Run the queued elements, but lose the outcome, as when a worker dies right before the commit.

        State is as before, nothing came out, the tasks start again. The elements stay queued: the next epoch runs them
        again, as Spark does.
        """
        before = self.snapshot()
        try:
            self._job.run_epoch(self._inputs())
        finally:
            self.restore(before)

    def _run(self, *, bounded: bool, time_passes: DurationLike) -> dict[str, list[Any]]:
        inputs = self._inputs()
        self._pending = {name: {} for name in self._pending}
        with self._patience.time_passes(time_passes):
            outputs = self._job.run_epoch(inputs, bounded=bounded)
        for name, values in outputs.items():
            self._outputs[name] += values
        return outputs

    def _inputs(self) -> dict[int, list[list[Records]]]:
        inputs: dict[int, list[list[Records]]] = {}
        for name, partitions in self._pending.items():
            vertex = self._vertices[name]
            if vertex is not None and partitions:
                # An epoch that fails runs again with the same elements, and a function may change those that it gets.
                inputs[vertex] = [
                    [Records(list(map(copied, partitions[number])))] if number in partitions else []
                    for number in range(max(partitions) + 1)
                ]
        return inputs

    # -- output --

    def get_output(self, name: str = "output") -> list[Any]:
        """Return the records that reached an output since the start or :meth:`clear_output`.

        Raises:
            ProgramError: there is no such output.
        """
        if name not in self._outputs:
            raise ProgramError(f"there is no output {name!r}; the outputs are {', '.join(self._outputs)}")
        return list(self._outputs[name])

    def clear_output(self) -> None:
        """Forget the output so far."""
        self._outputs = {name: [] for name in self._outputs}

    def get_plan(self) -> str:
        """Return the program's plan as text."""
        return self._program.to_text()

    # -- state --

    def snapshot(self) -> ProgramSnapshot:
        """Return the committed state. Queued elements are not part of it."""
        return ProgramSnapshot(self._job.epoch, self._job.savepoint())

    def restore(self, snapshot: ProgramSnapshot) -> None:
        """Go back to a snapshot: the tasks start from it, as when a query is started again."""
        self._job.reset()
        self._job = self._start(snapshot)

    def write_savepoint(self, directory: str | PathLike[str]) -> None:
        """Write the committed state into a local directory, as a savepoint.

        Programs start from it with ``env.from_savepoint(directory)``, here and on Spark, at any parallelism. It says
        nothing of sources: on Spark they begin as in a new query.

        Args:
            directory: where to write it; it must not exist.

        Raises:
            CheckpointMismatchError: there is something in the directory.
            ProgramError: no epoch has been run yet.
        """
        if not self.epoch:
            raise ProgramError("write_savepoint(): there is no state yet: run an epoch before")
        programs = describe_programs([self._program])["programs"]
        write_savepoint(fspath(directory), self._job.savepoint(), epoch=self.epoch - 1, programs=programs)

    def close(self) -> None:
        """End the tasks: their functions are closed."""
        self._job.close()

    def __enter__(self) -> ProgramTestHarness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def program_of(
    build: Build,
    parallelism: int,
    *,
    batch: bool = False,
    max_parallelism: int | None = None,
    savepoint: str | None = None,
    time_zone: str | None = None,
) -> tuple[Program, dict[str, int | None]]:
    """Return the program that ``build`` builds, and the number of the vertex that reads each source.

    It is None for a source on which no output depends.

    Args:
        build: as a :class:`ProgramTestHarness` takes it.
        parallelism: number of subtasks after a shuffle.
        batch: whether it runs in batch mode.
        max_parallelism: number of key groups; None: the default for the parallelism.
        savepoint: the directory of the savepoint that it starts from.
        time_zone: the time zone of naive datetimes.
    """
    if not callable(build) or isinstance(build, type):
        raise ProgramError(f"a program is built by a function build(env, payments), not by {shorten(build)}")
    parameters = list(inspect.signature(build).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    if not names:
        raise ProgramError(
            f"{shorten(build)} takes no source: build(env, payments) gets one stream for each parameter after env"
        )
    env = StreamExecutionEnvironment().set_parallelism(parallelism)
    if time_zone is not None:
        env.set_time_zone(time_zone)
    if batch:
        env.set_runtime_mode(RuntimeExecutionMode.BATCH)
    if max_parallelism is not None:
        env.set_max_parallelism(max_parallelism)
    if savepoint is not None:
        env.from_savepoint(savepoint)
    sources = {name: env.from_collection([]).name(name) for name in names}
    built = build(env, *sources.values())
    outputs = built if isinstance(built, Mapping) else {"output": built}
    for name, stream in outputs.items():
        if not isinstance(stream, DataStream):
            raise ProgramError(
                f"{shorten(build)} returned {shorten(stream)} for the output {name!r}: it has to return a stream,"
                " or a dict of streams by name"
            )
    program = env._compile("test", [stream._sink(name, "output") for name, stream in outputs.items()])
    numbers: dict[SourceTransformation, int] = {step: n for n, step in program.sources.items()}
    return program, {name: numbers.get(stream._step) for name, stream in sources.items()}  # type: ignore[call-overload]
