"""``WatermarkStrategy``.

Like PyFlink's class, but with more types of arguments, and user-defined generators. Immutable, and pickled with the
program.
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
from pillarbox._time.timestamp_assigner import (
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
    """Assigns a stream's timestamps and watermarks.

    The ``for_*`` methods and :meth:`no_watermarks` create a strategy. The ``with_*`` methods return a changed copy.
    Invalid arguments raise ``ProgramError``.

    Example:
        >>> late_by = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds")
        >>> late_by.with_timestamp_assigner("created_at").with_idleness("1 minute").idle_timeout
        60000

    Attributes:
        generator_factory: creates the watermark generator of a subtask. Use :meth:`create_generator` instead.
        timestamp_assigner: returns a record's timestamp, or raises ``TypeError``. None if records keep their
            timestamps.
        timestamp_column: the column that ``timestamp_assigner`` reads, or None. It lets columnar data get timestamps in
            one step.
        idle_timeout: how long (ms) a stream must be without records to be idle, or None.
        progress_timeout: how long (ms) a source must be without records before its watermark advances with the clock,
            or None.
    """

    generator_factory: Callable[[], WatermarkGenerator]
    timestamp_assigner: TimestampAssigner | None = None
    timestamp_column: str | None = None
    idle_timeout: int | None = None
    progress_timeout: int | None = None

    @staticmethod
    def for_monotonous_timestamps() -> WatermarkStrategy:
        """Return a strategy for timestamps that ascend within each partition."""
        return WatermarkStrategy(AscendingTimestampsWatermarks)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: DurationLike) -> WatermarkStrategy:
        """Return a strategy for records that are at most ``max_out_of_orderness`` out of order.

        Args:
            max_out_of_orderness: a duration (an int is milliseconds).
        """
        delay = to_millis(max_out_of_orderness, "for_bounded_out_of_orderness()")
        return WatermarkStrategy(partial(BoundedOutOfOrdernessWatermarks, delay))

    @staticmethod
    def no_watermarks() -> WatermarkStrategy:
        """Return a strategy without watermarks, so that event time does not advance until the input ends."""
        return WatermarkStrategy(NoWatermarksGenerator)

    @staticmethod
    def for_generator(factory: Callable[[], WatermarkGenerator]) -> WatermarkStrategy:
        """Return a strategy with a user-defined generator.

        Generators are not checkpointed. A source creates a new generator in each epoch. After a shuffle, each new task
        creates a generator, and keeps the last watermark.

        Args:
            factory: a class or function, which is called without arguments. (In Java, it receives a context.)

        Raises:
            ProgramError: the argument cannot be called without arguments, or is itself a generator, which all subtasks
                would share.
        """
        generator: object = factory  # not all users type-check
        if isinstance(generator, WatermarkGenerator):
            name = type(generator).__name__
            raise ProgramError(
                "for_generator(): each subtask needs its own generator: pass a function that creates one, for"
                f" example the class {name}, not the instance {shorten(factory)}"
            )
        if not callable(generator):
            raise ProgramError(
                f"for_generator() takes a function that creates a watermark generator, not {shorten(factory)}"
            )
        try:
            signature = inspect.signature(generator)
        except ValueError:  # of a builtin
            return WatermarkStrategy(factory)
        try:
            signature.bind()
        except TypeError as error:
            raise ProgramError(
                f"for_generator() got {shorten(factory)}, which is called without arguments: {error}. Pass, for"
                " example, for_generator(lambda: MyGenerator(5_000))"
            ) from None
        return WatermarkStrategy(factory)

    def with_timestamp_assigner(
        self,
        timestamp_assigner: TimestampAssigner | Callable[[Any], Any] | Callable[[Any, int], Any] | str,
    ) -> WatermarkStrategy:
        """Return a copy with a timestamp assigner.

        Args:
            timestamp_assigner: a :class:`TimestampAssigner`, a function ``f(value)`` or ``f(value, record_timestamp)``,
                or a column name. Timestamps are ints (Unix time in ms), datetimes, or dates (midnight).
        """
        assigner = as_timestamp_assigner(timestamp_assigner)
        column = assigner.column if isinstance(assigner, ColumnTimestampAssigner) else None
        return dataclasses.replace(self, timestamp_assigner=assigner, timestamp_column=column)

    def with_idleness(self, idle_timeout: DurationLike) -> WatermarkStrategy:
        """Return a copy that marks streams without records as idle, so that downstream does not wait for them.

        Before the first shuffle, a stream is idle as a whole; after a shuffle, each subtask is idle on its own, even if
        it never receives a record. The clock is the epoch's time (Spark's batch timestamp), and the last record's time
        is state. A repeated epoch therefore has the same result, and time while a query is stopped counts. (In Flink,
        the timeout restarts.)

        A streaming query then runs an epoch at each trigger, even without data, so set a trigger such as
        ``trigger(processingTime="5 seconds")``.

        Args:
            idle_timeout: how long a stream must be without records to be idle (an int is milliseconds).
        """
        millis = positive_millis(idle_timeout, "with_idleness(): the idle timeout")
        return dataclasses.replace(self, idle_timeout=millis)

    def with_wall_clock_progress(self, timeout: DurationLike) -> WatermarkStrategy:
        """Return a copy whose watermark advances with the clock while the source has no records.

        This lets the last windows fire when no more data arrives. Records that arrive later with older timestamps are
        late. The clock is as in :meth:`with_idleness`. The time during which the query is stopped counts towards the
        timeout, unless the next epoch has records. A source that has not yet had a watermark is not affected.

        The timeout applies to each source separately. If :meth:`with_idleness` is also set, an idle source's watermark
        is ignored, unless all sources are idle.

        Only for strategies assigned before the first ``key_by(...)`` or ``rebalance()``.

        Args:
            timeout: how long a source must be without records before its watermark advances (an int is milliseconds).
        """
        millis = positive_millis(timeout, "with_wall_clock_progress(): the timeout")
        return dataclasses.replace(self, progress_timeout=millis)

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            if name == "with_watermark_alignment":
                raise MissingMethodError(
                    f"{name}() exists only in Flink: Spark reads sources in micro-batches, so drop the call."
                    " To limit a source, set maxOffsetsPerTrigger or maxFilesPerTrigger"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @property
    def emits_watermarks(self) -> bool:
        """Whether watermarks are emitted before the end of the input. False for :meth:`no_watermarks`."""
        return self.generator_factory is not NoWatermarksGenerator

    def create_generator(self, now_ms: Callable[[], int] | None = None) -> WatermarkGenerator:
        """Create the generator of one subtask and stream.

        Args:
            now_ms: the clock for idleness (ms); after a shuffle, the epoch's time. With it and an ``idle_timeout``, the
                generator detects idleness. Without it, the caller must do so.

        Raises:
            TypeError: the factory has not returned a generator.
        """
        generator = self.generator_factory()
        if not isinstance(generator, WatermarkGenerator):
            raise TypeError(
                f"{shorten(self.generator_factory)} must create a WatermarkGenerator, not {shorten(generator)}"
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
