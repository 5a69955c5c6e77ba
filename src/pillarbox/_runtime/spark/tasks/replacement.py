"""A hook that replaces a task, for recordings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Protocol

from pillarbox._runtime.spark.tasks.task_info import local_property
from pillarbox._state.chunks.store import ChunkStore

#: The setting with (``module:Class``, arguments), as JSON.
REPLACEMENT = "spark.pillarbox.replacement"


class Replacement(Protocol):
    """Replaces one task when an epoch is repeated. Upstream tasks run as before."""

    def is_task(self, program: str, number: int, subtask: int) -> bool: ...

    def is_left_out(self, program: str, number: int) -> bool:
        """Return whether a vertex is skipped, because it does not feed the replaced task."""

    def clock(self, program: str, number: int, subtask: int) -> bytes | None:
        """Return the recorded clock of another task, or None."""

    def send(self, facts: dict[str, Any], portions: Iterable[Any], store: ChunkStore | None = None) -> None:
        """Receive the task's input: tuples of buffers, or a source's Arrow batches as bytes."""


def replacement_here() -> Replacement | None:
    setting = local_property(REPLACEMENT)
    if not setting:
        return None
    name, arguments = json.loads(setting)
    module, _, cls = name.partition(":")
    replacement: Replacement = getattr(import_module(module), cls)(**arguments)
    return replacement
