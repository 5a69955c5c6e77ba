"""Sparing the cycle collector where millions of objects are made that stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

# From this number of new objects on, the collector takes them for old ones.
_MANY = 100_000


@contextmanager
def collector_paused() -> Iterator[None]:
    """Let the cycle collector leave alone the objects that are made meanwhile.

    It would only walk over them, again and again; and once more for each generation that they pass, if freezing did not
    make them old at once. Freezing also hides garbage, so it is done only after many new objects, and where nothing is
    frozen: a home shares what was frozen before it was forked, until that is unfrozen.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        if collecting:
            gc.enable()
