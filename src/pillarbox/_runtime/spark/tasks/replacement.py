"""A hook that runs a recorder instead of a task."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol

from pillarbox._runtime.spark.tasks.task_info import local_property
from pillarbox._state.chunks.store import ChunkStore

#: The setting that contains (``module:Class``, arguments) as JSON.
REPLACEMENT = "spark.pillarbox.replacement"


class Replacement(Protocol):
    """Replaces one task in a repeated epoch. Upstream tasks run as usual."""

    def is_task(self, program: str, number: int, subtask: int) -> bool: ...

    def is_left_out(self, program: str, number: int) -> bool:
        """Return whether to skip a vertex because the replaced task gets none of its output."""

    def clock(self, program: str, number: int, subtask: int) -> bytes | None:
        """Return the recorded clock of an upstream task, or None."""

    def send(self, facts: dict[str, Any], portions: Iterable[Any], store: ChunkStore | None = None) -> None:
        """Record the replaced task's input: buffers as tuples, or a source's Arrow batches as bytes."""


def replacement_here() -> Replacement | None:
    setting = local_property(REPLACEMENT)
    if not setting:
        return None
    name, arguments = json.loads(setting)
    module, _, cls = name.partition(":")
    replacement: Replacement = getattr(import_module(module), cls)(**arguments)
    return replacement
