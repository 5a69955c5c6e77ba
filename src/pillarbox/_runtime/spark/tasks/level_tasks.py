"""Runs the subtasks of one level (the operators between two shuffles)."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager

from pillarbox._elements.buffers import Buffer
from pillarbox._operators.frame.spark_time import SparkMicroBatch
from pillarbox._reports.failure import FailedAttempt
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import failures_in_worker
from pillarbox._runtime.spark.session.packages import packages_here
from pillarbox._runtime.spark.tasks.residency import Residency
from pillarbox._runtime.spark.tasks.task_info import TaskInfo
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._task.lifecycle import TaskState
from pillarbox._task.multiple_input_stream_task import MultipleInputStreamTask
from pillarbox._task.vertex import Vertex

# Maximum characters of a clock log in an error.
_LOGGED_CLOCK = 2_000


@contextmanager
def short_lived(vertex: Vertex, subtask: int) -> Iterator[MultipleInputStreamTask]:
    """Create a task for the block, and close it at the end, or cancel it if the block raises."""
    task = MultipleInputStreamTask(vertex, subtask)
    try:
        yield task
        task.close()
    except BaseException:
        task.cancel()
        raise


class LevelTasks:
    """Runs the epochs of a level's subtasks. Not thread-safe."""

    def __init__(self, vertices: dict[int, ShippedVertex], residency: Residency) -> None:
        self._vertices = vertices
        self._residency = residency
        self._running: MultipleInputStreamTask | None = None

    def run_epoch(
        self,
        address: tuple[int, int],
        facts: TaskInfo,
        buffers: Iterable[Iterable[Buffer]],
        chunks: ChunkStore,
    ) -> Generator[list[Buffer], None, int | None]:
        """Run an epoch of the subtask ``address`` (vertex, subtask). Yields its output in parts.

        Returns when the next epoch must run even without input (Unix time in ms), or None.
        """
        number, subtask = address
        shipped = self._vertices[number]
        task: MultipleInputStreamTask | None = None

        def clock() -> str | None:
            return None if task is None else task.clock.log.to_text(_LOGGED_CLOCK)

        with failures_in_worker(shipped.name, subtask, FailedAttempt(number, facts.batch, facts.attempt), clock):
            is_new = not self._residency.has(shipped, subtask, facts)
            task = self._running = self._residency.task(shipped, subtask, chunks, facts)
            task.attempt, task.process_tasks = facts.attempt, len(self._residency)
            task.versions = dict(packages_here()) if is_new else None
            task.executor, task.fallback = facts.executor, facts.fallback
            task.chain.set_micro_batch(SparkMicroBatch(facts.batch, facts.time, facts.watermark))
            try:
                yield from task.run_epoch(buffers, chunks, facts.time, last=facts.is_last)
                wakes_up = task.next_wake_up
            except BaseException:
                self._residency.discard(task)
                raise
            finally:
                self._running = None
            return wakes_up

    def cancel(self) -> None:
        task = self._running
        if task is not None and task.state is TaskState.RUNNING:
            task.cancel()
