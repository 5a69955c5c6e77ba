"""The common part of operators whose windows, or panes of them, are one thing for all keys: elements come by runs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import compress, islice, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements import ArrowRecords, Records
from pillarbox._errors import ProgramError
from pillarbox._operators.frame.function_operator import Pass
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.time_windows import FixedWindows
from pillarbox._operators.windowing.base_operator import WindowProgram
from pillarbox._operators.windowing.folding_operator import FoldingWindowOperator, are_far
from pillarbox._state.heap.shared_windows import SharedWindows

Times = npt.NDArray[np.int64]
Masks = npt.NDArray[np.bool_]
# Is called with each key that is new in a place.
Begun = Callable[[Any, Any], None] | None


class SharedWindowOperator(FoldingWindowOperator):
    """Folds each element into one place: a window, or a pane.

    Elements of places that have not fired are folded together, and the others one by one, all in their order.
    """

    shared = True

    _state: SharedWindows

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        assert isinstance(program.assigner, FixedWindows)
        self._windows: FixedWindows = program.assigner

    def process_records(self, records: Records) -> None:
        """Fold the records of a run into their places."""
        if not len(records):
            return
        values, keys = records.values, self.keying.keys_of(records)
        begun = self._begun_by(records)
        ahead, places = self._places_ahead(records)
        apart = np.flatnonzero(~ahead).tolist()
        times = records.timestamps if apart else None
        chosen: Iterable[Any] = compress(keys, ahead.tolist()) if apart else keys
        if self._state.quiet:
            woken = list(chosen)
            places = [place for place, _ in zip(places, woken)]
            self._state.wake(woken, places)
            chosen, places = iter(woken), iter(places)
        fold, pending, done = self._state.fold, iter(values), 0
        with Pass(self, values, pending, pending) as elements:
            for position in apart:
                fold(islice(elements, position - done), chosen, places, begun)
                self.backend.set_current_key(keys[position])
                self._add(next(elements), None if times is None else times[position])
                done = position + 1
            fold(elements, chosen, places, begun)
        self._collector.flush()

    def _places_ahead(self, records: Records) -> tuple[Masks, Iterable[Any]]:
        """Return which records are of places that have not fired, and the place of each of those."""
        try:
            times = self._times_of(records)
            starts, ahead = self._ahead(times)
        except (ProgramError, TypeError, ValueError, OverflowError):
            return np.zeros(len(records), np.bool_), ()  # one is without a time, or far out: it is to be named
        return ahead, _each(starts[ahead], self._place_at)

    def _times_of(self, records: Records) -> Times:
        """Return when records happened, by the windows' clock.

        Raises:
            TypeError: one has no timestamp.
            OverflowError: one is so far out that the arithmetic of 64 bits might not hold.
        """
        if not self._is_event_time:
            return np.full(len(records), self._timers.current_processing_time())
        stamps = records.stamps if isinstance(records, ArrowRecords) else None
        times: Times = np.array(records.timestamps, np.int64) if stamps is None else stamps
        if are_far(times, max(self._windows.size, self._windows.starts_every)):
            raise OverflowError
        return times

    @abstractmethod
    def _ahead(self, times: Times) -> tuple[Times, Masks]:
        """Return where the places of times start, and which of these have not fired."""

    @abstractmethod
    def _place_at(self, start: int) -> Any:
        """Return what all keys have in the place that starts then."""

    @abstractmethod
    def _begun_by(self, records: Records) -> Begun:
        """Return what is to be told of the keys that are new in a place."""

    @abstractmethod
    def _add(self, value: Any, timestamp: int | None) -> None:
        """Add an element of the current key to its windows, some of which may have fired: then they do so again."""


def _each(starts: Times, at: Callable[[int], Any]) -> Iterable[Any]:
    """Return ``at(start)`` for each of some starts. It is called once for each different one."""
    if not len(starts):
        return ()
    first = int(starts[0])
    if (starts == first).all():
        return repeat(at(first))
    known = {start: at(start) for start in np.unique(starts).tolist()}
    return map(known.__getitem__, starts.tolist())
