"""A program as the user built it: streams, and what makes each of the ones before."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.stateless.pass_through import PASS_THROUGH
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._task.network.partitioner import KeyGroupPartitioner, Partitioner
from pillarbox._time.watermark_strategy import WatermarkStrategy


class ChainingStrategy(Enum):
    """Whether an operator may be chained. Flink's enumeration of this name."""

    #: To the operators before and after it.
    ALWAYS = auto()
    #: Only to the operators after it.
    HEAD = auto()
    NEVER = auto()


class EventTimeUse(Enum):
    """How an operator uses event time."""

    NONE = auto()
    #: It has timers of event time, which need watermarks.
    TIMERS = auto()
    #: Its records need timestamps, too.
    TIMESTAMPS = auto()


@dataclass(eq=False)
class Transformation:
    """One step of a program.

    Attributes:
        number: position in the order in which the program was built.
        inputs: the steps whose streams it takes.
        output_type: the columns that the user declared, or None.
    """

    number: int
    name: str
    inputs: list[Transformation]
    output_type: Any = None


def steps_leading_to(ends: Iterable[Transformation]) -> Iterator[Transformation]:
    """Return all steps that lead to some, and these: each once."""
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
    """Where records come from.

    Attributes:
        columns: names of the columns where there are some.
    """

    columns: tuple[str, ...] | None = None


@dataclass(eq=False)
class DataFrameSource(SourceTransformation):
    """Rows of a Spark DataFrame."""

    dataframe: Any = None


@dataclass(eq=False)
class CollectionSource(SourceTransformation):
    """The elements of a collection, in its order."""

    collection: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class OperatorTransformation(Transformation):
    """An operator on a stream.

    Attributes:
        kind: the method that made it; a derived uid starts with it.
        factory: makes the operator.
        uid: the uid that its state is stored under; None: derived.
        uses_processing_time: it has processing-time timers.
        strategy: the watermark strategy, where it is one that emits watermarks.
        event_time: how it uses event time, as far as that is known.
        parallelism: the number of its subtasks; None: the user set none.
        chaining: whether it may be chained.
    """

    kind: str = "sink"
    factory: OperatorFactory = PASS_THROUGH
    uid: str | None = None
    uses_processing_time: bool = False
    strategy: WatermarkStrategy | None = None
    event_time: EventTimeUse = EventTimeUse.NONE
    parallelism: int | None = None
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS

    @property
    def effective_uid(self) -> str:
        """The uid given, or one from the operator's kind and place."""
        return self.uid if self.uid is not None else f"{self.kind}-{self.number}"

    @property
    def may_stamp(self) -> bool:
        """Whether results may have timestamps where records have none: results of timers and of windows."""
        return self.factory.keyed and self.kind.startswith(("process", "window.", "interval_join"))


@dataclass(eq=False)
class SinkTransformation(OperatorTransformation):
    """An end of the program.

    Attributes:
        output: the name of the output that gets the records; None for a sink within the task, such as print.
        limit: how many records are asked for; None: all.
    """

    output: str | None = None
    limit: int | None = None


@dataclass(eq=False)
class PartitionTransformation(Transformation):
    """Spreads a stream over the subtasks of the operators that come next."""

    partitioner: Partitioner = None  # type: ignore[assignment]


@dataclass(eq=False)
class KeyByTransformation(PartitionTransformation):
    """Spreads a stream by key.

    Attributes:
        key_types: the key's Spark types where they are known: one for each column, or one for the result of a function.
    """

    partitioner: KeyGroupPartitioner = None  # type: ignore[assignment]
    key_types: list[str] | None = None

    @property
    def keying(self) -> Keying:
        """How a record gets its key."""
        return self.partitioner.keying

    def note(self) -> KeyNote:
        """Return the description of the key that a checkpoint holds."""
        note = self.keying.note()
        if self.key_types is not None:
            note["types"] = self.key_types
        return note


@dataclass(eq=False)
class UnionTransformation(Transformation):
    """Several streams as one."""


@dataclass(eq=False)
class SideOutputTransformation(Transformation):
    """A side output of an operator."""

    tag_id: str = ""
