"""``process`` on a keyed stream, with keyed state and timers. Source: Flink's ``KeyedProcessOperator``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice, repeat
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._errors import failed, raise_from_user_code, shorten
from pillarbox._operators.frame.contexts import KeyedTimedContext, ReadOnlyTimerService
from pillarbox._operators.frame.function_operator import FunctionPass
from pillarbox._operators.frame.keyed_operator import KeyedOperator
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain, TimerService
from pillarbox._time.internal_timer_service import VOID_NAMESPACE, InternalTimerService


class _KeyTimers(ReadOnlyTimerService):
    def __init__(self, context: OperatorContext, internal: InternalTimerService) -> None:
        super().__init__(context)
        self._internal = internal
        # Binds the timers' own methods, to save a call on the hottest path.
        self.register_event_time_timer = internal.event_timers.register  # type: ignore[method-assign]
        self.delete_event_time_timer = internal.event_timers.delete  # type: ignore[method-assign]
        register, delete = internal.register_processing_time_timer, internal.delete_processing_time_timer
        self.register_processing_time_timer = partial(register, VOID_NAMESPACE)  # type: ignore[method-assign]
        self.delete_processing_time_timer = partial(delete, VOID_NAMESPACE)  # type: ignore[method-assign]

    def current_watermark(self) -> int:
        return self._internal.current_watermark


class KeyedProcessOperator(KeyedOperator):
    """Applies ``process_element(value, ctx)`` and ``on_timer(timestamp, ctx)`` with the key's state."""

    def __init__(self, context: OperatorContext, function: Any, keying: Keying) -> None:
        super().__init__(context, function, "process_element", keying)
        timers = self.time_services.get_internal_timer_service("user-timers", self, by_user=True, may_run_on=True)
        self.user_timers: TimerService = _KeyTimers(context, timers)
        self._ctx: Any = KeyedTimedContext(self._collector, self.user_timers, self.backend)

    def process_records(self, records: Records) -> None:
        self.process_run(records, self.keying, self.call)

    def process_run(self, records: Records, keying: Keying, call: Callable[..., Any]) -> None:
        backend, ctx, collector = self.backend, self._ctx, self._collector
        rows = backend.rows
        values = records.values
        keys = keying.keys_of(records)
        pending = iter(values)
        stamps = iter(records.timestamps) if records.timestamps is not None else repeat(None)
        with FunctionPass(self, values, pending, pending, timeless=records.timestamps is None):
            for value, key, timestamp in zip(pending, keys, stamps):
                # Inlined set_current_key, because this is the hottest loop.
                backend.row = rows[key]
                backend.key = key
                ctx.current = timestamp
                results = call(value, ctx)
                if results is not None:
                    collector.collect(results, timestamp)
        collector.flush()

    def process_key_by_key(self, run: KeyedRun) -> None:
        if self._inputs:
            super().process_key_by_key(run)
            return
        backend, ctx, collector, call = self.backend, self._ctx, self._collector, self.call
        values, timestamps = run.records.values, run.records.timestamps
        pending = iter(values)
        stamps = iter(timestamps) if timestamps is not None else repeat(None)
        user_code = FunctionPass(self, values, pending, pending, timeless=timestamps is None)
        for key, start, end, ended in run.stretches():
            if start < end:
                with user_code:
                    backend.set_current_key(key)
                    for value, timestamp in zip(islice(pending, end - start), stamps):
                        ctx.current = timestamp
                        results = call(value, ctx)
                        if results is not None:
                            collector.collect(results, timestamp)
            if ended:
                self.fire_at_the_end()
                backend.drop_keys()
        collector.flush()

    def on_event_time(self, timestamp: int, namespace: Any) -> None:
        self._call_on_timer(timestamp, timestamp)

    def on_processing_time(self, timestamp: int, namespace: Any) -> None:
        self._ctx.domain = TimeDomain.PROCESSING_TIME
        try:
            self._call_on_timer(timestamp, None)
        finally:
            self._ctx.domain = TimeDomain.EVENT_TIME

    def _call_on_timer(self, timestamp: int, emitted: int | None) -> None:
        ctx = self._ctx
        ctx.current = timestamp
        try:
            results = self.function.on_timer(timestamp, ctx)
            if results is not None:
                self._collector.collect(results, emitted)
        except BaseException as error:
            key = self.backend.key
            raise_from_user_code(
                error,
                f"operator {self.name!r} {failed(error)} in the {ctx.domain.value} timer at {timestamp} of key"
                f" {shorten(key)}",
                operator=self.name,
                subtask=self.context.subtask,
                key=key,
            )
