"""The common part of operators of keyed streams: keyed state, and timers that event time fires."""

from __future__ import annotations

from typing import Any

from pillarbox._operators.frame.function_operator import FunctionOperator, keyed_context
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state import KeyedStateBackend
from pillarbox._time.batch_timer_service import BatchTimeServiceManager
from pillarbox._time.internal_timer_service import InternalTimeServiceManager

__all__ = ["LATE_RECORDS_DROPPED", "KeyedOperator"]

# The counter of the epoch's records that came too late, and went nowhere.
LATE_RECORDS_DROPPED = "late_records_dropped"


class KeyedOperator(FunctionOperator):
    """An operator that has keyed state, and may have timers.

    Args:
        function: the user's; None where the operator has none.
        method: the method of a :class:`Function` that handles a record.
        keying: how a record gets its key.

    Attributes:
        backend: its keyed state.
        time_services: its timer services, by name.

    Raises:
        ProgramError: the task has no keyed state.
    """

    keying: Keying

    def __init__(self, context: OperatorContext, function: Any, method: str, keying: Keying) -> None:
        super().__init__(context, function, method, keying)
        keyed = keyed_context(context)
        self.backend: KeyedStateBackend = keyed.backend
        self.time_services: InternalTimeServiceManager = keyed.timers

    def process_watermark(self, timestamp: int) -> None:
        """Fire the timers that are due, then hand the watermark on (T5)."""
        self.time_services.advance_watermark(timestamp)
        self.flush()
        super().process_watermark(timestamp)

    def end_key(self) -> None:
        """Fire the timers of the key that has ended."""
        assert isinstance(self.time_services, BatchTimeServiceManager)
        self.time_services.end_key()
        self.flush()
