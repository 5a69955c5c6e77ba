"""Dead letters for window operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox._operators.dead_letters.dead_letter import concerns_record
from pillarbox._operators.dead_letters.guarded import GuardedOperator
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.windowing.operator import WindowOperator


class GuardedWindowOperator(GuardedOperator):
    """Wraps a :class:`WindowOperator`.

    If adding a record fails, the record is not added to any window. If the window function raises, the window emits
    nothing, and is purged and removed as usual. Other errors while firing, such as in a user-defined trigger, fail the
    task.
    """

    _guarded: WindowOperator

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._guarded.guard = self._guard_firing

    def fire(self, call: Callable[[int, Any], None], timestamp: int, namespace: Any, timer: TimeDomain) -> None:
        assert self._undo is not None
        self._undo.begin()
        call(timestamp, namespace)
        self._guarded.flush()
        self._undo.end()
        self.emit_timers()

    def _guard_firing(self, fire: Callable[[], None], timestamp: int, namespace: Any) -> None:
        assert self._backend is not None and self._undo is not None
        key = self._backend.key
        self._guarded.flush()
        # A record that fires a window may then be added to other windows.
        marks, mark = self._marks(), self._undo.mark()
        try:
            fire()
            self._guarded.flush()
        except Exception as error:
            if not concerns_record(error):
                raise
            self._undo_call(marks, mark)
            # Restore the window's contents, which the function may have changed in place.
            self._backend.set_current_namespace(namespace)
            self._letters.write(error, self.context.copier.copied(self._guarded.contents()), key, timestamp)
