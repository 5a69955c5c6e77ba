"""The execution mode of a program."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """How a program is run. Flink's enumeration of this name.

    Example:
        >>> words = env.set_runtime_mode(RuntimeExecutionMode.BATCH).from_collection(["to", "be", "to"])
        >>> counts = words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1)
        >>> sorted(counts.execute_and_collect())
        [('be', 1), ('to', 2)]
    """

    #: Records are processed as they come, and watermarks tell how far event time is. The default.
    STREAMING = "STREAMING"
    #: Of bounded sources: records are processed key by key, and results emitted when a key has ended.
    BATCH = "BATCH"
    #: BATCH if all sources are bounded, else STREAMING.
    AUTOMATIC = "AUTOMATIC"
