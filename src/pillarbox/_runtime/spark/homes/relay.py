"""Relays a Spark task's epoch from the worker to the home of its state partition.

Only this module talks to Spark, in the worker's main thread.
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

from pillarbox._elements.buffers import Buffer, decode, encode
from pillarbox._elements.task_report import TaskReport
from pillarbox._errors import OperatorError
from pillarbox._graph.layout import Layout
from pillarbox._graph.targets import spark_hash
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import remote_error
from pillarbox._runtime.spark.homes import worker_environment
from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.homes.sockets import connect, is_disconnected
from pillarbox._runtime.spark.homes.starter_connection import NoHomesError, StarterConnection, of_this_worker
from pillarbox._runtime.spark.homes.wire import Hello, HomeEpochRequest, HomeMessageKind
from pillarbox._runtime.spark.tasks.channel import Channel, ChannelLostError, ChannelSilentError
from pillarbox._runtime.spark.tasks.task_info import TaskInfo, local_property
from pillarbox._state.chunks.head import META
from pillarbox._state.chunks.store import ChunkStore
from pillarbox._task.vertex import REPORT_TARGET

_DOOR_SECONDS = 60.0
_TRIES = 3
# Maximum bytes of an answer sent with an epoch request. It fits into the socket's buffer, so sending never blocks.
_AHEAD_BYTES = 1 << 14


@dataclass(frozen=True)
class RelaySettings:
    """The data that workers need to find their tasks' homes. Pickled to the workers."""

    secret: str
    level: str
    partitions: int

    @staticmethod
    def of(vertices: dict[int, ShippedVertex], secret: str, partitions: int) -> RelaySettings:
        digests = "".join(vertex.digest for vertex in vertices.values())
        return RelaySettings(secret, hashlib.sha256(digests.encode()).hexdigest(), partitions)

    def place(self, run: str, layout: Layout, partitions: int, code: int) -> str:
        """Return the digest that identifies a state partition's home.

        The digest does not depend on Spark's partition number, which changes if a plan unites two outputs.
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

    def relay(self, vertices: dict[int, ShippedVertex], facts: TaskInfo, code: int) -> Relay | None:
        settings = settings_of(local_property)
        if settings is None:
            return None
        if facts.task is None:
            raise NoHomesError("no Spark task is running here")
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
    channel: Channel
    pid: int
    process: bytes | None = None
    subtasks: set[tuple[int, int]] = field(default_factory=set)


# This worker's idle connections, by place. Not locked: its tasks run one after the other.
_idle: dict[str, _Connection] = {}


class Relay:
    """Runs a Spark task's epochs in a home. Raises `NoHomesError` if no home is available.

    ``attempt`` is the Spark task's number. Later attempts have higher numbers.
    """

    def __init__(
        self, keeper: StarterConnection, vertices: dict[int, ShippedVertex], request: dict[str, Any], attempt: int
    ) -> None:
        self._vertices = vertices
        self._request = request
        self._attempt = attempt
        self._keeper = keeper
        self._origin: str = "known"
        self._has_entered = False
        connection = _idle.pop(request["place"], None)
        if connection is not None:
            self._home = connection
            with suppress(NoHomesError):
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
        for digest in [digest for digest, home in _idle.items() if is_disconnected(home.channel)]:
            _idle.pop(digest).channel.close()
        for _ in range(_TRIES):
            answer = self._keeper.ask("home", **self._request, attempt=self._attempt, without=without)
            if "refused" in answer:
                raise OperatorError(answer["refused"])
            without = int(answer["pid"])
            try:
                channel = Channel(connect(answer["home"], _DOOR_SECONDS))
                hello = Hello(self._request["place"], self._request["secret"])
                channel.send_bytes(json.dumps(hello._asdict()).encode())
            except (OSError, ChannelLostError):
                continue
            self._home, self._origin = _Connection(channel, without), answer["origin"]
            return
        raise NoHomesError("each new home process ended before it responded: see the executor's log")

    def run_epoch(
        self,
        subtask: tuple[int, int],
        facts: TaskInfo,
        buffers: Iterable[list[Buffer]],
        chunks: ChunkStore,
    ) -> Generator[list[Buffer], None, int | None]:
        """Run an epoch in the home. Same contract as :meth:`LevelTasks.run_epoch`."""
        vertex, index = subtask
        prefix = f"{self._vertices[vertex].name!r}, subtask {index}: its home process"
        try:
            return (yield from self._relay_epoch(subtask, facts, buffers, chunks))
        except ChannelLostError as error:
            raise OperatorError(
                f"{prefix} {self._pid} ended during an epoch, or has moved on to a newer attempt of it:"
                f" {self._fate() or error}"
            ) from None
        except NoHomesError as error:
            # Spark's input cannot be read again, so the task fails.
            raise OperatorError(
                f"{prefix} {self._pid} was lost, and no other home process responded: {error}"
            ) from None
        except BaseException:
            # A task with uncommitted changes may remain in the home, so the next epoch checks its version.
            self._channel.close()
            raise

    def has(self, subtask: tuple[int, int]) -> bool:
        return subtask in self._home.subtasks

    def _fate(self) -> str | None:
        try:
            fate: str | None = self._keeper.ask("fate", starts=False, pid=self._pid)["fate"]
        except NoHomesError:
            return None
        if fate == "signal SIGKILL":
            fate += "; if the executor has too little memory, the system kills such processes"
        return fate

    def _begin(
        self, subtask: tuple[int, int], facts: TaskInfo, answers: _Answers, chunks: ChunkStore
    ) -> tuple[HomeMessageKind, list[Any]]:
        """Begin an epoch in a home, and return its first message.

        A home that sends no message has done nothing, so another home is tried.

        Raises:
            NoHomesError: no home is available.
        """
        ahead = answers.ahead()
        head = chunks.get(META)
        for _ in range(_TRIES):
            worker = None if self._has_entered else worker_environment.here(self._home.process)
            try:
                self._channel.set_timeout(_DOOR_SECONDS)
                self._channel.send(
                    HomeEpochRequest(self._attempt, self._request["epoch"], worker, subtask, facts, head, ahead)
                )
                kind, *fields = self._channel.receive()
                self._channel.set_timeout(None)
            except ChannelLostError as error:
                # The home has ended, or would also refuse the next request. One that closes a new connection is ending.
                self._channel.close()
                self._has_entered = False
                is_ending = self._home.process is None
                self._connect(without=self._pid if is_ending or isinstance(error, ChannelSilentError) else 0)
                continue
            if worker is not None:
                self._home.process = worker.process or self._home.process
            self._has_entered = True
            return kind, fields
        raise NoHomesError("each new home process ended before it responded: see the executor's log")

    def _relay_epoch(
        self, subtask: tuple[int, int], facts: TaskInfo, buffers: Iterable[list[Buffer]], chunks: ChunkStore
    ) -> Generator[list[Buffer], None, int | None]:
        began, taking = time.monotonic(), 0.0
        answers = _Answers(buffers)
        kind, fields = self._begin(subtask, facts, answers, chunks)
        while True:
            if kind is HomeMessageKind.MORE:
                self._channel.send_bytes(answers.take())
                answers.prepare()
            elif kind is HomeMessageKind.GET:
                self._channel.send(chunks.get(*fields))
            elif kind is HomeMessageKind.PUT:
                chunks.put(*fields)
            elif kind is HomeMessageKind.REMOVE:
                chunks.remove(*fields)
            elif kind is HomeMessageKind.OUT:
                out = _with_report(fields[0], partial(self._complete, time.monotonic() - began, taking))
                handed_on = time.monotonic()
                yield out
                taking += time.monotonic() - handed_on
            elif kind is HomeMessageKind.LEVEL:
                self._channel.send(self._vertices)
            elif kind is HomeMessageKind.VALUE:
                self._channel.send_bytes(worker_environment.value(*fields))
            elif kind is HomeMessageKind.DONE:
                wakes_up, added = fields
                worker_environment.add(added)
                self._home.subtasks.add(subtask)
                return wakes_up  # type: ignore[no-any-return]
            elif kind is HomeMessageKind.FAILED:
                raise remote_error(*fields)
            elif kind is HomeMessageKind.LATE:
                raise OperatorError("a newer attempt of this Spark task has replaced this one")
            kind, *fields = self._channel.receive()

    def _complete(self, elapsed: float, taking: float, report: TaskReport) -> TaskReport:
        origin, self._origin = self._origin, "known"
        return _with_origin(_with_time_here(report, elapsed, taking), origin)

    def close(self) -> None:
        if not self._channel.is_lost:
            _idle[self._request["place"]] = self._home


def _with_report(buffers: list[Buffer], change: Callable[[TaskReport], TaskReport]) -> list[Buffer]:
    if not buffers or buffers[-1].target != REPORT_TARGET:
        return buffers
    report = decode(buffers[-1].payload)
    assert isinstance(report, TaskReport)
    return [*buffers[:-1], buffers[-1]._replace(payload=encode(change(report)))]


def _with_time_here(report: TaskReport, elapsed: float, taking: float) -> TaskReport:
    """Correct a task's report: the time that Spark spent consuming output is back-pressured, not idle."""
    accounted_ms = report.busy_ms + report.idle_ms + report.back_pressured_ms + report.state_ms
    after = max(0, round(elapsed * 1000) - accounted_ms)
    back_pressured_ms = max(0, min(round(taking * 1000) - report.back_pressured_ms, report.idle_ms + after))
    idle = report.idle_ms - max(0, back_pressured_ms - after)
    return replace(report, back_pressured_ms=report.back_pressured_ms + back_pressured_ms, idle_ms=idle)


def _with_origin(report: TaskReport, origin: str) -> TaskReport:
    if origin == "new":
        return replace(report, home_cold_starts=1)
    if origin == "restarted":
        return replace(report, home_restarts=1)
    return replace(report, home_adoptions=1) if origin == "adopted" else report


class _Answers:
    """Answers to the home's requests for input (``MORE``), each pickled in advance."""

    def __init__(self, buffers: Iterable[list[Buffer]]) -> None:
        self._buffers = iter(buffers)
        self._next: bytes | None = None

    def ahead(self) -> list[bytes]:
        ahead: list[bytes] = []
        while len(ahead) < 2:
            self.prepare()
            assert self._next is not None
            if len(self._next) > _AHEAD_BYTES:
                break
            ahead.append(self.take())
        return ahead

    def prepare(self) -> None:
        if self._next is None:
            self._next = pickle.dumps(next(self._buffers, None), pickle.HIGHEST_PROTOCOL)

    def take(self) -> bytes:
        self.prepare()
        assert self._next is not None
        answer, self._next = self._next, None
        return answer
