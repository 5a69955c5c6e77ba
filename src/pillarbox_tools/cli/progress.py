"""The progress of a command: of Spark's tasks, as they are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS = 0.3


class TasksDone:
    """How many tasks Spark has run of those that it knows of: of the stages of jobs that were seen at work.

    Args:
        tracker: Spark's ``StatusTracker``.
    """

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker
        self._stages: dict[int, tuple[int, int]] = {}

    def look(self) -> tuple[int, int]:
        """Return how many tasks are done, and how many there are."""
        working: set[int] = set()
        for job in self._tracker.getActiveJobsIds():
            info = self._tracker.getJobInfo(job)
            for number in [] if info is None else info.stageIds:
                stage = self._tracker.getStageInfo(number)
                if stage is not None and stage.numTasks:
                    working.add(number)
                    self._stages[number] = stage.numCompletedTasks, stage.numTasks
        for number, (_, count) in self._stages.items():
            if number not in working:  # its job has ended
                self._stages[number] = count, count
        return sum(done for done, _ in self._stages.values()), sum(count for _, count in self._stages.values())


@contextmanager
def progress(spark: SparkSession, console: Console, what: str) -> Iterator[None]:
    """Show how far Spark is meanwhile, where the console is a terminal.

    A thread of its own looks at Spark; it touches nothing else.
    """
    context = getattr(spark, "sparkContext", None)  # there is none under Spark Connect
    if context is None or not console.is_terminal:
        yield
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    done = threading.Event()
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(what, total=None)
        tasks = TasksDone(context.statusTracker())

        def watch() -> None:
            while not done.wait(_SECONDS):
                completed, total = tasks.look()
                bar.update(shown, completed=completed, total=total or None)

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()
