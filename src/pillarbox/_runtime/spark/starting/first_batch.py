"""Makes a query with state run a micro-batch without input after its start.

Spark plans a micro-batch without input only if the run's previous micro-batch reported due work. So after a restart, or
a start from a savepoint, timers would wait for input. But Spark repeats a micro-batch that has begun and is not
committed. So the start begins a micro-batch, by appending a copy of the offset log's last entry with the current time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pillarbox._errors import describe
from pillarbox._runtime.spark.plan.registry import RegisteredProgram
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.session.writer import WriterStart

_log = logging.getLogger("pillarbox")


def begin_batch_without_input(
    start: WriterStart, checkpoint: Checkpoint, programs: Sequence[RegisteredProgram], now: float | None = None
) -> bool:
    """If timers may be due and no micro-batch is uncommitted, begin a micro-batch. Returns whether one began.

    Does nothing under Spark Connect, and with ``trigger(once=True)``, whose only micro-batch must read input.
    """
    last = checkpoint.last_committed
    timed = any(program.summary.uses_processing_time for program in programs)
    if not timed or last < 0 or checkpoint.is_interrupted or start.is_once:
        return False
    offsets = session_of(start.spark).hadoop_folder(f"{checkpoint}/offsets")
    if offsets is None:
        return False
    entry = checkpoint.offsets([last])[last]
    if entry.time is None:  # unknown format of the log
        return False
    # Spark's times only increase.
    following = entry.at(max(entry.time + 1, int(1000 * (time.time() if now is None else now))))
    try:
        offsets.add(str(last + 1), "\n".join(following.lines))
    except Exception as error:  # timers can wait for input
        message = "checkpoint %s: timers that are due will fire only when the next input arrives: %s"
        _log.warning(message, checkpoint, describe(error))
        return False
    return True
