"""The seam at which something else takes the place of tasks, as a recording does."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol

import pyarrow as pa

from pillarbox._elements import Buffer
from pillarbox._runtime.spark.tasks.task_facts import local_property
from pillarbox._state.chunks.store import ChunkStore

#: The setting that names a class, as ``module:Class``, and its arguments, as JSON.
REPLACEMENT = "spark.pillarbox.replacement"


class Replacement(Protocol):
    """Takes the place of one task of an epoch that runs again; the tasks that feed it run as they did."""

    def is_task(self, program: str, number: int, subtask: int) -> bool:
        """Return whether this takes the place of a task."""

    def is_left_out(self, program: str, number: int) -> bool:
        """Return whether a vertex has nothing to do, as it feeds no task that is replaced."""

    def clock(self, program: str, number: int, subtask: int) -> bytes | None:
        """Return the log of the clock that another task goes by; None: by its machine's."""

    def send(self, facts: dict[str, Any], store: ChunkStore, portions: Iterable[list[Buffer]]) -> None:
        """Take the state and the input of a task after a shuffle, instead of running it."""

    def send_source(self, facts: dict[str, Any], batches: Iterable[pa.RecordBatch]) -> None:
        """Take the input of a source's task, instead of running it."""


def replacement_here() -> Replacement | None:
    """Return what takes the place of a task in the query that runs here; None: nothing does."""
    setting = local_property(REPLACEMENT)
    if not setting:
        return None
    name, arguments = json.loads(setting)
    module, _, cls = name.partition(":")
    replacement: Replacement = getattr(import_module(module), cls)(**arguments)
    return replacement
