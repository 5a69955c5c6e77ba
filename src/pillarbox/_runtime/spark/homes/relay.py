"""A worker's side of a home: it brings one task of Spark's to the home of its state partition, epoch by epoch.

A relay lives as long as the task of Spark's. All that needs Spark happens here: it takes buffers from Spark, gives
output back, and reads and writes the log for the home, which has neither. It runs in the worker's main thread.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pillarbox._elements import Buffer, TaskReport, decode, encode
from pillarbox._errors import OperatorError
from pillarbox._graph.layout import Layout
from pillarbox._graph.targets import spark_hash
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.failures import told_elsewhere
from pillarbox._runtime.spark.homes import surroundings
from pillarbox._runtime.spark.homes.keeper import Keeper, NoHomesError, of_this_worker
from pillarbox._runtime.spark.homes.settings import settings_of
from pillarbox._runtime.spark.homes.sockets import connect
from pillarbox._runtime.spark.homes.wire import Kind, Visit
from pillarbox._runtime.spark.tasks.channel import Channel, LostError
from pillarbox._runtime.spark.tasks.level_tasks import SparkChunks
from pillarbox._runtime.spark.tasks.task_facts import TaskFacts, local_property
from pillarbox._task.vertex import REPORT_TARGET

# How long a home may take to begin with an attempt: it may be searching its memory for garbage. Then another home is
# asked for, so many times.
_DOOR_SECONDS = 60.0
_TRIES = 3


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

        It does not depend on the number of Spark's task, which is another one where a plan unites two outputs.
        """
        identity = [run, self.level, *map(str, layout), str(partitions), str(spark_hash(code) % partitions)]
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


class Relay:
    """Brings epochs to a home.

    Args:
        vertices: of the level; a home that is new gets them.
        request: what the starter is told about the place, and who asks.
        attempt: the number of Spark's task; a later attempt has a higher one.

    Raises:
        NoHomesError: there is no home to be had.
    """

    def __init__(
        self, keeper: Keeper, vertices: dict[int, ShippedVertex], request: dict[str, Any], attempt: int
    ) -> None:
        self._vertices = vertices
        without = 0
        for _ in range(_TRIES):
            found = keeper.ask("home", **request, without=without)
            self._pid = without = int(found["pid"])
            try:
                channel = Channel(connect(found["home"], _DOOR_SECONDS))
            except OSError:  # it has just ended
                continue
            try:
                self._enter(channel, Visit(request["place"], attempt, surroundings.here(None)), request["secret"])
            except LostError:  # it ends, or hangs
                channel.close()
                continue
            self._channel = channel
            return
        raise NoHomesError("homes end before they answer")

    def _enter(self, channel: Channel, visit: Visit, secret: str) -> None:
        channel.send_bytes(secret.encode())
        channel.send(visit)
        kind, told = channel.receive()
        while kind is Kind.VALUE:
            channel.send_bytes(surroundings.value(told))
            kind, told = channel.receive()
        if kind is Kind.LATE:
            channel.close()
            raise OperatorError("a newer attempt of this task of Spark's has reached the home of its state partition")
        if not told:
            channel.send(self._vertices)
        channel.set_timeout(None)

    def run_epoch(
        self,
        place: tuple[int, int],
        facts: TaskFacts,
        buffers: Iterable[list[Buffer]],
        chunks: SparkChunks,
    ) -> Generator[list[Buffer], None, int | None]:
        """Have an epoch run; as :meth:`LevelTasks.run_epoch`.

        Raises:
            PillarboxError: it failed there, or the home has ended.
        """
        try:
            return (yield from self._relayed((place, facts), buffers, chunks))
        except LostError as error:
            number, subtask = place
            raise OperatorError(
                f"{self._vertices[number].name!r}, subtask {subtask}: the process that its task lives in (its home,"
                f" process {self._pid}) has ended in the middle of an epoch, or has a newer attempt of it: {error}; if"
                " the executor has too little memory, the system kills such processes"
            ) from None
        except BaseException:
            # Whatever the home is at, nobody wants it; the next epoch proves what version it is at.
            self.close()
            raise

    def _relayed(
        self, request: tuple[Any, ...], buffers: Iterable[list[Buffer]], chunks: SparkChunks
    ) -> Generator[list[Buffer], None, int | None]:
        began, taking = time.monotonic(), 0.0
        self._channel.send(request)
        answers = _Answers(buffers)
        while True:
            kind, *told = self._channel.receive()
            if kind is Kind.MORE:
                self._channel.send_bytes(answers.taken())
                answers.prepare()  # while the home works
            elif kind is Kind.GET:
                number, chunks.is_new = told
                self._channel.send(chunks.get(number))
            elif kind is Kind.PUT:
                chunks.put(*told)
            elif kind is Kind.REMOVE:
                chunks.remove(*told)
            elif kind is Kind.OUT:
                out = _with_time_here(told[0], time.monotonic() - began, taking)
                handed_on = time.monotonic()
                yield out
                taking += time.monotonic() - handed_on
            elif kind is Kind.DONE:
                wakes_up, added = told
                surroundings.add(added)
                return wakes_up  # type: ignore[no-any-return]
            else:
                raise told_elsewhere(*told)

    def close(self) -> None:
        """Let the home go; it keeps its tasks."""
        self._channel.close()


def _with_time_here(buffers: list[Buffer], elapsed: float, taking: float) -> list[Buffer]:
    """Return a task's output; if its report is a part, the time that Spark took for the output is added to the report.

    The home sends its output to this worker, which has it before Spark takes it. Meanwhile the home waits for input
    that this worker cannot bring, or is done. So that is no idle time.

    Args:
        elapsed: how long the epoch has taken here (seconds).
        taking: in how much of it Spark took output.
    """
    if not buffers or buffers[-1].target != REPORT_TARGET:
        return buffers
    report = decode(buffers[-1].payload)
    assert isinstance(report, TaskReport)
    known = report.busy_ms + report.idle_ms + report.back_pressured_ms + report.state_ms
    after = max(0, round(elapsed * 1000) - known)
    taken = max(0, min(round(taking * 1000) - report.back_pressured_ms, report.idle_ms + after))
    idle = report.idle_ms - max(0, taken - after)
    told = replace(report, back_pressured_ms=report.back_pressured_ms + taken, idle_ms=idle)
    return [*buffers[:-1], buffers[-1]._replace(payload=encode(told))]


class _Answers:
    """Buffers as the home takes them, of which the next ones are taken from Spark and pickled ahead."""

    def __init__(self, buffers: Iterable[list[Buffer]]) -> None:
        self._buffers = iter(buffers)
        self._next: bytes | None = None

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
