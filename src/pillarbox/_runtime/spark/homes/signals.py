"""Handles signals in a home. SIGTERM ends the home; user functions may handle all other signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from pillarbox._runtime.spark.homes.settings import MOST

_thread = threading.local()


class EndSignal:
    """A file descriptor that becomes readable on SIGTERM. Must be created in the main thread."""

    def __init__(self) -> None:
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wakes, False)
        # Unlike with SIG_IGN, child processes get the default handler.
        signal.signal(signal.SIGINT, _do_nothing)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        # Either is sufficient, because user functions may replace the other.
        signal.signal(signal.SIGTERM, self._handle)
        signal.set_wakeup_fd(self._wakes, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=self._restore)
        _explain()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            os.write(self._wakes, bytes([number]))
        except BlockingIOError:
            pass

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if signal.getsignal(signal.SIGINT) is _do_nothing:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(-1)

    def fileno(self) -> int:
        return self._woken

    def has_arrived(self) -> bool:
        try:
            return signal.SIGTERM in os.read(self._woken, 4096)
        except BlockingIOError:
            return False


def _do_nothing(number: int, frame: FrameType | None) -> None:
    pass


def explain_in_this_thread() -> None:
    _thread.runs_functions = True


def _explain() -> None:
    set_handler: Callable[..., Any] = signal.signal

    def set_or_explain(*arguments: Any) -> Any:
        try:
            return set_handler(*arguments)
        except ValueError as error:
            if threading.current_thread() is threading.main_thread() or not hasattr(_thread, "runs_functions"):
                raise
            raise ValueError(
                f"{error}. Several state partitions share this process, each in its own thread: increase {MOST}"
                " so that each gets its own process"
            ) from None

    signal.signal = set_or_explain  # type: ignore[assignment]
