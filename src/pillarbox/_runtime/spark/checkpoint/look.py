"""Looks at the checkpoint of a query that may run: Spark removes files of old epochs at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from pillarbox._errors import ConfigurationError, PillarboxError, ProgramError
from pillarbox._runtime.spark.checkpoint.copy import copied_checkpoint, removed
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.session.session import session_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_TRIES = 6
# A query whose last epoch began earlier removes nothing soon (milliseconds).
_RECENT = 60_000


def look_at(spark: SparkSession, checkpoint: str, epoch: int | None, read: Callable[[CheckpointState], T]) -> T:
    """Read state of an epoch. If the query has committed another one meanwhile and it fails, read again, from a copy.

    Args:
        epoch: the number of a micro-batch; None: the last one that was committed, each time.
        read: reads; it may be called several times.

    Raises:
        CheckpointMismatchError: there is no such checkpoint or epoch, or it cannot be read.
        RemovedError: Spark removes the state of each epoch before it can be read.
    """
    files = CheckpointState(spark, checkpoint, epoch)
    try:
        return read(files)
    except ProgramError:
        raise  # a mistake of the caller
    except Exception as error:
        failure, said = error, str(error) if isinstance(error, PillarboxError) else None
    last = files.checkpoint.last_committed
    for _ in range(_TRIES):
        files = CheckpointState(spark, checkpoint, epoch)
        if files.checkpoint.last_committed == last:
            raise failure  # nothing was removed: it is as it is
        last = files.checkpoint.last_committed
        try:
            return _read_copy(files, read)
        except ProgramError:
            raise
        except ConfigurationError:
            raise failure from None  # there can be no copy
        except Exception as error:
            failure = error
            if isinstance(error, PillarboxError) and str(error) == said:
                raise
            said = str(error)
    raise removed(str(files), files.epoch) from failure


def may_run(files: CheckpointState) -> bool:
    """Return whether the query may be running: an epoch has begun not long ago."""
    begun = max(files.checkpoint.epochs_begun, default=files.epoch)
    time_of_epoch = files.checkpoint.offsets([begun])[begun].time or 0
    return time.time() * 1000 - time_of_epoch < _RECENT


def _read_copy(files: CheckpointState, read: Callable[[CheckpointState], T]) -> T:
    if not session_of(files.spark).has_jvm:
        return read(files)
    with copied_checkpoint(files.spark, str(files), files.epoch) as copy:
        return read(CheckpointState(files.spark, str(files), files.epoch, copy.path))
