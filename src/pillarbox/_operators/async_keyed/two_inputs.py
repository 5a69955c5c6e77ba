"""Async keyed functions for two keyed streams, or for a keyed and a broadcast stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import repeat
from types import AsyncGeneratorType, CoroutineType
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._errors import OperatorError, failed, raise_from_user_code, shorten_record
from pillarbox._operators.async_keyed.operator import AsyncKeyedOperator
from pillarbox._operators.async_keyed.options import AsyncKeyedOptions
from pillarbox._operators.async_keyed.timeouts import HEED_SECONDS
from pillarbox._operators.connected.broadcast import KeyedBroadcastContext, KeyedReadOnly
from pillarbox._operators.dead_letters.dead_letter import concerns_record
from pillarbox._operators.frame.collector import Collector, check_results
from pillarbox._operators.frame.contexts import ReadOnlyTimerService
from pillarbox._operators.frame.inputs import OperatorInput
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._state.heap.undo import ElementNotes


class AsyncKeyedCoProcessOperator(AsyncKeyedOperator):
    """Applies ``process_element1``, ``process_element2`` and ``on_timer``, which may be ``async def``."""

    def __init__(
        self, context: OperatorContext, function: Any, keyings: tuple[Keying, Keying], options: AsyncKeyedOptions
    ) -> None:
        super().__init__(context, function, keyings[0], options)
        self._inputs = [
            OperatorInput(partial(self.process_run, keying=keying, call=call), keying)
            for call, keying in enumerate(keyings)
        ]

    def _calls(self) -> list[Callable[..., Any]]:
        return [self.function.process_element1, self.function.process_element2]


class AsyncKeyedBroadcastOperator(AsyncKeyedOperator):
    """Applies ``process_element``, ``process_broadcast_element`` and ``on_timer``, which may be ``async def``.

    A broadcast record waits for all earlier records and timers, and later records wait for it, so that broadcast state
    never changes during a call.
    """

    def __init__(
        self,
        context: OperatorContext,
        function: Any,
        keying: Keying,
        descriptors: Sequence[MapStateDescriptor],
        options: AsyncKeyedOptions,
    ) -> None:
        super().__init__(context, function, keying, options)
        self._clocks = ReadOnlyTimerService(context)
        self._read_only = KeyedReadOnly(context, self._collector, self._clocks, descriptors)
        self._writable = KeyedBroadcastContext(context, self._collector, self._clocks, descriptors)
        self._inputs = [OperatorInput(self.process_records, keying), OperatorInput(self.process_broadcast)]

    def open(self) -> None:
        super().open()
        self.runner.get_broadcast_state = self._read_only.get_broadcast_state

    def process_broadcast(self, records: Records) -> None:
        self._clocks.watermark = self._timers.current_watermark
        for value, timestamp in zip(records.values, records.timestamps or repeat(None)):
            self.drain()
            # Timers that fall due in between wait.
            self.runner.is_paused = True
            try:
                self._process_broadcast_record(value, timestamp)
            finally:
                self.runner.is_paused = False
        self._turn()

    def _process_broadcast_record(self, value: Any, timestamp: int | None) -> None:
        context, collector = self._writable, Collector(self.context)
        context.current = timestamp
        context.collector = collector
        original, notes = value, ElementNotes()
        if self._undo is not None:
            original = self.context.copier.copied(value)
            self._undo.enter(notes)
        try:
            self.use_state_here()
            collector.collect(self._results(self.function.process_broadcast_element(value, context)), timestamp)
        except BaseException as error:
            if self._letters is None or self._undo is None or not concerns_record(error):
                what = f"operator {self.name!r} {failed(error)} at the broadcast record {shorten_record(value)}"
                raise_from_user_code(error, what, operator=self.name, subtask=self.context.subtask, record=value)
            self._undo.undo(notes)
            letter = self._letters.letter(error, original, None, timestamp, None)
            self._letters.emit(letter, type(error).__name__)
        else:
            collector.flush()
        finally:
            self.backend.leave_key()
            if self._undo is not None:
                self._undo.leave()

    def _results(self, outcome: Any) -> list[Any]:
        if isinstance(outcome, AsyncGeneratorType):
            outcome = _listed(outcome)
        if isinstance(outcome, CoroutineType):
            seconds = self.options.timeout_seconds
            task = self.runner.loop.loop.create_task(outcome if seconds is None else self._within(seconds, outcome))
            task.add_done_callback(lambda _: self._announce())
            while not task.done():
                self._wait()
            outcome = task.result()
        if outcome is None:
            return []
        check_results(outcome)
        return list(outcome)

    async def _within(self, seconds: float, coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(coroutine)
        if not (await asyncio.wait({task}, timeout=seconds))[0]:
            task.cancel()
            # The coroutine of an element may continue, but nothing else may run while broadcast state changes.
            if not (await asyncio.wait({task}, timeout=HEED_SECONDS))[0]:
                raise OperatorError(
                    f"operator {self.name!r}: process_broadcast_element() did not end when it was cancelled after its"
                    f" timeout of {seconds:g} s: do not catch CancelledError, or raise it again"
                )
            raise TimeoutError(f"not finished within {seconds:g} s") from None if task.cancelled() else task.exception()
        return task.result()


async def _listed(results: AsyncGeneratorType[Any, None]) -> list[Any]:
    return [result async for result in results]
