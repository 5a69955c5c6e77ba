"""Repeats a call in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(call: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call a function every ``seconds``, in a thread, until the block ends."""
    has_ended = threading.Event()

    def run() -> None:
        while not has_ended.wait(seconds):
            call()

    thread = threading.Thread(target=run, name="pillarbox progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join(seconds)
