"""Which keys are heavy: a sample of an epoch's records, of a size that does not depend on how many there are."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import numpy as np

from pillarbox._elements import Records
from pillarbox._errors import shorten
from pillarbox._operators.frame.keying import Keying

# A sample has up to this many keys, then every other one is dropped: so an epoch of any size has half as many or more.
_MOST = 1024
# Fewer tell nothing: the share of a key would be known to a tenth at best.
_FEWEST = 100
# A key is named if it has at least this share of the sample. Of these the first ones are.
_HEAVY = 0.02
_NAMED = 5


class KeySample:
    """Draws one record of every so many, at random, and keeps its key. Only the mailbox thread may touch it.

    The keys of at most a few thousand records are asked for once more than the operator asks for them.

    Args:
        seed: makes the draws: a task that is retried draws the same.
    """

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._keys: list[Any] = []
        self._stride = 1
        # How many records go by before the next one that is drawn, and how many of its stretch come after it.
        self._until = self._left = 0

    def draw(self, records: Records, keying: Keying) -> None:
        """Look at a run of records."""
        size = len(records)
        while len(self._keys) + size // self._stride > _MOST:
            # All records so far, and those to come, have the same chance.
            del self._keys[::2]
            self._stride *= 2
        drawn: list[int] = []
        place = self._until
        while place < size:
            drawn.append(place)
            offset = self._random.randrange(self._stride)
            place += self._left + 1 + offset
            self._left = self._stride - 1 - offset
        self._until = place - size
        if drawn:
            try:
                self._keys += keying.keys_of(records.take(np.array(drawn, np.int64)))
            except Exception:
                pass  # the operator asks for the key as well, and raises the error

    def taken(self) -> list[Any] | None:
        """Return the size of the sample, and its most frequent keys as text with counts; None: it is too small."""
        size = len(self._keys)
        if size < _FEWEST:
            return None
        named = [
            [shorten(key, 60), count]
            for key, count in Counter(self._keys).most_common(_NAMED)
            if count >= max(2, _HEAVY * size)
        ]
        return [size, named]
