"""Reads a checkpoint whose query may be running and removing old epochs."""

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
# If the last epoch began less than this time ago (milliseconds), the query may be running.
_RECENT = 60_000


def read_epoch(spark: SparkSession, checkpoint: str, epoch: int | None, read: Callable[[CheckpointState], T]) -> T:
    """Call ``read`` with an epoch's state, or with a copy if the query removes the epoch during the read.

    Raises:
        CheckpointCopyError: Spark removes epochs faster than they can be read.
    """
    files = CheckpointState(spark, checkpoint, epoch)
    try:
        return read(files)
    except ProgramError:
        raise  # a caller's mistake
    except Exception as error:
        failure, message = error, str(error) if isinstance(error, PillarboxError) else None
    last = files.checkpoint.last_committed
    for _ in range(_TRIES):
        files = CheckpointState(spark, checkpoint, epoch)
        if files.checkpoint.last_committed == last:
            raise failure
        last = files.checkpoint.last_committed
        try:
            return _read_copy(files, read)
        except ProgramError:
            raise
        except ConfigurationError:
            raise failure from None
        except Exception as error:
            failure = error
            if isinstance(error, PillarboxError) and str(error) == message:
                raise
            message = str(error)
    raise removed(str(files), files.epoch) from failure


def may_run(files: CheckpointState) -> bool:
    begun = max(files.checkpoint.epochs_begun, default=files.epoch)
    time_of_epoch = files.checkpoint.offsets([begun])[begun].time or 0
    return time.time() * 1000 - time_of_epoch < _RECENT


def _read_copy(files: CheckpointState, read: Callable[[CheckpointState], T]) -> T:
    if not session_of(files.spark).has_jvm:
        return read(files)
    with copied_checkpoint(files.spark, str(files), files.epoch) as copy:
        return read(CheckpointState(files.spark, str(files), files.epoch, copy.path))
