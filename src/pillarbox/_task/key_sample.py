"""Finds heavy keys in a bounded random sample of an epoch's records."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np

from pillarbox._elements.records import Records
from pillarbox._errors import shorten
from pillarbox._operators.frame.keying import Keying

# Maximum sample size, above which every other key is dropped.
_MOST = 1024
# With fewer keys, shares would be too inexact.
_FEWEST = 100
# Reported keys have at least this share of the sample.
_HEAVY = 0.02
_NAMED = 5


class KeySample:
    """A random sample of keys, one per block of records. Mailbox thread only.

    The key function is called again for each drawn record, at most a few thousand times. A repeated task draws the same
    records, because it has the same seed.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._keys: list[Any] = []
        self._stride = 1
        # Records before the next draw, and records after it in its block.
        self._until = self._left = 0

    def draw(self, records: Records, keying: Keying) -> None:
        size = len(records)
        while len(self._keys) + size // self._stride > _MOST:
            # Keeps the chances of past and future records equal.
            del self._keys[::2]
            self._stride *= 2
        drawn: list[int] = []
        index = self._until
        while index < size:
            drawn.append(index)
            offset = self._random.randrange(self._stride)
            index += self._left + 1 + offset
            self._left = self._stride - 1 - offset
        self._until = index - size
        if drawn:
            try:
                self._keys += keying.keys_of(records.take(np.array(drawn, np.int64)))
            except Exception:
                pass  # the operator will raise this error

    def heaviest(self) -> list[Any] | None:
        """Return ``[sample size, [[key as text, count], ...]]``, or None if the sample is too small."""
        size = len(self._keys)
        if size < _FEWEST:
            return None
        named = [
            [shorten(key, 60), count]
            for key, count in Counter(self._keys).most_common(_NAMED)
            if count >= max(2, _HEAVY * size)
        ]
        return [size, named]
