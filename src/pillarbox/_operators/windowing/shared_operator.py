"""Base class of operators whose windows are the same for all keys."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import compress, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import ProgramError
from pillarbox._operators.frame.function_operator import FunctionPass
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.time_windows import FixedTimeWindows
from pillarbox._operators.windowing.folding_operator import FoldingWindowOperator, are_far
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._state.heap.shared_windows import SharedWindows

Times = npt.NDArray[np.int64]
Masks = npt.NDArray[np.bool_]
OnNewKey = Callable[[Any, Any], None] | None


class SharedWindowOperator(FoldingWindowOperator):
    """Folds each element into one pane (slice of time). A tumbling window is one pane.

    Elements whose pane has not fired yet are folded in bulk. Elements of panes that have fired are processed one by
    one, in order.
    """

    shared = True

    _state: SharedWindows

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        assert isinstance(program.assigner, FixedTimeWindows)
        self._windows: FixedTimeWindows = program.assigner

    def process_records(self, records: Records) -> None:
        if not len(records):
            return
        values, keys = records.values, self.keying.keys_of(records)
        on_new_key = self._on_new_key(records)
        ahead, panes = self._panes_ahead(records)
        apart = np.flatnonzero(~ahead).tolist()
        times = records.timestamps if apart else None
        chosen: Iterable[Any] = compress(keys, ahead.tolist()) if apart else keys
        if self._state.quiet:
            woken = list(chosen)
            panes = [pane for pane, _ in zip(panes, woken)]
            self._state.wake(woken, panes)
            chosen, panes = iter(woken), iter(panes)
        fold, pending, done = self._state.fold, iter(values), 0
        with FunctionPass(self, values, pending, pending) as elements:
            for position in apart:
                fold(islice(elements, position - done), chosen, panes, on_new_key)
                self.backend.set_current_key(keys[position])
                self._add(next(elements), None if times is None else times[position])
                done = position + 1
            fold(elements, chosen, panes, on_new_key)
        self._collector.flush()

    def _panes_ahead(self, records: Records) -> tuple[Masks, Iterable[Any]]:
        try:
            times = self._times_of(records)
            starts, ahead = self._ahead(times)
        except (ProgramError, TypeError, ValueError, OverflowError):
            return np.zeros(len(records), np.bool_), ()
        return ahead, _at_starts(starts[ahead], self._pane_at)

    def _times_of(self, records: Records) -> Times:
        """Return the timestamps that determine the records' windows. Raises if one is missing or out of range."""
        if not self._is_event_time:
            return np.full(len(records), self._timers.current_processing_time())
        stamps = records.stamps if isinstance(records, ArrowRecords) else None
        times: Times = np.array(records.timestamps, np.int64) if stamps is None else stamps
        if are_far(times, max(self._windows.size, self._windows.starts_every)):
            raise OverflowError
        return times

    @abstractmethod
    def _ahead(self, times: Times) -> tuple[Times, Masks]: ...

    @abstractmethod
    def _pane_at(self, start: int) -> Any: ...

    @abstractmethod
    def _on_new_key(self, records: Records) -> OnNewKey: ...

    @abstractmethod
    def _add(self, value: Any, timestamp: int | None) -> None: ...


def _at_starts(starts: Times, at: Callable[[int], Any]) -> Iterable[Any]:
    if not len(starts):
        return ()
    first = int(starts[0])
    if (starts == first).all():
        return repeat(at(first))
    panes = {start: at(start) for start in np.unique(starts).tolist()}
    return map(panes.__getitem__, starts.tolist())
