"""Base class of operators that fold elements into time windows, which fire at their end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.windows import TimeWindow
from pillarbox._operators.windowing.base_operator import BaseWindowOperator
from pillarbox._operators.windowing.contents import ContentsFold, FoldedContents
from pillarbox._operators.windowing.window_program import WindowProgram
from pillarbox._time.internal_timer_service import VOID_NAMESPACE
from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP

_FAR = 2**62


class FoldingWindowOperator(BaseWindowOperator):
    """Folds elements into time windows.

    Unless all keys share windows, a key has a single timer, for the window that ends next. A timer that fires too early
    is only set again.
    """

    def __init__(self, context: OperatorContext, keying: Keying, program: WindowProgram) -> None:
        super().__init__(context, keying, program)
        assert isinstance(program.contents, FoldedContents)
        self._fold: ContentsFold = program.contents.fold
        self._register: Callable[[int], None] = (
            self._timers.event_timers.register
            if self._is_event_time
            else partial(self._timers.register_processing_time_timer, VOID_NAMESPACE)
        )

    @property
    def _passed(self) -> int:
        return self._timers.current_watermark if self._is_event_time else MIN_TIMESTAMP

    def _fire(self, start: int, end: int, accumulator: Any) -> None:
        value = None if accumulator is None else self._fold.result(accumulator)
        if value is not None:
            self._emit(TimeWindow(start, end), end - 1, (value,))

    def _no_accumulator(self) -> ProgramError:
        return ProgramError(
            f"operator {self.name!r}, key {shorten(self.backend.key)}: the reduce or aggregate function of the"
            " windows returned None: return the result"
        )

    def _end_of_lateness(self, end: int) -> int | None:
        time = end - 1 + self._lateness
        return time if self._lateness and time < MAX_WATERMARK else None


def are_far(times: npt.NDArray[np.int64], length: int) -> bool:
    return int(times.min()) < -_FAR or int(times.max()) > _FAR or length > _FAR
