"""Rescales a stopped query.

Spark repartitions its state, and commits this as a batch without input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._errors import CheckpointMismatchError, ConfigurationError, check_count
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.session.directories import check_session, checked_directory
from pillarbox._runtime.spark.session.java import repartition
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.session_settings import session_with, settings_of_state, spark_version
from pillarbox._runtime.spark.starting.started import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SINCE = (4, 2)


def rescale(spark: SparkSession, checkpoint: str, parallelism: int) -> bool:
    """Change how many tasks of a stopped query run concurrently, by repartitioning its state.

    Afterwards, start the same program with ``set_parallelism(parallelism)``. It resumes exactly where it stopped. The
    number of subtasks (the max parallelism) is fixed by the first start. Spark reads and writes all state once. If the
    call is interrupted, repeat it: no query can start on the checkpoint until it completes.

    Args:
        spark: a classic session, of Spark 4.2 or newer.
        checkpoint: the ``checkpointLocation`` of the query, which must not be running.
        parallelism: from 1 to the max parallelism.

    Returns:
        Whether the parallelism changed.

    Raises:
        CheckpointMismatchError: the checkpoint does not exist, the query is running, its last epoch is not committed, a
            rescaling to a different parallelism was interrupted, or ``parallelism`` exceeds the max parallelism.
        ConfigurationError: this version of Spark cannot rescale.
        ProgramError: ``parallelism`` is not a positive integer.

    Example:
        >>> rescale(spark, "/checkpoints/flights", 8)  # doctest: +SKIP
        True
    """
    check_count(parallelism, "parallelism")
    check_session(spark, "rescale()")
    location = checked_directory(checkpoint, "rescale(): checkpoint=")
    check_spark(spark)
    state = CheckpointState(spark, location)
    stopped = state.checkpoint
    if stopped.query_id in {*(str(query.id) for query in spark.streams.active), *running()}:
        raise CheckpointMismatchError(f"checkpoint {location}: its query is running: stop it, and try again")
    if stopped.uncommitted_epoch is not None:
        raise CheckpointMismatchError(
            f"checkpoint {location}: epoch {stopped.uncommitted_epoch} began, but was not committed: start the query"
            " with pillarbox.start(...) and trigger(availableNow=True), let it end, and try again"
        )
    stopped.check_interrupted(parallelism)
    if stopped.interrupted is None and stopped.parallelism == parallelism:
        return False
    subtasks = _subtasks(state)
    if subtasks is None or not state.stateful:
        raise CheckpointMismatchError(f"checkpoint {location} contains no pillarbox state to repartition")
    if parallelism > subtasks:
        raise CheckpointMismatchError(
            f"checkpoint {location}: parallelism {parallelism} is above its max parallelism {subtasks}, which was set"
            f" by the first start and cannot change: use at most {subtasks}, or write a savepoint and start from it"
            " with"
            " env.from_savepoint(...), a new set_max_parallelism(...) and a new checkpoint directory"
        )
    stopped.renew_description()
    # Other queries can start meanwhile.
    own = session_with(spark, settings_of_state(stopped.state_format))
    repartition(own, location, parallelism)
    return True


def check_spark(spark: SparkSession) -> None:
    has_jvm = session_of(spark).has_jvm
    if not has_jvm or spark_version(spark) < _SINCE:
        named = f"Spark {spark.version}" if has_jvm else "Spark Connect"
        raise ConfigurationError(
            f"{named} cannot repartition the state of a checkpoint: call pillarbox.rescale in a classic session of"
            " Spark 4.2 or newer, or run 'pillarbox rescale'. The next start also needs Spark 4.2 or newer."
            " Alternatively, write a savepoint and start from it with env.from_savepoint(...), any parallelism and a"
            " new checkpoint directory"
        )


def _subtasks(state: CheckpointState) -> int | None:
    noted = state.checkpoint.subtasks()
    if noted is not None:
        return min((subtasks for subtasks, _ in noted), default=None)
    return max((head.parallelism for head in state.all_heads()), default=None)
