"""A cache of results by key."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from pillarbox._elements.records import Records
from pillarbox._errors import OperatorError, ProgramError, check_count, shorten
from pillarbox._operators.async_io.api.libraries import import_library
from pillarbox._operators.async_io.api.request import NO_KEY, Request
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._time.duration import DurationLike, positive_millis, to_millis


@dataclass(frozen=True)
class AsyncCache:
    """Caches results, and sends one request for concurrent records with the same key.

    The subtasks in a process share the cache. Each record receives its own copy of a mutable result.

    Attributes:
        max_size: the maximum number of results, above which the least recently used result is dropped.
        ttl: how long a result is valid (an int is milliseconds), or None for no limit.
        key: a function or column names. By default, the key is the record. ``1``, ``True`` and ``1.0`` are different
            keys.

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
        check_count(self.max_size, "AsyncCache: max_size=")
        if self.ttl is not None:
            positive_millis(self.ttl, "AsyncCache: ttl=")
        if self.key is not None:
            try:
                Keying(self.key, "AsyncCache")
            except ProgramError:
                raise ProgramError(
                    f"AsyncCache: key= must be a function of the record, or column names, not {shorten(self.key)}"
                ) from None


class CachedResults:
    """An operator's cached results by key."""

    def __init__(self, settings: AsyncCache, clock: Callable[[], int]) -> None:
        caches = import_library("cachetools", "cache")
        self.by_key: MutableMapping[Any, Sequence[Any]] = (
            caches.LRUCache(settings.max_size)
            if settings.ttl is None
            else caches.TTLCache(settings.max_size, to_millis(settings.ttl), timer=clock)
        )

    def close(self) -> None:
        self.by_key.clear()


class ResultCache:
    """A task's view of the cache. Mailbox thread only.

    The first request for a key is its *leader*. Until it has ended, later requests *follow* it and share its outcome,
    unless it times out before they would.
    """

    def __init__(self, settings: AsyncCache, context: OperatorContext) -> None:
        self._operator = context.name
        self._copied = context.copier.copied
        self._keying = None if settings.key is None else Keying(settings.key, self._operator)
        self._clock: Callable[[], int] = context.processing_time_service.relative_time_millis
        clock = self._clock
        self._lease = context.shared.lease(("cache", context.uid), lambda: CachedResults(settings, clock))
        self._results = self._lease.resource.by_key
        self._leaders: dict[Any, Request] = {}

    def close(self) -> None:
        self._lease.release()

    def keys_of(self, records: Records) -> list[Any]:
        return list(map(_with_type, self._plain_keys_of(records)))

    def _plain_keys_of(self, records: Records) -> list[Any]:
        return records.values if self._keying is None else self._keying.keys_of(records)

    def results_of(self, key: Any, value: Any) -> list[Any] | None:
        try:
            results = self._results.get(key)
        except TypeError as error:
            (plain,) = self._plain_keys_of(Records([value]))
            raise OperatorError(
                f"operator {self._operator!r}: the record {shorten(value)} has the cache key {shorten(plain)},"
                " which is not hashable: pass key=... to AsyncCache"
            ) from error
        return None if results is None else self.copies(results)

    def copies(self, results: Sequence[Any]) -> list[Any]:
        return list(map(self._copied, results))

    def join(self, request: Request, key: Any, arrived: int | None = None) -> bool:
        """Make a request follow its key's leader. Without a leader, return True: the caller must send the request.

        ``arrived`` is the monotonic time (ms) of the request's arrival, by default now.
        """
        leader = self._leaders.setdefault(key, request)
        if leader is request:
            request.key = key
            return True
        if leader.followers is None:
            leader.followers = []
        leader.followers.append((request, self._clock() if arrived is None else arrived))
        return False

    def conclude(self, leader: Request, results: Sequence[Any] | None) -> Sequence[tuple[Request, int]]:
        """Return a leader's followers, and the times of their arrivals. ``results`` are cached, unless None."""
        del self._leaders[leader.key]
        if results is not None:
            self._results[leader.key] = results
        leader.key = NO_KEY
        followers, leader.followers = leader.followers or (), None
        return followers


def _with_type(key: Any) -> tuple[Any, ...]:
    kind = type(key)
    if isinstance(key, tuple):
        return (kind, *map(_with_type, key))
    if isinstance(key, frozenset):
        return kind, frozenset(map(_with_type, key))
    if isinstance(key, (float, complex, Decimal, datetime.datetime, datetime.time, np.floating)):
        # As text, because -0.0 == 0.0, Decimal("1.0") == Decimal("1.00"), NaN != NaN, and times in two zones may be
        # equal.
        return kind, repr(key)
    params = getattr(kind, "__dataclass_params__", None)
    if params is not None and params.eq:
        fields = [field.name for field in dataclasses.fields(key) if field.compare]
        return (kind, *(_with_type(getattr(key, name)) for name in fields))
    return kind, key
