"""Windows that continue when one of their functions raises: dead letters of records, and of windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox._errors import PillarboxError
from pillarbox._operators.dead_letters.guarded import GuardedOperator
from pillarbox._operators.functions.basic import TimeDomain
from pillarbox._operators.windowing.operator import WindowOperator


class GuardedWindowOperator(GuardedOperator):
    """Guards a :class:`WindowOperator`.

    A record whose adding fails is in no window. A window whose function fails continues as if it had emitted nothing:
    it is purged and cleaned up as usual. So timers are not undone as a whole; an error elsewhere than in
    the window function, such as a trigger of the program's own, fails the task.
    """

    _guarded: WindowOperator

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._guarded.guard = self._guard_firing

    def fire(self, call: Callable[[int, Any], None], timestamp: int, namespace: Any, timer: TimeDomain) -> None:
        """Call what handles a timer of the current key and window."""
        assert self._undo is not None
        self._undo.begin()
        call(timestamp, namespace)
        self._guarded.flush()
        self._undo.end()
        self.hand_on_timers()

    def _guard_firing(self, fire: Callable[[], None], timestamp: int, place: Any) -> None:
        """Call the window function of the current key and window."""
        assert self._backend is not None and self._undo is not None
        key = self._backend.key
        self._guarded.flush()
        # A record may fire a window, and continue.
        marks, mark = self._marks(), self._undo.mark()
        try:
            fire()
            self._guarded.flush()
        except (PillarboxError, MemoryError):
            raise
        except Exception as error:
            self._take_back(marks, mark)
            # The window's content is now as it was before, also where the function changed it in place.
            self._backend.set_current_namespace(place)
            self._letters.write(error, self.context.copier.copied(self._guarded.kept()), key, timestamp)
