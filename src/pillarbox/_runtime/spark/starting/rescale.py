"""Another parallelism for a stopped query: Spark spreads its state over another number of partitions.

Spark does it as a batch of its own, without input, which it commits as any other. If that is interrupted, the offset
log knows of the batch and the commit log does not: Spark then starts no query on the checkpoint, and completes the
batch when it is asked for the same number again. So nothing needs to be noted next to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pillarbox._errors import CheckpointMismatchError, ConfigurationError, check_count
from pillarbox._runtime.spark.checkpoint.state import CheckpointState
from pillarbox._runtime.spark.session.java import repartition
from pillarbox._runtime.spark.session.places import check_session, place_of
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._runtime.spark.session.session_settings import session_with, settings_of_state, spark_version
from pillarbox._runtime.spark.starting.started import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SINCE = (4, 2)


def rescale(spark: SparkSession, checkpoint: str, parallelism: int) -> bool:
    """Change how many tasks a stopped query runs at a time: its state moves to another number of Spark's partitions.

    Then start the same program with ``set_parallelism(parallelism)``: it resumes exactly where it was. Its subtasks,
    whose number is the max parallelism, which the first start fixed, are spread over the partitions.

    All state is read and written once, by Spark. If it is interrupted, no query starts on the checkpoint until the
    same call has completed it.

    Args:
        spark: a classic session, of Spark 4.2 or newer.
        checkpoint: the ``checkpointLocation`` of the query. The query must not run, nowhere.
        parallelism: the number, from 1 to the max parallelism.

    Returns:
        Whether there was anything to change.

    Raises:
        CheckpointMismatchError: there is no such checkpoint; the query runs; its last epoch is not committed; to
            change it to another number was interrupted; or its max parallelism is lower.
        ConfigurationError: this Spark cannot do it.
        ProgramError: ``parallelism`` is no whole number from 1.

    Example:
        >>> rescale(spark, "/checkpoints/flights", 8)  # doctest: +SKIP
        True
    """
    check_count(parallelism, "parallelism")
    check_session(spark, "rescale()")
    location = place_of(checkpoint, "rescale(): the checkpoint")
    check_spark(spark)
    state = CheckpointState(spark, location)
    found = state.checkpoint
    if found.query_id in {*(str(query.id) for query in spark.streams.active), *running()}:
        raise CheckpointMismatchError(f"checkpoint {location}: its query is running: stop it, and call this again")
    if found.uncommitted_epoch is not None:
        raise CheckpointMismatchError(
            f"checkpoint {location}: epoch {found.uncommitted_epoch} was begun, and is not committed: start the query"
            " once more by pillarbox.start(...) with trigger(availableNow=True), let it end, and call this again"
        )
    found.check_interrupted(parallelism)
    if found.interrupted is None and found.parallelism == parallelism:
        return False
    subtasks = _subtasks(state)
    if subtasks is None or not state.stateful:
        raise CheckpointMismatchError(f"checkpoint {location} has no state of pillarbox: there is nothing to spread")
    if parallelism > subtasks:
        raise CheckpointMismatchError(
            f"checkpoint {location}: parallelism {parallelism} is above its max parallelism {subtasks}, which the"
            f" first start fixed: choose one up to {subtasks}; or write a savepoint, and start from it on a new"
            " checkpoint, with env.from_savepoint(...) and any set_max_parallelism(...)"
        )
    found.renew_description()
    # The more state there is, the longer it takes: in a session of its own, so other queries start meanwhile.
    own = session_with(spark, settings_of_state(found.state_format))
    repartition(own, location, parallelism)
    return True


def check_spark(spark: SparkSession) -> None:
    """Check that a session can spread state over another number of partitions.

    Raises:
        ConfigurationError: it cannot.
    """
    has_jvm = session_of(spark).has_jvm
    if not has_jvm or spark_version(spark) < _SINCE:
        named = f"Spark {spark.version}" if has_jvm else "Spark Connect"
        raise ConfigurationError(
            f"{named} cannot spread the state of a checkpoint over"
            " another number of partitions: call pillarbox.rescale in a classic session of Spark 4.2 or newer, or"
            " 'pillarbox rescale'; afterwards the query may run with this Spark again. Or write a savepoint, and"
            " start from it, with env.from_savepoint(...), on a new checkpoint with any parallelism"
        )


def _subtasks(state: CheckpointState) -> int | None:
    """Return the number of subtasks of the checkpoint's operators: the fewest, if there are several programs."""
    noted = state.checkpoint.subtasks()
    if noted is not None:
        return min((subtasks for subtasks, _ in noted), default=None)
    return max((head.parallelism for head in state.all_heads()), default=None)
