"""Sends concurrent requests to a service, and emits the results.

Each completion is a mail (a queued action). While the request queue is full, the operator runs mails, so that
completions, timers and checkpoints continue. Source: Flink's ``AsyncWaitOperator``.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import Records
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.api.request import Event
from pillarbox._operators.async_io.in_flight import InFlight
from pillarbox._operators.frame.operator import OperatorContext, OperatorFactory, StreamOperator
from pillarbox._operators.functions.basic import has_close


class AsyncWaitOperator(StreamOperator):
    """Runs an :class:`AsyncFunction`, or a function that returns one result per record."""

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
        assert self._opened is not None, f"operator {self.name!r} is not open"
        return self._opened

    def open(self) -> None:
        self._opened = InFlight(
            self.context,
            self.function,
            self.options,
            tasks=self._slots,
            emit_event=self._emit_event,
        )

    def close(self) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    @property
    def has_close(self) -> bool:
        return has_close(self.function)

    def process_records(self, records: Records) -> None:
        self.in_flight.process_records(records)

    def process_watermark(self, timestamp: int) -> None:
        self.in_flight.put_event(Watermark(timestamp))

    def process_status(self, idle: bool) -> None:
        self.in_flight.put_event(WatermarkStatus(idle))

    def _emit_event(self, event: Event) -> None:
        if isinstance(event, Watermark):
            super().process_watermark(event.timestamp)
        else:
            super().process_status(event.idle)

    def end_input(self) -> None:
        self.in_flight.drain()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self.in_flight.prepare_snapshot()

    def snapshot_state(self, checkpoint_id: int) -> Any:
        return self.in_flight.snapshot() if self.options.carries and not self.in_flight.is_empty() else None

    def restore_state(self, state: Any) -> None:
        self.in_flight.restore(state or ())

    @property
    def is_unfinished(self) -> bool:
        return self._opened is not None and not self._opened.is_empty()
