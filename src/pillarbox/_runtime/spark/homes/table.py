"""The starter's table of runs (executions of queries) and homes. It decides which requests get a home.

A run is either live, superseded by a newer run of the same query, or over. Only live runs get homes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pillarbox._runtime.spark.homes.processes import OsProcess

# A home has lost its partition if it has been idle for this many epochs of its run and this many seconds. Epochs alone
# prove nothing, because a branch without records runs no epochs.
_EPOCHS_AWAY = 10
_SECONDS_AWAY = 600.0
_MOST_RUNS = 1024
_MOST_LOST = 4096
_SUPERSEDED = "a newer run of its query has begun"

#: ``known``: the home has served the place before. ``restarted``: it replaces a home that ended, hung or was lost.
#: ``adopted``: an earlier starter started it.
Origin = Literal["known", "new", "restarted", "adopted"]


class TableRequestError(Exception):
    """A field of a request is missing or invalid."""


class TableRefusedError(Exception):
    """A request was refused, because the run has ended or the executor is ending."""


class HomeRequest(NamedTuple):
    """A worker's request for the home of one of its state partitions.

    Attributes:
        place: identifies the home, by a digest of the run, level, layout, state partition and secret.
        attempt: the Spark task's number, which increases from run to run, or None if unknown.
    """

    place: str
    run: str
    query: str
    secret: str
    epoch: int
    mode: str
    most: int
    idle: float
    without: int = 0
    attempt: int | None = None

    @staticmethod
    def of(fields: dict[str, Any]) -> HomeRequest:
        mode, attempt = text_of(fields, "mode"), fields.get("attempt")
        if mode not in ("fork", "spawn"):
            raise TableRequestError("'mode' must be 'fork' or 'spawn'")
        return HomeRequest(
            text_of(fields, "place"),
            text_of(fields, "run"),
            text_of(fields, "query"),
            text_of(fields, "secret"),
            int(number_of(fields, "epoch")),
            mode,
            int(number_of(fields, "most")),
            number_of(fields, "idle"),
            int(number_of({"without": 0, **fields}, "without")),
            None if attempt is None else int(number_of(fields, "attempt")),
        )


def _typed(fields: Any, name: str, kind: Any) -> Any:
    value = fields.get(name) if isinstance(fields, dict) else None
    if not isinstance(value, kind):
        raise TableRequestError(f"{name!r} is missing or has the wrong type")
    return value


def text_of(fields: dict[str, Any], name: str) -> str:
    text: str = _typed(fields, name, str)
    return text


def texts_of(fields: dict[str, Any], name: str) -> list[str]:
    texts: list[str] = _typed(fields, name, list)
    if not all(isinstance(text, str) for text in texts):
        raise TableRequestError(f"{name!r} is not a list of strings")
    return texts


def number_of(fields: dict[str, Any], name: str) -> float:
    number: float = _typed(fields, name, (int, float))
    return number


@dataclass
class HomeEntry:
    """The starter's entry for a home.

    Attributes:
        used_at: last known use of the home (seconds on the table's clock).
        kill_at: when to kill the home. None if the home is not ending.
        is_reported: whether a worker has learned that this starter adopted the home.
    """

    process: OsProcess
    name: str
    run: str
    query: str
    secret: str
    places: set[str] = field(default_factory=set)
    epoch: int = 0
    used_at: float = 0.0
    kill_at: float | None = None
    is_adopted: bool = False
    is_reported: bool = False


@dataclass
class _Run:
    """A live run of a query. ``since`` is the lowest id among its Spark tasks."""

    query: str
    since: int | None
    epoch: int


class HomeTable:
    """The runs and homes of an executor."""

    def __init__(self, clock: Callable[[], float], end: Callable[[HomeEntry], None]) -> None:
        self._clock = clock
        self._end = end
        self.is_ending = False
        self.homes: dict[int, HomeEntry] = {}
        self._by_place: dict[str, HomeEntry] = {}
        self._runs: dict[str, _Run] = {}
        # Places whose home was lost, oldest first.
        self._lost: dict[str, None] = {}
        # Ended runs, and the reasons why they get no home.
        self._ended: dict[str, str] = {}

    def is_over(self, run: str) -> bool:
        return run in self._ended

    def end_run(self, run: str, secrets: Iterable[str]) -> list[HomeEntry]:
        """End a run and its homes, and return these homes.

        ``secrets``, of the run's plans, identify homes without a run id (``foreachBatch`` under Spark Connect).
        """
        self._forget_run(run, "its query has ended")
        plan_secrets = {*secrets}
        return self._end_homes(lambda home: home.run == run if home.run else home.secret in plan_secrets)

    def _forget_run(self, run: str, why: str) -> None:
        self._runs.pop(run, None)
        if not run:
            return
        self._ended[run] = why
        while len(self._ended) > _MOST_RUNS:
            del self._ended[next(iter(self._ended))]

    def _admit(self, request: HomeRequest) -> None:
        if self.is_ending:
            raise TableRefusedError("the executor is shutting down")
        if self.is_over(request.run):
            raise self._late_error(request.run)
        run = self._runs.get(request.run)
        if run is None:
            self._supersede(request)
            run = self._runs[request.run] = _Run(request.query, request.attempt, request.epoch)
        run.epoch = max(run.epoch, request.epoch)

    def _late_error(self, run: str) -> TableRefusedError:
        return TableRefusedError(f"this task is late: {self._ended[run]}")

    def _supersede(self, request: HomeRequest) -> None:
        if not request.query or not request.run:
            return
        others = {name: run for name, run in self._runs.items() if run.query == request.query}
        for run in others.values():
            if None not in (run.since, request.attempt) and request.attempt < run.since:  # type: ignore[operator]
                self._forget_run(request.run, _SUPERSEDED)
                raise self._late_error(request.run)
        for name in others:
            self._forget_run(name, _SUPERSEDED)
        self._end_homes(lambda home: home.run in others)

    def home(self, request: HomeRequest, make: Callable[[HomeRequest], HomeEntry]) -> tuple[HomeEntry, Origin]:
        self._admit(request)
        home = self._by_place.get(request.place)
        if home is not None and home.process.pid == request.without:
            self._end_home(home)
            self._mark_lost([request.place])
            home = None
        origin: Origin = "known"
        if home is None:
            origin = "restarted" if request.place in self._lost else "new"
            self._lost.pop(request.place, None)
            run_homes = [home for home in self._alive() if (home.run, home.secret) == (request.run, request.secret)]
            if len(run_homes) >= request.most:
                home = min(run_homes, key=lambda home: len(home.places))
            else:
                home = make(request)
                self.homes[home.process.pid] = home
            self._by_place[request.place] = home
        elif home.is_adopted and not home.is_reported:
            origin, home.is_reported = "adopted", True
        home.places.add(request.place)
        home.epoch, home.used_at = max(home.epoch, request.epoch), self._clock()
        return home, origin

    def adopt(self, home: HomeEntry, since: int | None) -> None:
        """Add an earlier starter's home, or end it if it is not needed. ``since``: the run's first Spark task id."""
        self.homes[home.process.pid], home.is_adopted = home, True
        if self.is_ending or home.run in self._ended or any(digest in self._by_place for digest in home.places):
            self._end_home(home)
            return
        run = self._runs.setdefault(home.run, _Run(home.query, since, home.epoch))
        if since is not None:
            run.since = since if run.since is None else min(run.since, since)
        for digest in home.places:
            self._by_place[digest] = home

    def record_visits(self, home: HomeEntry, epoch: int, unused: float) -> None:
        home.epoch, home.used_at = max(home.epoch, epoch), max(home.used_at, self._clock() - unused)
        run = self._runs.get(home.run)
        if run is not None:
            run.epoch = max(run.epoch, home.epoch)

    def end_moved_homes(self) -> None:
        for home in self._alive():
            run = self._runs.get(home.run)
            away = run is not None and home.epoch < run.epoch - _EPOCHS_AWAY
            if away and self._clock() - home.used_at > _SECONDS_AWAY:
                self._end_home(home)

    def end_all(self) -> None:
        self.is_ending = True
        self._end_homes(lambda home: True)

    def remove(self, home: HomeEntry) -> None:
        self.homes.pop(home.process.pid, None)
        if home.kill_at is None:
            self._mark_lost(home.places)
        self._forget_places(home)

    def _mark_lost(self, places: Iterable[str]) -> None:
        self._lost.update(dict.fromkeys(places))
        while len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]

    def _alive(self) -> list[HomeEntry]:
        return [home for home in self.homes.values() if home.kill_at is None]

    def _end_homes(self, which: Callable[[HomeEntry], bool]) -> list[HomeEntry]:
        homes = [home for home in self.homes.values() if which(home)]
        for home in homes:
            self._end_home(home)
        return homes

    def _end_home(self, home: HomeEntry) -> None:
        if home.kill_at is None:
            self._forget_places(home)
            self._end(home)

    def _forget_places(self, home: HomeEntry) -> None:
        for digest in home.places:
            if self._by_place.get(digest) is home:
                del self._by_place[digest]
