"""``WatermarkStrategy``: the source of a stream's timestamps and watermarks.

PyFlink's class of the same name, with Python manners: durations as ``timedelta`` or ``"5 seconds"``, functions and
column names as timestamp assigners, and one's own generators.

A strategy is part of the program: it is built by the user, pickled, and read by the tasks. It never changes, so any
thread may use it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox._errors import MissingMethodError, ProgramError, shorten
from pillarbox._time.duration import DurationLike, positive_millis, to_millis
from pillarbox._time.timestamps import (
    ColumnTimestampAssigner,
    TimestampAssigner,
    as_timestamp_assigner,
)
from pillarbox._time.watermark_generators import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarksGenerator,
    WatermarkGenerator,
    WatermarksWithIdleness,
)


@dataclass(frozen=True, eq=False, repr=False)
class WatermarkStrategy:
    """The source of a stream's timestamps and watermarks.

    Made by the ``for_*`` methods and :meth:`no_watermarks`, refined by the ``with_*`` methods, each of which returns a
    new strategy.

    Example:
        >>> late_by = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
        >>> late_by.with_timestamp_assigner("created_at").with_idleness("1 minute").idle_timeout
        60000

    Attributes:
        generator_factory: makes the watermark generator of a subtask; use :meth:`create_generator`.
        timestamp_assigner: returns each record's timestamp, and raises ``TypeError`` where there is
            none; None: records keep the timestamps that they have.
        timestamp_column: the column that ``timestamp_assigner`` reads, where it is one: columnar
            data can be stamped without it, in one go.
        idle_timeout: milliseconds without a record after which the stream is idle; None: never.
        progress_timeout: milliseconds without a record after which the watermark advances with the clock; None: never.
    """

    generator_factory: Callable[[], WatermarkGenerator]
    timestamp_assigner: TimestampAssigner | None = None
    timestamp_column: str | None = None
    idle_timeout: int | None = None
    progress_timeout: int | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Return a strategy for timestamps that never go down within a partition: watermarks follow closely."""
        return WatermarkStrategy(AscendingTimestampsWatermarks)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: DurationLike) -> WatermarkStrategy:
        """Return a strategy for records that come out of order, but at most ``max_out_of_orderness`` late.

        Args:
            max_out_of_orderness: after a record of time T, none older than T minus this is
                expected; as an int, milliseconds.

        Raises:
            ProgramError: not a duration, or a negative one.
        """
        delay = to_millis(max_out_of_orderness, "for_bounded_out_of_orderness()")
        return WatermarkStrategy(partial(BoundedOutOfOrdernessWatermarks, delay))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return a strategy for processing time only: event time stands still until the input ends."""
        return WatermarkStrategy(NoWatermarksGenerator)

    @staticmethod
    def for_generator(factory: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Return a strategy with a generator of one's own.

        A generator is no state: it starts over with each epoch of a source, and after a shuffle with each task that
        is made again (there its last watermark is kept, so none goes back). One that heeds more than the timestamps,
        such as the number of records, says other things then.

        Args:
            factory: called once in each subtask, without arguments (in Java it gets a context); a class will do whose
                constructor takes none.

        Raises:
            ProgramError: it is a generator itself, which all subtasks would share, or cannot be
                called, or not without arguments.
        """
        made: object = factory  # not all users have their program type-checked
        if isinstance(made, WatermarkGenerator):
            name = type(made).__name__
            raise ProgramError(
                f"for_generator(): each subtask needs a generator of its own: give a function that makes one, "
                f"for instance the class {name}, not the instance {shorten(factory)}"
            )
        if not callable(made):
            raise ProgramError(f"for_generator(): not a function that makes a watermark generator: {shorten(factory)}")
        try:
            signature = inspect.signature(made)
        except ValueError:  # of something built in
            return WatermarkStrategy(factory)
        try:
            signature.bind()
        except TypeError as error:
            raise ProgramError(
                f"for_generator() got {shorten(factory)}, which is called without arguments: {error}; such as"
                " for_generator(lambda: MyGenerator(5_000))"
            ) from None
        return WatermarkStrategy(factory)

    def with_timestamp_assigner(
        self,
        timestamp_assigner: TimestampAssigner | Callable[[Any], Any] | Callable[[Any, int], Any] | str,
    ) -> WatermarkStrategy:
        """Return this strategy with timestamps from ``timestamp_assigner``.

        Args:
            timestamp_assigner: a :class:`TimestampAssigner`; a function ``f(value)`` or ``f(value,
                record_timestamp)``; or the name of a column. The timestamp is an int (epoch
                milliseconds), a datetime or a date (its midnight).

        Raises:
            ProgramError: it is none of these, or the column's name is empty.
        """
        made = as_timestamp_assigner(timestamp_assigner)
        column = made.column if isinstance(made, ColumnTimestampAssigner) else None
        return dataclasses.replace(self, timestamp_assigner=made, timestamp_column=column)

    def with_idleness(self, idle_timeout: DurationLike) -> WatermarkStrategy:
        """Return this strategy with a limit on silence.

        Downstream does not wait for a partition that has been silent for longer.

        Before the first shuffle a source is silent as a whole. After one each subtask is by itself, from its first
        epoch on, also one that never has a record, such as one without a key. The clock shows the time of the epoch
        (Spark's batch timestamp), and the time since which there has been silence is state: so an epoch that is run
        again does the same, and the time for which a query was stopped counts. (In Flink the countdown starts over.)

        A streaming query with it runs an epoch at each trigger, also while no data come: silence is noticed in epochs.
        So give the query a trigger, such as ``trigger(processingTime="5 seconds")``; without one, an epoch follows the
        other at once.

        Args:
            idle_timeout: how long without a record is idle; as an int, milliseconds.

        Raises:
            ProgramError: it is zero, negative or no duration.
        """
        millis = positive_millis(idle_timeout, "with_idleness(): the idle timeout")
        return dataclasses.replace(self, idle_timeout=millis)

    def with_wall_clock_progress(self, timeout: DurationLike) -> WatermarkStrategy:
        """Return this strategy with a watermark that advances with the clock while the source is silent.

        So the last windows fire without further data. Once a source has had no record for ``timeout``, counted from its
        last epoch with records, its watermark is the one of that epoch and the time that has gone by since the timeout
        ended. Records that come afterwards with older timestamps are late. The clock shows the epochs' times (Spark's
        batch timestamp), so an epoch that is run again does the same; the time for which a query was stopped counts,
        unless its first epoch has records. A source that has had no watermark yet stays without one.

        Each source counts by itself. With :meth:`with_idleness` as well, one that is idle holds nobody back, and its
        watermark counts only while all sources are idle. At the end of bounded input event time ends anyway.

        It is for strategies that are assigned before the first ``key_by(...)`` or ``rebalance()``.

        Args:
            timeout: how long a source has to be silent; as an int, milliseconds.

        Raises:
            ProgramError: it is zero, negative or no duration.
        """
        millis = positive_millis(timeout, "with_wall_clock_progress(): the timeout")
        return dataclasses.replace(self, progress_timeout=millis)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name == "with_watermark_alignment":
                raise MissingMethodError(
                    f"{name}() is a method of Flink's strategies only: sources are read micro-batch by micro-batch, so"
                    " leave the call out; maxOffsetsPerTrigger, or maxFilesPerTrigger, limits what a source reads"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def emits_watermarks(self) -> bool:
        """Whether watermarks come before the end of the input: they do not with :meth:`no_watermarks`."""
        return self.generator_factory is not NoWatermarksGenerator

    def create_generator(self, now_ms: Callable[[], int] | None = None) -> WatermarkGenerator:
        """Make a generator, for one subtask and one stream of records.

        Args:
            now_ms: the clock (milliseconds) for idleness: after a shuffle the time of the epoch. With
                it, and where there is an ``idle_timeout``, the generator also watches for idleness;
                without it, the caller has to see to that.

        Raises:
            TypeError: the factory returned something else.
        """
        generator = self.generator_factory()
        if not isinstance(generator, WatermarkGenerator):
            raise TypeError(
                f"{shorten(self.generator_factory)} has to make a WatermarkGenerator, not {shorten(generator)}"
            )
        if now_ms is None or self.idle_timeout is None:
            return generator
        return WatermarksWithIdleness(generator, self.idle_timeout, now_ms)

    def __repr__(self) -> str:
        factory = self.generator_factory
        if isinstance(factory, partial) and factory.func is BoundedOutOfOrdernessWatermarks:
            text = f"for_bounded_out_of_orderness({factory.args[0]} ms)"
        elif factory is AscendingTimestampsWatermarks:
            text = "for_monotonous_timestamps()"
        elif factory is NoWatermarksGenerator:
            text = "no_watermarks()"
        else:
            text = f"for_generator({shorten(factory)})"
        if self.timestamp_assigner is not None:
            text += f".with_timestamp_assigner({self.timestamp_assigner!r})"
        if self.idle_timeout is not None:
            text += f".with_idleness({self.idle_timeout} ms)"
        if self.progress_timeout is not None:
            text += f".with_wall_clock_progress({self.progress_timeout} ms)"
        return f"WatermarkStrategy.{text}"
