"""Makes garbage collections rare while epochs run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Records and state are many objects without cycles. With Python's thresholds, collections take a third of the time.
_THRESHOLDS = (100_000, 20, 100)


class _RunningEpochs:
    """Counts a process's running epochs. The first epoch raises the collector's thresholds; the last restores them."""

    lock = threading.Lock()
    running = 0
    before = (0, 0, 0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Raise the garbage collector's thresholds within the block. Thread-safe; blocks may overlap."""
    with _RunningEpochs.lock:
        if not _RunningEpochs.running:
            _RunningEpochs.before = gc.get_threshold()
            gc.set_threshold(*map(max, _THRESHOLDS, _RunningEpochs.before))
        _RunningEpochs.running += 1
    try:
        yield
    finally:
        with _RunningEpochs.lock:
            _RunningEpochs.running -= 1
            if not _RunningEpochs.running:
                gc.set_threshold(*_RunningEpochs.before)
