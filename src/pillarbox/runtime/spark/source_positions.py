"""Where the sources of a query begin that starts from a savepoint.

Spark notes in a checkpoint how far each source was read: as JSON of the source's own, but for files, whose source keeps
a list of those that it has seen. So the first epoch on a new checkpoint reads, instead of the sources, others
without rows, one for each, by which Spark writes the positions of the savepoint into its logs: see ``_position.py``
for the former, and for the latter Spark's own source of files over exactly those that were seen.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox.errors import CheckpointMismatchError
from pillarbox.graph.savepoint_start import NONE, SAVEPOINT, Positions
from pillarbox.runtime.spark._position import Position
from pillarbox.runtime.spark.seen_files import glob_of, paths_seen

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pillarbox.state.savepoint import Sources

__all__ = ["PlannedSource", "SeenFiles", "find_positions", "planned_sources", "stand_ins", "stateful_steps"]

# Where a source of files is before it has read any.
BEGINNING = {"logOffset": -1}

_RELATIONS = ("StreamingRelation", "StreamingRelationV2")
# Steps of plans that keep state when what they read is streaming.
_STATEFUL = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "GlobalLimit",
        "TransformWithState",
        "TransformWithStateInPandas",
        "TransformWithStateInPySpark",
    }
)


@dataclass(frozen=True)
class PlannedSource:
    """A source in the plan of a query: a line of Spark's offset log.

    Attributes:
        name: as Spark calls it.
        number: by which Spark keeps what the source notes for itself. The same source may occur several times.
        cleans: whether it is of files, and moves or deletes those that it has read.
    """

    name: str
    number: int
    cleans: bool = False

    @property
    def is_files(self) -> bool:
        """Whether it is Spark's source of files."""
        return self.name.startswith("FileSource[")


class SeenFiles(NamedTuple):
    """The position of a source of files."""

    paths: list[str]


def _steps(df: DataFrame) -> list[Any]:
    """Return the steps of the analyzed plan, each before those that it reads from, as Spark numbers sources."""
    steps: list[Any] = []
    pending: list[Any] = [df._jdf.queryExecution().analyzed()]
    while pending:
        step = pending.pop()
        steps.append(step)
        children = step.children()
        pending += [children.apply(index) for index in reversed(range(children.size()))]
    return steps


def planned_sources(df: DataFrame) -> list[PlannedSource]:
    """Return the streaming sources in the plan of a DataFrame (a classic one), in the order of the offset log."""
    found: list[PlannedSource] = []
    different: list[Any] = []
    for step in _steps(df):
        if step.nodeName() not in _RELATIONS:
            continue
        number = next((number for number, other in enumerate(different) if other.equals(step)), len(different))
        if number == len(different):
            different.append(step)
        found.append(PlannedSource(str(step.sourceName()), number, _cleans(step)))
    return found


def _cleans(step: Any) -> bool:
    if step.nodeName() != "StreamingRelation":
        return False
    option = step.dataSource().options().get("cleanSource")
    return bool(option.isDefined()) and str(option.get()).lower() != "off"


def stateful_steps(df: DataFrame) -> list[str]:
    """Return the names of the steps in the plan of a DataFrame (a classic one) that keep state as a stream."""
    found = []
    for step in _steps(df):
        name, children = step.nodeName(), step.children()
        streams = [children.apply(index).isStreaming() for index in range(children.size())]
        if (name in _STATEFUL and any(streams)) or (name == "Join" and all(streams)):
            found.append(str(name))
    return found


def find_positions(wanted: Positions, noted: Sources, planned: Sequence[PlannedSource]) -> tuple[list[Any], list[str]]:
    """Return the position of each source, and what speaks against it.

    A position is what the source calls so, as JSON has it; or ``SeenFiles``; or None: the source begins as in a new
    query, as all do where the savepoint has no positions: that of another runtime, or one that was edited.
    """
    if wanted == NONE or (wanted == SAVEPOINT and not noted.offsets):
        return _checked([None] * len(planned), planned)
    if wanted != SAVEPOINT:
        if len(wanted) != len(planned):
            return [], [f"positions has {len(wanted)}, and the program reads {_named(planned)}"]
        return _checked(list(wanted), planned)
    hint = 'say where they begin: positions="none", or a position for each'
    if noted.offsets[0] != "v1":
        return [], [
            f"its sources have names of their own (offset log {noted.offsets[0]}), which is not supported: {hint}"
        ]
    lines = noted.offsets[2:]
    if len(lines) != len(planned):
        return [], [f"it has positions of {len(lines)} sources, and the program reads {_named(planned)}: {hint}"]
    found: list[Any] = []
    for line, source in zip(lines, planned):
        position = None if line == "-" else json.loads(line)
        was_files = isinstance(position, dict) and position.keys() == {"logOffset"}
        if position is not None and was_files != source.is_files:
            was = "files" if was_files else f"at {line[:60]}"
            return [], [f"source {len(found) + 1} of Spark's was {was}, and is {source.name}: {hint}"]
        if was_files:
            seen = noted.files.get(str(source.number))
            if position == BEGINNING:
                position = None
            elif seen is None:
                return [], [f"it does not say which files source {len(found) + 1} of Spark's has read: {hint}"]
            else:
                position = SeenFiles(paths_seen(seen))
        found.append(position)
    return _checked(found, planned)


def _checked(found: list[Any], planned: Sequence[PlannedSource]) -> tuple[list[Any], list[str]]:
    problems = [
        f"source {place} of Spark's is {source.name}, which begins anew, or goes on where the savepoint has it, and at"
        " no other position"
        for place, (position, source) in enumerate(zip(found, planned), 1)
        if source.is_files and not isinstance(position, (SeenFiles, type(None)))
    ]
    problems += [
        f"source {place} of Spark's is {source.name}, which counts from the start of its query: it has no position to"
        " go on from"
        for place, (position, source) in enumerate(zip(found, planned), 1)
        if source.name == "rate" and position is not None
    ]
    if all(position is None for position in found) and not any(source.is_files for source in planned):
        problems.append(
            f"no source has a position, and the program reads {_named(planned)}: give one of them a position, as in"
            " Spark's offset log; for Kafka positions=[{}] is the beginning of all partitions"
        )
    return found, problems


def _named(planned: Sequence[PlannedSource]) -> str:
    return f"{len(planned)} ({', '.join(source.name for source in planned)})"


def stand_ins(
    spark: SparkSession, positions: Sequence[Any], planned: Sequence[PlannedSource], folder: str
) -> DataFrame:
    """Return a streaming DataFrame without rows, of one column, that reads one source for each position.

    Args:
        folder: of the checkpoint's, where a path is that never exists.
    """
    begins = any(position is not None and not isinstance(position, SeenFiles) for position in positions)
    made: dict[int, DataFrame] = {}
    spark.dataSource.register(Position)
    for position, source in zip(positions, planned):
        if source.number in made:
            continue
        if isinstance(position, SeenFiles) or position is None:
            there = _still_there(spark, position)
            # Spark runs no epoch in which no source has a new position: one of files is then where it begins.
            position = _beginning(source) if there is None and source.is_files and not begins else None  # noqa: PLW2901
            begins = begins or there is not None or position is not None
        if position is not None:
            made[source.number] = (
                spark.readStream.format("pillarbox_position").option("position", json.dumps(position)).load()
            )
        else:
            made[source.number] = _files(spark, there or f"{folder}/_none/*")
    # One by one, as in the offset log, also where the plan has a source several times.
    return reduce(lambda one, other: one.unionAll(other), [made[source.number] for source in planned])


def _beginning(source: PlannedSource) -> Any:
    if source.cleans:
        raise CheckpointMismatchError(
            f"{source.name} has read no file that is still there, and Spark cannot clean files behind such a start:"
            " start the query without the option cleanSource until its first micro-batch is committed"
        )
    return BEGINNING


def _still_there(spark: SparkSession, position: SeenFiles | None) -> str | None:
    """Return the path of those files that are there; None: none is."""
    from pyspark.errors import AnalysisException

    if not position or not position.paths:
        return None
    path = glob_of(position.paths)
    try:
        spark.read.schema("value STRING").option("recursiveFileLookup", "true").text(path)
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return None
    return path


def _files(spark: SparkSession, path: str) -> DataFrame:
    # Looked up recursively, folders such as day=1 are no columns.
    return spark.readStream.schema("value STRING").option("recursiveFileLookup", "true").text(path)
