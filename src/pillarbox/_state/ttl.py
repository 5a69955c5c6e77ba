"""The configuration of a state's time-to-live: Flink's ``StateTtlConfig``, with PyFlink's names.

Source of the behaviour: Flink's ``StateTtlConfig`` and the decorators of states in ``runtime.state.ttl``.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NoReturn

from pillarbox._errors import ProgramError, is_count, shorten
from pillarbox._time.duration import DurationLike, Time, positive_millis


class StateTtlConfig:
    """How long a state lives after it was last accessed; ``descriptor.enable_time_to_live(config)`` sets it.

    A value, a folded value and an accumulator expire as a whole, each element of a list and each entry of a map by
    itself. Time is processing time: on Spark a streaming query takes the micro-batch's time, so all records of an epoch
    have the same, and an epoch that is run again does the same. State that was accessed at *t* has expired from
    *t* + ``ttl`` on. Expired state is cleared when it is read, and in the background, at the end of each epoch.

    A config may come, change and go between two starts of a query: what is kept is when each value was last accessed.
    Older state counts as accessed at the end of the first epoch with a time-to-live.

    Args:
        ttl: the duration, such as ``"1 hour"``; an int is milliseconds. PyFlink's ``Time`` will do.
        update_type: which accesses count: those that create or write, or also those that read.
            ``UpdateType.Disabled``: there is no time-to-live.
        state_visibility: whether expired state that has not been cleared yet can be read, for a last time.
        cleanup_in_background: whether state that nobody reads is cleared.
        cleanup_size: how many keys the background cleanup looks at for each one that an epoch has touched. It looks at
            more where it would otherwise not see all keys within ``ttl``.
        cleanup_full_snapshot: whether expired state is cleared when it is read from a checkpoint, also where there is
            no cleanup in the background.

    Raises:
        ProgramError: ``ttl`` is not positive or no duration, or an option is not one of those that there are.

    Example:
        >>> class First(KeyedProcessFunction[str, Row, Row]):
        ...     '''Lets a card's payment through, unless it had one in the hour before.'''
        ...
        ...     def open(self, runtime_context):
        ...         seen = ValueStateDescriptor[bool]("seen")
        ...         seen.enable_time_to_live(StateTtlConfig("1 hour"))
        ...         self.seen = runtime_context.get_state(seen)
        ...
        ...     def process_element(self, payment, ctx):
        ...         if not self.seen.value():
        ...             self.seen.update(True)
        ...             yield payment
        >>> with harness_for(First(), key_by="card") as harness:
        ...     harness.push(row(card="c1", amount=1))
        ...     harness.push(row(card="c1", amount=2))
        ...     harness.set_processing_time(3_600_000)
        ...     harness.push(row(card="c1", amount=3))
        ...     [payment.amount for payment in harness.get_output()]
        [1, 3]
    """

    class UpdateType(Enum):
        """Which accesses make a value live on."""

        Disabled = 0
        OnCreateAndWrite = 1
        OnReadAndWrite = 2

    class StateVisibility(Enum):
        """Whether a value can be read that has expired and was not cleared yet."""

        ReturnExpiredIfNotCleanedUp = 0
        NeverReturnExpired = 1

    class TtlTimeCharacteristic(Enum):
        """The clock that counts: there is one, as in Flink."""

        ProcessingTime = 0

    def __init__(
        self,
        ttl: DurationLike,
        *,
        update_type: StateTtlConfig.UpdateType = UpdateType.OnCreateAndWrite,
        state_visibility: StateTtlConfig.StateVisibility = StateVisibility.NeverReturnExpired,
        cleanup_in_background: bool = True,
        cleanup_size: int = 5,
        cleanup_full_snapshot: bool = False,
    ) -> None:
        self.millis: int = positive_millis(ttl, "the time-to-live of a state")
        self.update_type: StateTtlConfig.UpdateType = _member(update_type, StateTtlConfig.UpdateType)
        self.state_visibility: StateTtlConfig.StateVisibility = _member(
            state_visibility, StateTtlConfig.StateVisibility
        )
        if not is_count(cleanup_size):
            raise ProgramError(
                f"the cleanup of a state looks at a whole number of keys, at least 1, not {shorten(cleanup_size)}"
            )
        self.cleanup_in_background: bool = cleanup_in_background
        self.cleanup_size: int = cleanup_size
        self.cleanup_full_snapshot: bool = cleanup_full_snapshot

    @staticmethod
    def new_builder(ttl: DurationLike) -> StateTtlConfig.Builder:
        """Return a builder, as PyFlink has it.

        Args:
            ttl: as in the constructor.

        Raises:
            ProgramError: it is not positive, or no duration.
        """
        return StateTtlConfig.Builder(ttl)

    def get_ttl(self) -> Time:
        """Return the duration."""
        return Time.milliseconds(self.millis)

    def get_update_type(self) -> StateTtlConfig.UpdateType:
        """Return which accesses count."""
        return self.update_type

    def get_state_visibility(self) -> StateTtlConfig.StateVisibility:
        """Return whether expired state can be read."""
        return self.state_visibility

    def get_ttl_time_characteristic(self) -> StateTtlConfig.TtlTimeCharacteristic:
        """Return the clock that counts."""
        return StateTtlConfig.TtlTimeCharacteristic.ProcessingTime

    def is_enabled(self) -> bool:
        """Return whether there is a time-to-live at all."""
        return self.update_type is not StateTtlConfig.UpdateType.Disabled

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateTtlConfig) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        return f"StateTtlConfig({self.millis} ms, {self.update_type.name}, {self.state_visibility.name})"

    class Builder:
        """Makes a :class:`StateTtlConfig` step by step, with PyFlink's names. Each method returns the builder.

        Args:
            ttl: as ``StateTtlConfig`` takes it.

        Raises:
            ProgramError: it is not positive, or no duration.

        Example:
            >>> StateTtlConfig.new_builder(Time.hours(1)).update_ttl_on_read_and_write().build()
            StateTtlConfig(3600000 ms, OnReadAndWrite, NeverReturnExpired)
        """

        def __init__(self, ttl: DurationLike) -> None:
            self._options: dict[str, Any] = {}
            self.set_ttl(ttl)

        def set_ttl(self, ttl: DurationLike) -> StateTtlConfig.Builder:
            """Set the duration.

            Args:
                ttl: as in the constructor.

            Raises:
                ProgramError: it is not positive, or no duration.
            """
            positive_millis(ttl, "the time-to-live of a state")
            self._ttl = ttl
            return self

        def set_update_type(self, update_type: StateTtlConfig.UpdateType) -> StateTtlConfig.Builder:
            """Set which accesses count.

            Raises:
                ProgramError: it is no ``StateTtlConfig.UpdateType``.
            """
            return self._set(update_type=_member(update_type, StateTtlConfig.UpdateType))

        def update_ttl_on_create_and_write(self) -> StateTtlConfig.Builder:
            """Let accesses count that create or write."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnCreateAndWrite)

        def update_ttl_on_read_and_write(self) -> StateTtlConfig.Builder:
            """Let all accesses count."""
            return self.set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)

        def set_state_visibility(self, state_visibility: StateTtlConfig.StateVisibility) -> StateTtlConfig.Builder:
            """Set whether expired state can be read.

            Raises:
                ProgramError: it is no ``StateTtlConfig.StateVisibility``.
            """
            return self._set(state_visibility=_member(state_visibility, StateTtlConfig.StateVisibility))

        def return_expired_if_not_cleaned_up(self) -> StateTtlConfig.Builder:
            """Let expired state be read once more, where it has not been cleared yet."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.ReturnExpiredIfNotCleanedUp)

        def never_return_expired(self) -> StateTtlConfig.Builder:
            """Let expired state not be read."""
            return self.set_state_visibility(StateTtlConfig.StateVisibility.NeverReturnExpired)

        def set_ttl_time_characteristic(
            self, ttl_time_characteristic: StateTtlConfig.TtlTimeCharacteristic
        ) -> StateTtlConfig.Builder:
            """Accept processing time, which is the only one.

            Raises:
                ProgramError: it is another one.
            """
            _member(ttl_time_characteristic, StateTtlConfig.TtlTimeCharacteristic)
            return self

        def use_processing_time(self) -> StateTtlConfig.Builder:
            """Let processing time count, which is the only one."""
            return self

        def cleanup_full_snapshot(self) -> StateTtlConfig.Builder:
            """Let expired state be cleared when it is read from a checkpoint."""
            return self._set(cleanup_full_snapshot=True)

        def cleanup_incrementally(
            self, cleanup_size: int, run_cleanup_for_every_record: bool = False
        ) -> StateTtlConfig.Builder:
            """Set how many keys the background cleanup looks at.

            Args:
                cleanup_size: for each key that an epoch has touched, whether it reads the state or not.
                run_cleanup_for_every_record: accepted for Flink's programs: cleanup runs at the end of each epoch.

            Raises:
                ProgramError: ``cleanup_size`` is no whole number above 0.
            """
            StateTtlConfig(self._ttl, cleanup_size=cleanup_size)
            return self._set(cleanup_size=cleanup_size, cleanup_in_background=True)

        def cleanup_in_rocksdb_compact_filter(
            self, query_time_after_num_entries: int = 1000, periodic_compaction_time: DurationLike | None = None
        ) -> StateTtlConfig.Builder:
            """Let state be cleared in the background: there is no RocksDB whose compaction could do it.

            Args:
                query_time_after_num_entries: accepted for Flink's programs, without effect.
                periodic_compaction_time: the same.
            """
            return self._set(cleanup_in_background=True)

        def disable_cleanup_in_background(self) -> StateTtlConfig.Builder:
            """Let expired state be cleared only when it is read."""
            return self._set(cleanup_in_background=False)

        def build(self) -> StateTtlConfig:
            """Return the config."""
            return StateTtlConfig(self._ttl, **self._options)

        def _set(self, **options: Any) -> StateTtlConfig.Builder:
            self._options.update(options)
            return self


def _member(value: Any, kind: type[Enum]) -> Any:
    if isinstance(value, kind):
        return value
    if kind is StateTtlConfig.TtlTimeCharacteristic:
        _refuse_clock(value)
    names = ", ".join(f"StateTtlConfig.{kind.__name__}.{member.name}" for member in kind)
    raise ProgramError(f"the time-to-live of a state: {shorten(value)} is none of {names}")


def _refuse_clock(value: Any) -> NoReturn:
    raise ProgramError(
        f"the time-to-live of a state is measured in processing time, as in Flink, not in {shorten(value)}: to expire"
        " state in event time, set an event-time timer that clears it"
    )
