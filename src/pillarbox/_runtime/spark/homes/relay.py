"""A worker's side of a home: it brings one task of Spark's to the home of its state partition, epoch by epoch.

A relay lives as long as the task of Spark's; its connection with the home stays for the next one. All that needs Spark
happens here: it takes buffers from Spark, gives output back, and reads and writes the log for the home, which has
neither. It runs in the worker's main thread.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pillarbox._elements import Buffer, TaskReport, decode, encode
from pillarbox._errors import OperatorError
from pillarbox._graph.layout import Layout
from pillarbox._graph.targets import spark_hash
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import remote_error
from pillarbox._runtime.spark.homes import surroundings
from pillarbox._runtime.spark.homes.keeper import Keeper, NoHomesError, of_this_worker
from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.homes.sockets import connect, has_gone
from pillarbox._runtime.spark.homes.wire import Hello, Kind, Visit
from pillarbox._runtime.spark.tasks.channel import Channel, LostError, SilentError
from pillarbox._runtime.spark.tasks.task_facts import TaskFacts, local_property
from pillarbox._state.chunks.head import META
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._task.vertex import REPORT_TARGET

# How long a home may take to let a relay in (seconds): it may be searching its memory for garbage. Then another home is
# asked for, so many times.
_DOOR_SECONDS = 60.0
_TRIES = 3
# Answers of this size travel with a visit: they fit into the buffer of the socket, so no reader waits for the rest.
_AHEAD_BYTES = 1 << 14


@dataclass(frozen=True)
class Homes:
    """How the tasks of a level find their homes; it travels with the level's host.

    Attributes:
        secret: of the plan; homes let in only who knows it.
        level: digest of the level's vertices.
        partitions: the number of state partitions that the program was compiled for.
    """

    secret: str
    level: str
    partitions: int

    @staticmethod
    def of(vertices: dict[int, ShippedVertex], secret: str, partitions: int) -> Homes:
        """Return the homes of a level."""
        digests = "".join(each.digest for each in vertices.values())
        return Homes(secret, hashlib.sha256(digests.encode()).hexdigest(), partitions)

    def place(self, run: str, layout: Layout, partitions: int, code: int) -> str:
        """Return what a home is known by: a level of a run, and the state partition that a subtask's code lies in.

        It does not depend on the number of Spark's task, which is another one where a plan unites two outputs. Where
        Spark does not tell the run, the secret tells queries apart.
        """
        identity = [
            run,
            self.secret,
            self.level,
            *map(str, layout),
            str(partitions),
            str(spark_hash(code) % partitions),
        ]
        return hashlib.sha256("\0".join(identity).encode()).hexdigest()

    def relay(self, vertices: dict[int, ShippedVertex], facts: TaskFacts, code: int) -> Relay | None:
        """Return a relay to the home of a subtask's state partition; None: the user wants no homes.

        Raises:
            NoHomesError: there is no home to be had.
        """
        settings = settings_of(local_property)
        if settings is None:
            return None
        if facts.task is None:
            raise NoHomesError("no task of Spark's runs here")
        request = {
            "place": self.place(facts.run, facts.layout, facts.partitions or self.partitions, code),
            "run": facts.run,
            "query": facts.query,
            "epoch": facts.batch or 0,
            "secret": self.secret,
            **vars(settings),
        }
        return Relay(of_this_worker(), vertices, request, facts.task)


@dataclass
class _Connection:
    """A connection with a home.

    Attributes:
        pid: the home's process.
        process: what the home was told of this worker's process, pickled.
        subtasks: that have run an epoch through it: their logs exist.
    """

    channel: Channel
    pid: int
    process: bytes | None = None
    subtasks: set[tuple[int, int]] = field(default_factory=set)


# Of this worker, whose tasks run one after the other: connections that no task uses, by place.
_kept: dict[str, _Connection] = {}


class Relay:
    """Brings epochs to a home.

    Args:
        vertices: of the level; a home that is new gets them.
        request: what the starter is told about the place, and who asks.
        attempt: the number of Spark's task; a later attempt has a higher one.

    Raises:
        NoHomesError: there is no home to be had.
        OperatorError: the task is late: a newer attempt of it or a newer run of its query has begun.
    """

    def __init__(
        self, keeper: Keeper, vertices: dict[int, ShippedVertex], request: dict[str, Any], attempt: int
    ) -> None:
        self._vertices = vertices
        self._request = request
        self._attempt = attempt
        self._keeper = keeper
        self._origin: str = "known"
        # Whether the home has the surroundings of this task of Spark's.
        self._has_entered = False
        kept = _kept.pop(request["place"], None)
        if kept is not None:
            self._home = kept
            with suppress(NoHomesError):  # a home lives on without its starter, but others may need one
                keeper.prepare()
        else:
            self._connect(without=0)

    @property
    def _channel(self) -> Channel:
        return self._home.channel

    @property
    def _pid(self) -> int:
        return self._home.pid

    def _connect(self, without: int) -> None:
        """Ask the starter for the home, and connect with it.

        Args:
            without: the process of the home that does not answer; 0: there was none.
        """
        for place in [place for place, home in _kept.items() if has_gone(home.channel)]:
            _kept.pop(place).channel.close()
        for _ in range(_TRIES):
            found = self._keeper.ask("home", **self._request, attempt=self._attempt, without=without)
            if "refused" in found:
                raise OperatorError(found["refused"])
            without = int(found["pid"])
            try:
                channel = Channel(connect(found["home"], _DOOR_SECONDS))
                hello = Hello(self._request["place"], self._request["secret"])
                channel.send_bytes(json.dumps(hello._asdict()).encode())
            except (OSError, LostError):  # it has just ended
                continue
            self._home, self._origin = _Connection(channel, without), found["origin"]
            return
        raise NoHomesError("homes end before they answer")

    def run_epoch(
        self,
        place: tuple[int, int],
        facts: TaskFacts,
        buffers: Iterable[list[Buffer]],
        chunks: ChunkStore,
    ) -> Generator[list[Buffer], None, int | None]:
        """Have an epoch run; as :meth:`LevelTasks.run_epoch`.

        Raises:
            PillarboxError: it failed there, or the home has ended.
        """
        number, subtask = place
        its_home = f"{self._vertices[number].name!r}, subtask {subtask}: the process that its task lives in (its home,"
        try:
            return (yield from self._relayed(place, facts, buffers, chunks))
        except LostError as error:
            raise OperatorError(
                f"{its_home} process {self._pid}) has ended in the middle of an epoch, or has a newer attempt of it:"
                f" {self._fate() or error}"
            ) from None
        except NoHomesError as error:
            # The task fails: its input has been taken from Spark.
            raise OperatorError(
                f"{its_home} process {self._pid}) has been lost, and there is no other: {error}"
            ) from None
        except BaseException:
            # Whatever the home is at, nobody wants it; the next epoch proves what version it is at.
            self._channel.close()
            raise

    def has(self, subtask: tuple[int, int]) -> bool:
        """Return whether the home has a task of a subtask, as far as this worker knows."""
        return subtask in self._home.subtasks

    def _fate(self) -> str | None:
        """Return how the home has ended; None: it has not, or nobody knows."""
        try:
            fate: str | None = self._keeper.ask("fate", starts=False, pid=self._pid)["fate"]
        except NoHomesError:
            return None
        if fate == "signal SIGKILL":
            fate += "; if the executor has too little memory, the system kills such processes"
        return fate

    def _begin(
        self, subtask: tuple[int, int], facts: TaskFacts, answers: _Answers, chunks: ChunkStore
    ) -> tuple[Kind, list[Any]]:
        """Have an epoch begin, and return the first message of the home, before which it has done nothing.

        Raises:
            NoHomesError: there is no home to be had.
        """
        ahead = answers.ahead()
        head = chunks.get(META)  # the home asks for it first
        for _ in range(_TRIES):
            found = None if self._has_entered else surroundings.here(self._home.process)
            try:
                self._channel.set_timeout(_DOOR_SECONDS)
                self._channel.send(Visit(self._attempt, self._request["epoch"], found, subtask, facts, head, ahead))
                kind, *told = self._channel.receive()
                self._channel.set_timeout(None)
            except LostError as error:
                # If it has not ended, it has let in a newer attempt, and says so to the next visit.
                self._channel.close()
                self._has_entered = False
                self._connect(without=self._pid if isinstance(error, SilentError) else 0)
                continue
            if found is not None:
                self._home.process = found.process or self._home.process
            self._has_entered = True
            return kind, told
        raise NoHomesError("homes end before they answer")

    def _relayed(
        self, subtask: tuple[int, int], facts: TaskFacts, buffers: Iterable[list[Buffer]], chunks: ChunkStore
    ) -> Generator[list[Buffer], None, int | None]:
        began, taking = time.monotonic(), 0.0
        answers = _Answers(buffers)
        kind, told = self._begin(subtask, facts, answers, chunks)
        while True:
            if kind is Kind.MORE:
                self._channel.send_bytes(answers.taken())
                answers.prepare()  # while the home works
            elif kind is Kind.GET:
                self._channel.send(chunks.get(*told))
            elif kind is Kind.PUT:
                chunks.put(*told)
            elif kind is Kind.REMOVE:
                chunks.remove(*told)
            elif kind is Kind.OUT:
                out = _with_report(told[0], partial(self._completed, time.monotonic() - began, taking))
                handed_on = time.monotonic()
                yield out
                taking += time.monotonic() - handed_on
            elif kind is Kind.LEVEL:
                self._channel.send(self._vertices)
            elif kind is Kind.VALUE:
                self._channel.send_bytes(surroundings.value(*told))
            elif kind is Kind.DONE:
                wakes_up, added = told
                surroundings.add(added)
                self._home.subtasks.add(subtask)
                return wakes_up  # type: ignore[no-any-return]
            elif kind is Kind.FAILED:
                raise remote_error(*told)
            elif kind is Kind.LATE:
                raise OperatorError(
                    "a newer attempt of this task of Spark's has reached the home of its state partition"
                )
            kind, *told = self._channel.receive()

    def _completed(self, elapsed: float, taking: float, report: TaskReport) -> TaskReport:
        """Return a report with what the home cannot know; how the home was had is in one report of the visit."""
        origin, self._origin = self._origin, "known"
        return _with_origin(_with_time_here(report, elapsed, taking), origin)

    def close(self) -> None:
        """Let the home go; the connection stays, if it is of use."""
        if not self._channel.is_lost:
            _kept[self._request["place"]] = self._home


def _with_report(buffers: list[Buffer], change: Callable[[TaskReport], TaskReport]) -> list[Buffer]:
    """Return a task's output; if its report is a part, that is changed."""
    if not buffers or buffers[-1].target != REPORT_TARGET:
        return buffers
    report = decode(buffers[-1].payload)
    assert isinstance(report, TaskReport)
    return [*buffers[:-1], buffers[-1]._replace(payload=encode(change(report)))]


def _with_time_here(report: TaskReport, elapsed: float, taking: float) -> TaskReport:
    """Return a report with the time that Spark took for the output.

    The home sends its output to this worker, which has it before Spark takes it. Meanwhile the home waits for input
    that this worker cannot bring, or is done. So that is no idle time.

    Args:
        elapsed: how long the epoch has taken here (seconds).
        taking: in how much of it Spark took output.
    """
    known = report.busy_ms + report.idle_ms + report.back_pressured_ms + report.state_ms
    after = max(0, round(elapsed * 1000) - known)
    taken = max(0, min(round(taking * 1000) - report.back_pressured_ms, report.idle_ms + after))
    idle = report.idle_ms - max(0, taken - after)
    return replace(report, back_pressured_ms=report.back_pressured_ms + taken, idle_ms=idle)


def _with_origin(report: TaskReport, origin: str) -> TaskReport:
    """Return a report that counts the home by how it was had."""
    if origin == "new":
        return replace(report, home_cold_starts=1)
    if origin == "restarted":
        return replace(report, home_restarts=1)
    return replace(report, home_adoptions=1) if origin == "adopted" else report


class _Answers:
    """Buffers as the home takes them, of which the next ones are taken from Spark and pickled ahead."""

    def __init__(self, buffers: Iterable[list[Buffer]]) -> None:
        self._buffers = iter(buffers)
        self._next: bytes | None = None

    def ahead(self) -> list[bytes]:
        """Return the first answers, as far as they are small: as a rule these are all."""
        ahead: list[bytes] = []
        while len(ahead) < 2:
            self.prepare()
            assert self._next is not None
            if len(self._next) > _AHEAD_BYTES:
                break
            ahead.append(self.taken())
        return ahead

    def prepare(self) -> None:
        """Make the next answer."""
        if self._next is None:
            self._next = pickle.dumps(next(self._buffers, None), pickle.HIGHEST_PROTOCOL)

    def taken(self) -> bytes:
        """Return the next answer."""
        self.prepare()
        assert self._next is not None
        taken, self._next = self._next, None
        return taken
