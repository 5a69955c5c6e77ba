"""Python's garbage collector while epochs run."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Records and keyed state are many, long-lived and without cycles: at Python's own thresholds the collector walks over
# them every few hundred records, and takes a third of the time.
_THRESHOLDS = (100_000, 20, 100)


class _Epochs:
    """The thresholds are the process's: of epochs that overlap, the first changes them, the last sets them back."""

    lock = threading.Lock()
    running = 0
    before = (0, 0, 0)


@contextmanager
def rare_collections() -> Iterator[None]:
    """Let the collector run rarely within the block. Any thread; blocks may overlap."""
    with _Epochs.lock:
        if not _Epochs.running:
            _Epochs.before = gc.get_threshold()
            gc.set_threshold(*map(max, _THRESHOLDS, _Epochs.before))
        _Epochs.running += 1
    try:
        yield
    finally:
        with _Epochs.lock:
            _Epochs.running -= 1
            if not _Epochs.running:
                gc.set_threshold(*_Epochs.before)
