"""The harness that runs a whole program in this process, epoch by epoch, with a manual clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from types import TracebackType
from typing import Any

from pillarbox._datastream.environment.environment import StreamExecutionEnvironment
from pillarbox._datastream.environment.execution_mode import RuntimeExecutionMode
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError, shorten
from pillarbox._graph.description import describe_programs
from pillarbox._graph.program import Program
from pillarbox._graph.transformations import SourceTransformation
from pillarbox._runtime.local import LocalJob, Savepoint, source_copier
from pillarbox._state.savepoint.files import write_savepoint
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.source_stream_task import SourceStreamTask
from pillarbox._time.duration import DurationLike
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox.testing._patience import Patience

Build = Callable[..., DataStream | Mapping[str, DataStream]]


@dataclass(frozen=True)
class ProgramSnapshot:
    """A program's committed state. Another harness can be started from it. Picklable."""

    epoch: int
    stores: Savepoint


class ProgramHarnessJob(LocalJob):
    """A job whose operators' waits are limited by the harness's ``Patience``."""

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
    """Runs a program on pushed elements, with the same vertices, shuffles and barriers as on Spark.

    Elements are queued until :meth:`run_epoch`; an epoch corresponds to a micro-batch. Tasks use copies of the
    functions. Other arguments are as in :class:`OneInputStreamOperatorTestHarness`.

    Args:
        build: builds the program. After ``env``, the function's parameters without defaults name the sources:
            ``build(env, payments, limits)`` receives two streams. It returns a dict of streams by output name, or a
            single stream, which is named ``"output"``.
        batch: whether to run in batch mode. If so, :meth:`end_input` processes all input in one epoch.

    Attributes:
        epoch: number of committed epochs.

    Raises:
        ProgramError: ``build`` takes no source or returns no stream, or the program is invalid.
        CheckpointMismatchError: the snapshot belongs to another program or parallelism. Raised in the first epoch.
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
                f"a ProgramTestHarness starts from another harness's snapshot(), not from {shorten(snapshot)}. To"
                " start from a savepoint, call env.from_savepoint(directory)"
            )
        job = ProgramHarnessJob(
            self._patience,
            self._program,
            clock=self.processing_time_service,
            savepoint=None if snapshot is None else snapshot.stores,
        )
        job.epoch = 0 if snapshot is None else snapshot.epoch
        return job

    @property
    def epoch(self) -> int:
        return self._job.epoch

    def push(self, source: str, *elements: Any, partition: int = 0) -> None:
        """Queue elements of a source for the next epoch.

        Args:
            source: the name of the source's parameter in ``build``.
            elements: any Python objects, which are copied; ``row(card="c1")`` creates a DataFrame-like row.
            partition: the elements' source partition. Each partition has its own watermark.
        """
        self.push_all(source, elements, partition=partition)

    def push_all(self, source: str, elements: Iterable[Any], *, partition: int = 0) -> None:
        """Queue elements of a source for the next epoch, as in :meth:`push`."""
        if source not in self._pending:
            raise ProgramError(f"there is no source {source!r}; the sources are {', '.join(self._pending)}")
        number = self._vertices[source]
        if number is None:
            raise ProgramError(f"no output depends on the source {source!r}, so its elements would be lost")
        copied = source_copier(self._program, number).copied
        self._pending[source].setdefault(partition, []).extend(map(copied, elements))

    def set_processing_time(self, timestamp: int) -> None:
        """Set the clock (Unix time in ms). Due timers fire in the next epoch."""
        self._patience.set_clock(timestamp)

    def advance_processing_time(self, milliseconds: int) -> None:
        if milliseconds < 0:
            raise ValueError(
                f"the clock cannot advance by {milliseconds} ms: to turn it back, use set_processing_time()"
            )
        self._patience.set_clock(self.processing_time_service.current_processing_time() + milliseconds)

    def run_epoch(self, *, time_passes: DurationLike = 0) -> dict[str, list[Any]]:
        """Run the queued elements and due timers as one epoch, and return each output's records.

        If the epoch fails, its elements are dropped, and state and output are unchanged. ``time_passes`` is as in
        :meth:`OneInputStreamOperatorTestHarness.end_input`.
        """
        return self._run(bounded=False, time_passes=time_passes)

    def end_input(self, *, time_passes: DurationLike = 0) -> dict[str, list[Any]]:
        """Run the queued elements as the last epoch. Event time advances to infinity, so all event-time timers fire."""
        return self._run(bounded=True, time_passes=time_passes)

    def fail_epoch(self, *, time_passes: DurationLike = 0) -> None:
        """Run the queued elements and discard the outcome, as if a worker had died just before the commit.

        Tasks restart, and the elements are queued for the next epoch again, as on Spark.
        """
        before = self.snapshot()
        try:
            with self._patience.time_passes(time_passes):
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
                copied = source_copier(self._program, vertex).copied
                inputs[vertex] = [
                    [Records(list(map(copied, partitions[number])))] if number in partitions else []
                    for number in range(max(partitions) + 1)
                ]
        return inputs

    def get_output(self, name: str = "output") -> list[Any]:
        """Return the records of an output since the start or the last :meth:`clear_output`."""
        if name not in self._outputs:
            raise ProgramError(f"there is no output {name!r}; the outputs are {', '.join(self._outputs)}")
        return list(self._outputs[name])

    def clear_output(self) -> None:
        self._outputs = {name: [] for name in self._outputs}

    def get_plan(self) -> str:
        return self._program.to_text()

    def snapshot(self) -> ProgramSnapshot:
        """Return the committed state, without queued elements."""
        return ProgramSnapshot(self._job.epoch, self._job.savepoint())

    def restore(self, snapshot: ProgramSnapshot) -> None:
        """Restart all tasks from a snapshot, as when a query restarts."""
        self._job.reset()
        self._job = self._start(snapshot)

    def write_savepoint(self, directory: str | PathLike[str]) -> None:
        """Write the committed state to a new local directory, as a savepoint.

        Programs start from it with ``env.from_savepoint(directory)``, here and on Spark, at any parallelism. It has no
        source positions, so a query on Spark reads its sources as a new query does.
        """
        if not self.epoch:
            raise ProgramError("write_savepoint(): there is no state yet: run an epoch first")
        programs = describe_programs([self._program])["programs"]
        write_savepoint(fspath(directory), self._job.savepoint(), epoch=self.epoch - 1, programs=programs)

    def close(self) -> None:
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
    """Build a program. Return it with each source's vertex number (None for an unused source)."""
    if not callable(build) or isinstance(build, type):
        raise ProgramError(
            f"a program must be a function of the environment and its sources, such as build(env, payments), not"
            f" {shorten(build)}"
        )
    parameters = list(inspect.signature(build).parameters.values())[1:]
    names = [parameter.name for parameter in parameters if parameter.default is parameter.empty]
    if not names:
        raise ProgramError(
            f"{shorten(build)} has no parameter for a source: declare one for each source, as in build(env, payments)"
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
                f"{shorten(build)} returned {shorten(stream)} for the output {name!r}: return a stream, or a dict"
                " of streams by name"
            )
    program = env._compile("test", [stream._sink(name, "output") for name, stream in outputs.items()])
    numbers: dict[SourceTransformation, int] = {step: n for n, step in program.sources.items()}
    return program, {name: numbers.get(stream._step) for name, stream in sources.items()}  # type: ignore[call-overload]
