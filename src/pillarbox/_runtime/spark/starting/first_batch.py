"""The first micro-batch of a query that is started again, if it has no input.

If the query was stopped between two micro-batches, the first one comes although there may be no input. Spark plans a
micro-batch without input if the one before it says that something is due. After a start there is none before it, so
timers and in-flight requests would wait until input arrives. If a micro-batch was begun, Spark runs it first, whatever
is in it. So a start begins one: an entry of the offset log that says what the last entry says, at the time of now.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pillarbox._errors import describe
from pillarbox._runtime.spark.plan.registry import PlannedProgram
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.session.writer import Start

_log = logging.getLogger("pillarbox")


def begin_batch_without_input(
    start: Start, checkpoint: Checkpoint, programs: Sequence[PlannedProgram], now: float | None = None
) -> bool:
    """Begin a micro-batch without input, if the query may wait for times and none is begun; return whether it was.

    Under Spark Connect none is begun. A query with ``trigger(once=True)`` has one micro-batch, which is for its input.

    Args:
        now: epoch seconds; None: the clock's.
    """
    last = checkpoint.last_committed
    timed = any(one.facts.uses_processing_time for one in programs)
    if not timed or checkpoint.is_new or checkpoint.is_interrupted or start.is_once:
        return False
    offsets = session_of(start.spark).hadoop_folder(f"{checkpoint}/offsets")
    if offsets is None:
        return False
    entry = checkpoint.offsets([last])[last]
    if entry.time is None:  # no log that is known: the query waits for input
        return False
    # Spark's times only grow.
    following = entry.at(max(entry.time + 1, int(1000 * (time.time() if now is None else now))))
    try:
        offsets.add(str(last + 1), "\n".join(following.lines))
    except Exception as error:  # it can wait for input
        _log.warning("checkpoint %s: timers that are due wait for input: %s", checkpoint, describe(error))
        return False
    return True
