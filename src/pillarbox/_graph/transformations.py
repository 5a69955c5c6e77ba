"""A user's program as a graph of transformations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from typing import Any

from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.stateless.pass_through import PASS_THROUGH
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._task.network.partitioner import KeyGroupPartitioner, Partitioner
from pillarbox._time.watermark_strategy import WatermarkStrategy


class ChainingStrategy(Enum):
    """Whether an operator may be chained, as in Flink."""

    #: May be chained to operators before and after it.
    ALWAYS = auto()
    #: May be chained only to operators after it.
    HEAD = auto()
    NEVER = auto()


class EventTimeUse(Enum):
    """How an operator uses event time."""

    NONE = auto()
    #: Its timers need watermarks.
    TIMERS = auto()
    #: Its records need timestamps, too.
    TIMESTAMPS = auto()


@dataclass(eq=False)
class Transformation:
    """A step of a program."""

    number: int
    name: str
    inputs: list[Transformation]
    output_type: Any = None


def steps_leading_to(ends: Iterable[Transformation]) -> Iterator[Transformation]:
    seen: set[Transformation] = set()
    pending = [*ends]
    while pending:
        step = pending.pop()
        if step not in seen:
            seen.add(step)
            pending += step.inputs
            yield step


@dataclass(eq=False)
class SourceTransformation(Transformation):
    """A source of records."""

    columns: tuple[str, ...] | None = None


@dataclass(eq=False)
class DataFrameSource(SourceTransformation):
    """The rows of a Spark DataFrame."""

    dataframe: Any = None


@dataclass(eq=False)
class CollectionSource(SourceTransformation):
    """The elements of a collection."""

    collection: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class OperatorTransformation(Transformation):
    """An operator on a stream.

    Attributes:
        serial: unique in the process.
    """

    kind: str = "sink"
    factory: OperatorFactory = PASS_THROUGH
    uid: str | None = None
    uses_processing_time: bool = False
    strategy: WatermarkStrategy | None = None
    event_time: EventTimeUse = EventTimeUse.NONE
    parallelism: int | None = None
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    serial: int = field(default_factory=count().__next__, init=False)

    @property
    def effective_uid(self) -> str:
        return self.uid if self.uid is not None else f"{self.kind}-{self.number}"

    @property
    def may_stamp(self) -> bool:
        return self.factory.keyed and self.kind.startswith(("process", "window.", "interval_join"))


@dataclass(eq=False)
class SinkTransformation(OperatorTransformation):
    """A sink of a stream.

    Attributes:
        output: the output's name, or None for a sink within the task, such as print.
    """

    output: str | None = None
    limit: int | None = None


@dataclass(eq=False)
class PartitionTransformation(Transformation):
    """Distributes a stream over the next operators' subtasks."""

    partitioner: Partitioner = None  # type: ignore[assignment]


@dataclass(eq=False)
class KeyByTransformation(PartitionTransformation):
    """Partitions a stream by key."""

    partitioner: KeyGroupPartitioner = None  # type: ignore[assignment]
    key_types: list[str] | None = None

    @property
    def keying(self) -> Keying:
        return self.partitioner.keying

    def note(self) -> KeyNote:
        note = self.keying.note()
        if self.key_types is not None:
            note["types"] = self.key_types
        return note


@dataclass(eq=False)
class UnionTransformation(Transformation):
    """A union of several streams."""


@dataclass(eq=False)
class SideOutputTransformation(Transformation):
    """A side output of an operator."""

    tag_id: str = ""
