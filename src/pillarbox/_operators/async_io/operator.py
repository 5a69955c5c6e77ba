"""Sends requests for records to a service, many at a time, and emits the results (A1 to A10).

The mailbox does the work: completions arrive as mails, many in one; a full queue yields to the mailbox, so that
completions, timers and checkpoints continue; timeouts are processing-time timers; results leave in the mailbox thread.
Source of the behaviour: Flink's ``AsyncWaitOperator``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pillarbox._elements import Records, Watermark, WatermarkStatus
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.api.request import Event
from pillarbox._operators.async_io.in_flight import InFlight
from pillarbox._operators.frame.operator import OperatorContext, OperatorFactory, StreamOperator
from pillarbox._operators.functions.basic import has_close


class AsyncWaitOperator(StreamOperator):
    """Runs an :class:`AsyncFunction`, or a function that returns one result per record.

    Args:
        function: an :class:`AsyncFunction`; or a callable, ``async def`` or plain (which runs in a thread pool). As a
            :class:`Function` it may have ``open`` and ``close``, which run in the event loop's thread.
        slots: before the first shuffle, where Spark sets the parallelism: the number of concurrent tasks.
    """

    def __init__(self, context: OperatorContext, function: Any, options: AsyncOptions, *, slots: int = 1) -> None:
        super().__init__(context)
        self.function = function
        self.options = options
        self._slots = slots
        self._opened: InFlight | None = None

    @staticmethod
    def factory(function: Any, options: AsyncOptions, *, slots: int = 1) -> OperatorFactory:
        make = partial(AsyncWaitOperator, function=function, options=options, slots=slots)
        budgets = tuple(budget.limits for budget in options.shared_budgets)
        return OperatorFactory(make, wakes_up=True, stateful=options.carries, budgets=budgets)

    @property
    def in_flight(self) -> InFlight:
        """The requests of the open operator."""
        assert self._opened is not None, f"operator {self.name!r} is not open"
        return self._opened

    def open(self) -> None:
        """Start the event loop, and open the user's function in it."""
        self._opened = InFlight(
            self.context,
            self.function,
            self.options,
            tasks=self._slots,
            emit_event=self._emit_event,
        )

    def close(self) -> None:
        """Abandon pending requests, close the user's function, and end the event loop."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def has_close(self) -> bool:
        """Whether the function has a ``close()``."""
        return has_close(self.function)

    def process_records(self, records: Records) -> None:
        """Request a run's records, as fast as there is room."""
        self.in_flight.process_records(records)

    def process_watermark(self, timestamp: int) -> None:
        """Add a watermark, in order with the results."""
        self.in_flight.put_event(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        """Add a status change, in order with the results."""
        self.in_flight.put_event(WatermarkStatus(idle))

    def _emit_event(self, event: Event) -> None:
        if isinstance(event, Watermark):
            super().process_watermark(event.timestamp)
        else:
            super().process_status(event.idle)

    def end_input(self) -> None:
        """Wait for all pending requests, with timeouts: bounded input has ended."""
        self.in_flight.drain()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Wait for the epoch's requests, or carry them over."""
        self.in_flight.prepare_snapshot()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """Return the requests that have not left, or None."""
        return self.in_flight.snapshot() if self.options.carries and not self.in_flight.is_empty() else None

    def restore_state(self, state: Any) -> None:
        """Resume the requests of a snapshot."""
        self.in_flight.restore(state or ())

    @property
    def is_unfinished(self) -> bool:
        """Whether requests have not left."""
        return self._opened is not None and not self._opened.is_empty()
