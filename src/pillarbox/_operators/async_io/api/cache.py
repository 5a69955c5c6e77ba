"""Results by key, and one request for all the records that ask about the same key at a time."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from pillarbox._elements import Records
from pillarbox._errors import OperatorError, ProgramError, check_count, shorten
from pillarbox._operators.async_io.api.libraries import import_library
from pillarbox._operators.async_io.api.request import NO_KEY, Request
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._time.duration import DurationLike, positive_millis, to_millis


@dataclass(frozen=True)
class AsyncCache:
    """Keep results, and ask once for several records with the same key.

    The subtasks of one partition have a cache together, for as long as they live.

    Each record gets a copy of the result, unless that cannot change.

    Attributes:
        max_size: the maximum number of results; the least recently used one goes first.
        ttl: how long a result is valid (an int: milliseconds); None: as long as there is room.
        key: a function that returns the key of a record, or names of columns; None: the record itself is the key. Keys
            of different types are different keys: ``1``, ``True`` and ``1.0`` are asked about separately.

    Raises:
        ProgramError: (when made) one of them is invalid.

    Example:
        >>> async def price(article):
        ...     return article, len(article)
        >>> articles = env.from_collection(["pear", "fig", "pear"])
        >>> articles.map_async(price, cache=AsyncCache(max_size=100, ttl="1 hour")).execute_and_collect()
        [('pear', 4), ('fig', 3), ('pear', 4)]
    """

    max_size: int = 10_000
    ttl: DurationLike | None = None
    key: Callable[[Any], Any] | str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_count(self.max_size, "AsyncCache: max_size", "a whole number of at least 1")
        if self.ttl is not None:
            positive_millis(self.ttl, "AsyncCache: ttl")
        if self.key is not None:
            try:
                Keying(self.key, "AsyncCache")
            except ProgramError:
                raise ProgramError(
                    f"AsyncCache: key is a function of the record, or column names, not {shorten(self.key)}"
                ) from None


class KeptResults:
    """The results that the subtasks of an operator share in a process, by key.

    Args:
        clock: returns relative time (ms), by which results age.
    """

    def __init__(self, settings: AsyncCache, clock: Callable[[], int]) -> None:
        caches = import_library("cachetools", "cache")
        self.by_key: MutableMapping[Any, Sequence[Any]] = (
            caches.LRUCache(settings.max_size)
            if settings.ttl is None
            else caches.TTLCache(settings.max_size, to_millis(settings.ttl), timer=clock)
        )

    def close(self) -> None:
        """Forget them."""
        self.by_key.clear()


class ResultCache:
    """The cache, as one task uses it. Only the mailbox thread may touch it.

    The first request for a key *leads*; those that come while it is under way *follow* it, and share its outcome.

    Args:
        settings: the user's options.
        context: of the operator.
    """

    def __init__(self, settings: AsyncCache, context: OperatorContext) -> None:
        self._operator = context.name
        self._copied = context.copier.copied
        self._keying = None if settings.key is None else Keying(settings.key, self._operator)
        clock = context.processing_time_service.relative_time_millis
        self._lease = context.shared.lease(("cache", context.uid), lambda: KeptResults(settings, clock))
        self._results = self._lease.resource.by_key
        self._leaders: dict[Any, Request] = {}

    def close(self) -> None:
        """Let the results go, unless other subtasks use them."""
        self._lease.release()

    def keys_of(self, records: Records) -> list[Any]:
        """Return the key of each record, with its type."""
        return list(map(_with_type, self._plain_keys_of(records)))

    def _plain_keys_of(self, records: Records) -> list[Any]:
        return records.values if self._keying is None else self._keying.keys_of(records)

    def results_of(self, key: Any, value: Any) -> list[Any] | None:
        """Return copies of the results that are kept for the key of a record, or None.

        Args:
            key: one of those that :meth:`keys_of` returned.

        Raises:
            OperatorError: the key cannot be hashed.
        """
        try:
            kept = self._results.get(key)
        except TypeError as error:
            (plain,) = self._plain_keys_of(Records([value]))
            raise OperatorError(
                f"operator {self._operator!r}: the record {shorten(value)} has the cache key {shorten(plain)}, which"
                " cannot be hashed: give AsyncCache a key"
            ) from error
        return None if kept is None else self.copies(kept)

    def copies(self, results: Sequence[Any]) -> list[Any]:
        """Return copies of kept results, which must not change."""
        return list(map(self._copied, results))

    def join(self, request: Request, key: Any) -> bool:
        """Let a request lead, or follow the leading request for its key; return whether it leads: then it is asked."""
        leader = self._leaders.setdefault(key, request)
        if leader is request:
            request.key = key
            return True
        if leader.followers is None:
            leader.followers = []
        leader.followers.append(request)
        return False

    def conclude(self, leader: Request, results: Sequence[Any] | None) -> Sequence[Request]:
        """Keep the results of a leader, if it has any, and return those that followed it."""
        del self._leaders[leader.key]
        if results is not None:
            self._results[leader.key] = results
        leader.key = NO_KEY
        followers, leader.followers = leader.followers or (), None
        return followers


def _with_type(key: Any) -> tuple[Any, ...]:
    """Return a key that equals another only if both, and the values in them, have the same types."""
    kind = type(key)
    if isinstance(key, tuple):
        return (kind, *map(_with_type, key))
    if isinstance(key, frozenset):
        return kind, frozenset(map(_with_type, key))
    if isinstance(key, (float, complex, Decimal, datetime.datetime, datetime.time, np.floating)):
        # By its text: -0.0 and 0.0, Decimal("1.0") and Decimal("1.00"), and times in two zones are equal; a NaN is not.
        return kind, repr(key)
    params = getattr(kind, "__dataclass_params__", None)
    if params is not None and params.eq:
        fields = [field.name for field in dataclasses.fields(key) if field.compare]
        return (kind, *(_with_type(getattr(key, name)) for name in fields))
    return kind, key
