"""The execution mode of a program: streaming or batch."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from pillarbox._errors import ProgramError
from pillarbox._graph.transformations import DataFrameSource, Transformation, steps_leading_to


class RuntimeExecutionMode(Enum):
    """The execution mode of a program, as in Flink.

    Example:
        >>> words = env.set_runtime_mode(RuntimeExecutionMode.BATCH).from_collection(["to", "be", "to"])
        >>> sorted(words.key_by(str).reduce(lambda total, word: total + word).execute_and_collect())
        ['be', 'toto']
    """

    #: Processes records as they arrive; watermarks advance event time. The default.
    STREAMING = "STREAMING"
    #: For bounded sources: processes records key by key, and emits a key's results at its end.
    BATCH = "BATCH"
    #: BATCH if all sources are bounded, otherwise STREAMING.
    AUTOMATIC = "AUTOMATIC"


def is_batch(mode: RuntimeExecutionMode, sinks: Iterable[Transformation]) -> bool:
    if mode is RuntimeExecutionMode.STREAMING:
        return False
    steps = steps_leading_to(sinks)
    endless = [step for step in steps if isinstance(step, DataFrameSource) and step.dataframe.isStreaming]
    if endless and mode is RuntimeExecutionMode.BATCH:
        raise ProgramError(
            f"batch mode needs bounded sources, but {endless[0].name!r} is a streaming DataFrame: read it with"
            " spark.read, or set RuntimeExecutionMode.STREAMING or AUTOMATIC"
        )
    return not endless
