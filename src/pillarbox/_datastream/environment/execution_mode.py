"""The execution mode of a program."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pillarbox._errors import ProgramError
from pillarbox._graph.transformations import DataFrameSource, Transformation, steps_leading_to


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


def is_batch(mode: RuntimeExecutionMode, sinks: Iterable[Transformation]) -> bool:
    """Return whether the program that leads to sinks runs in batch mode.

    Raises:
        ProgramError: it should, and a source has no end.
    """
    if mode is RuntimeExecutionMode.STREAMING:
        return False
    steps = steps_leading_to(sinks)
    endless = [step for step in steps if isinstance(step, DataFrameSource) and step.dataframe.isStreaming]
    if endless and mode is RuntimeExecutionMode.BATCH:
        raise ProgramError(
            f"batch mode is for sources that end, and {endless[0].name!r} is a streaming DataFrame: read it with"
            " spark.read, or call set_runtime_mode(RuntimeExecutionMode.STREAMING), or AUTOMATIC"
        )
    return not endless
