"""The starter's table: which runs an executor has, which homes they have, and which requests they may still make.

| of           | states                                                                              |
| ------------ | ----------------------------------------------------------------------------------- |
| the executor | alive; ending: no request is met any more                                           |
| a run        | alive; superseded by a newer run of its query; over. A run that is not alive gets no home |

It forks and kills nothing: the starter does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pillarbox._runtime.spark.homes.processes import Process

# The home of a place that its run has not visited for so many epochs, and this time (seconds), ends: the partition has
# moved to another executor. A branch without records is not visited either, so epochs alone say little.
_EPOCHS_AWAY = 10
_SECONDS_AWAY = 600.0
# So many runs that are not alive any more are known.
_MOST_RUNS = 1024
_MOST_LOST = 4096
_SUPERSEDED = "a newer run of its query has begun"

#: How a home was had: the place had it; it is the first one; one before has ended, hung or was lost; or the place had
#: it by an earlier starter.
Origin = Literal["known", "new", "restarted", "adopted"]


class BadRequestError(Exception):
    """A request has not what it needs."""


class RefusedError(Exception):
    """A run that has ended asks for a home, or an executor that ends is asked for one."""


class HomeRequest(NamedTuple):
    """A worker asks for the home of a place.

    Attributes:
        place: level, layout, state partition and secret, as a digest.
        secret: of the plan; homes let in only who knows it.
        epoch: the run's.
        mode: ``fork`` or ``spawn``.
        most: how many homes a run may have.
        idle: how long a home lives without an epoch (seconds).
        without: the process of the home that did not answer; 0: there was none.
        attempt: the number of Spark's task. Tasks of later runs have higher ones. None: nobody knows.
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
    def of(told: dict[str, Any]) -> HomeRequest:
        """Return what a worker has sent.

        Raises:
            BadRequestError: something is missing, or is of another type.
        """
        mode, attempt = text_of(told, "mode"), told.get("attempt")
        if mode not in ("fork", "spawn"):
            raise BadRequestError("'mode' is neither 'fork' nor 'spawn'")
        return HomeRequest(
            text_of(told, "place"),
            text_of(told, "run"),
            text_of(told, "query"),
            text_of(told, "secret"),
            int(number_of(told, "epoch")),
            mode,
            int(number_of(told, "most")),
            number_of(told, "idle"),
            int(number_of({"without": 0, **told}, "without")),
            None if attempt is None else int(number_of(told, "attempt")),
        )


def _typed(told: Any, name: str, kind: Any) -> Any:
    found = told.get(name) if isinstance(told, dict) else None
    if not isinstance(found, kind):
        raise BadRequestError(f"{name!r} is missing, or has another type")
    return found


def text_of(told: dict[str, Any], name: str) -> str:
    """Return a field of a request.

    Raises:
        BadRequestError: it is missing, or no text.
    """
    found: str = _typed(told, name, str)
    return found


def texts_of(told: dict[str, Any], name: str) -> list[str]:
    """Return a field of a request that has several texts; raises as :func:`text_of`."""
    found: list[str] = _typed(told, name, list)
    if not all(isinstance(each, str) for each in found):
        raise BadRequestError(f"{name!r} has something else than texts")
    return found


def number_of(told: dict[str, Any], name: str) -> float:
    """Return a field of a request that is a number; raises as :func:`text_of`."""
    found: float = _typed(told, name, (int, float))
    return found


@dataclass
class HomeEntry:
    """A home, as the starter knows it.

    Attributes:
        process: its process.
        name: of its socket.
        secret: of the plan.
        places: whose tasks live in it.
        epoch: the last one that visited it, as far as the starter knows.
        used_at: when that was (seconds, of the table's clock).
        kill_at: when it is killed, if it has not ended by then; None: it is not to end.
        is_adopted: whether an earlier starter made it.
        is_told: whether a worker has been told of that.
    """

    process: Process
    name: str
    run: str
    query: str
    secret: str
    places: set[str] = field(default_factory=set)
    epoch: int = 0
    used_at: float = 0.0
    kill_at: float | None = None
    is_adopted: bool = False
    is_told: bool = False


@dataclass
class _Run:
    """A run that is alive: the first and the highest number of its tasks, and its epoch."""

    query: str
    since: int | None
    epoch: int


class Table:
    """The table.

    Args:
        clock: seconds, from any start.
        end: lets a home end; from now on the table does not know it.

    Attributes:
        is_ending: whether the executor ends.
        homes: that live, by process; also those that end.
    """

    def __init__(self, clock: Callable[[], float], end: Callable[[HomeEntry], None]) -> None:
        self._clock = clock
        self._end = end
        self.is_ending = False
        self.homes: dict[int, HomeEntry] = {}
        self._by_place: dict[str, HomeEntry] = {}
        self._runs: dict[str, _Run] = {}
        # Places whose home has ended, hung or was lost; the latest come last.
        self._lost: dict[str, None] = {}
        # Runs that have ended, and why they get no home.
        self._ended: dict[str, str] = {}

    # -- runs --

    def is_over(self, run: str) -> bool:
        """Tell whether a run has ended, or was superseded."""
        return run in self._ended

    def end_run(self, run: str, secrets: Iterable[str]) -> list[HomeEntry]:
        """Let a run be over, and its homes end; return them.

        Args:
            secrets: of its plans; homes do not know their run where Spark does not tell its tasks (``foreachBatch``
                under Spark Connect).
        """
        self._forget_run(run, "its query has ended")
        known = {*secrets}
        return self._end_homes(lambda home: home.run == run if home.run else home.secret in known)

    def _forget_run(self, run: str, why: str) -> None:
        self._runs.pop(run, None)
        if not run:
            return
        self._ended[run] = why
        while len(self._ended) > _MOST_RUNS:
            del self._ended[next(iter(self._ended))]

    def _admit(self, request: HomeRequest) -> None:
        """Let a run be alive, if it may; older runs of its query are superseded."""
        if self.is_ending:
            raise RefusedError("the executor ends")
        if self.is_over(request.run):
            raise self._late(request.run)
        run = self._runs.get(request.run)
        if run is None:
            self._supersede(request)
            run = self._runs[request.run] = _Run(request.query, request.attempt, request.epoch)
        run.epoch = max(run.epoch, request.epoch)

    def _late(self, run: str) -> RefusedError:
        return RefusedError(f"this task is late: {self._ended[run]}")

    def _supersede(self, request: HomeRequest) -> None:
        if not request.query or not request.run:
            return
        others = {name: run for name, run in self._runs.items() if run.query == request.query}
        for run in others.values():
            if None not in (run.since, request.attempt) and request.attempt < run.since:  # type: ignore[operator]
                self._forget_run(request.run, _SUPERSEDED)
                raise self._late(request.run)
        for name in others:
            self._forget_run(name, _SUPERSEDED)
        self._end_homes(lambda home: home.run in others)

    # -- homes --

    def home(self, request: HomeRequest, make: Callable[[HomeRequest], HomeEntry]) -> tuple[HomeEntry, Origin]:
        """Return the home of a place, and how it was had.

        Raises:
            RefusedError: the place gets none.
        """
        self._admit(request)
        home = self._by_place.get(request.place)
        if home is not None and home.process.pid == request.without:
            self._end_home(home)  # it ends by itself, or hangs
            self._lose([request.place])
            home = None
        origin: Origin = "known"
        if home is None:
            origin = "restarted" if request.place in self._lost else "new"
            self._lost.pop(request.place, None)
            mine = [home for home in self._alive() if (home.run, home.secret) == (request.run, request.secret)]
            if len(mine) >= request.most:
                home = min(mine, key=lambda home: len(home.places))
            else:
                home = make(request)
                self.homes[home.process.pid] = home
            self._by_place[request.place] = home
        elif home.is_adopted and not home.is_told:
            origin, home.is_told = "adopted", True
        home.places.add(request.place)
        home.epoch, home.used_at = max(home.epoch, request.epoch), self._clock()
        return home, origin

    def adopt(self, home: HomeEntry, since: int | None) -> None:
        """Take the home of an earlier starter, or let it end if nobody can need it.

        Args:
            since: the number of the first of Spark's tasks that it served.
        """
        self.homes[home.process.pid], home.is_adopted = home, True
        if self.is_ending or home.run in self._ended or any(place in self._by_place for place in home.places):
            self._end_home(home)
            return
        run = self._runs.setdefault(home.run, _Run(home.query, since, home.epoch))
        if since is not None:
            run.since = since if run.since is None else min(run.since, since)
        for place in home.places:
            self._by_place[place] = home

    def has_said(self, home: HomeEntry, epoch: int, unused: float) -> None:
        """Take what a home says of its visits: the last epoch, and how long ago that was (seconds)."""
        home.epoch, home.used_at = max(home.epoch, epoch), max(home.used_at, self._clock() - unused)
        run = self._runs.get(home.run)
        if run is not None:
            run.epoch = max(run.epoch, home.epoch)

    def end_those_away(self) -> None:
        """Let homes end whose partitions have moved to another executor."""
        for home in self._alive():
            run = self._runs.get(home.run)
            away = run is not None and home.epoch < run.epoch - _EPOCHS_AWAY
            if away and self._clock() - home.used_at > _SECONDS_AWAY:
                self._end_home(home)

    def end_all(self) -> None:
        """End all homes, and meet no more requests."""
        self.is_ending = True
        self._end_homes(lambda home: True)

    def remove(self, home: HomeEntry) -> None:
        """Forget a home whose process has ended."""
        self.homes.pop(home.process.pid, None)
        if home.kill_at is None:
            self._lose(home.places)
        self._forget_places(home)

    def _lose(self, places: Iterable[str]) -> None:
        """Note places that will have another home since theirs has ended, hung or was lost."""
        self._lost.update(dict.fromkeys(places))
        while len(self._lost) > _MOST_LOST:
            del self._lost[next(iter(self._lost))]

    def _alive(self) -> list[HomeEntry]:
        return [home for home in self.homes.values() if home.kill_at is None]

    def _end_homes(self, which: Callable[[HomeEntry], bool]) -> list[HomeEntry]:
        """Let homes end that satisfy a condition, and return them; also those that end already."""
        homes = [home for home in self.homes.values() if which(home)]
        for home in homes:
            self._end_home(home)
        return homes

    def _end_home(self, home: HomeEntry) -> None:
        if home.kill_at is None:
            self._forget_places(home)
            self._end(home)

    def _forget_places(self, home: HomeEntry) -> None:
        for place in home.places:
            if self._by_place.get(place) is home:
                del self._by_place[place]
