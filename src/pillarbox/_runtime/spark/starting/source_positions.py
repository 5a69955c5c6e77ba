"""Where the sources of a query begin that starts from a savepoint.

Spark notes in a checkpoint how far each source was read: as JSON of the source's own, but for files, whose source keeps
a list of those that it has seen. So the first epoch on a new checkpoint reads, instead of the sources, others
without rows, one for each, by which Spark writes the positions of the savepoint into its logs: see ``_position.py``
for the former, and for the latter Spark's own source of files over exactly those that were seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox._errors import CheckpointMismatchError
from pillarbox._graph.savepoint_start import NONE, SavepointStart
from pillarbox._graph.source_match import match_sources
from pillarbox._runtime.spark.checkpoint.offset_entry import OffsetEntry
from pillarbox._runtime.spark.session.folders import unless_missing
from pillarbox._runtime.spark.session.java import java_session, jvm, plan_steps
from pillarbox._runtime.spark.session.session_settings import spark_version
from pillarbox._runtime.spark.starting.seen_files import glob_of, paths_seen
from pillarbox._runtime.spark.worker.position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from pillarbox._state.savepoint.manifest import Sources

_HINT = 'say where they begin: positions="none", or a position for each'

# Where a source of files is before it has read any.
BEGINNING = {"logOffset": -1}

# A path that matches no file; Spark takes one with wildcards alone for a source whose files are yet to come.
_NO_FILES = "file:///pillarbox/_none/*"

# From this version of Spark on, sources may have names of their own.
_TITLES_SINCE = (4, 2)
_TITLE = re.compile(r'name="(\w+)"')

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
        title: the name that it was given with ``DataStreamReader.name``, if it was (Spark's source evolution).
        known_as: the name of the program's source, if this one is all that is read there.
        has_beginning: whether it tells where it begins before it is read.
        step: of the plan (an object of Java's).
    """

    name: str
    number: int
    cleans: bool = False
    title: str | None = None
    known_as: str | None = None
    has_beginning: bool = False
    step: Any = None

    @property
    def is_files(self) -> bool:
        """Whether it is Spark's source of files."""
        return self.name.startswith("FileSource[")


class SeenFiles(NamedTuple):
    """The position of a source of files."""

    paths: list[str]


def planned_sources(df: DataFrame) -> list[PlannedSource]:
    """Return the streaming sources in the plan of a DataFrame (a classic one), in the order of the offset log."""
    found: list[PlannedSource] = []
    different: list[Any] = []
    for step in plan_steps(df):
        if step.nodeName() not in _RELATIONS:
            continue
        number = next((number for number, other in enumerate(different) if other.equals(step)), len(different))
        if number == len(different):
            different.append(step)
        title = _title(df.sparkSession, step)
        has_beginning = step.nodeName() == "StreamingRelationV2" and _is_read_by_v2(df.sparkSession, step)
        found.append(
            PlannedSource(
                str(step.sourceName()), number, _cleans(step), title=title, has_beginning=has_beginning, step=step
            )
        )
    return found


def _title(spark: SparkSession, step: Any) -> str | None:
    if spark_version(spark) < _TITLES_SINCE:
        return None
    name = _TITLE.fullmatch(str(step.sourceIdentifyingName().toString()))
    return None if name is None else name[1]


def _is_read_by_v2(spark: SparkSession, step: Any) -> bool:
    capabilities = jvm(spark).org.apache.spark.sql.connector.catalog.TableCapability
    return bool(step.table().capabilities().contains(capabilities.MICRO_BATCH_READ))


def _cleans(step: Any) -> bool:
    if step.nodeName() != "StreamingRelation":
        return False
    option = step.dataSource().options().get("cleanSource")
    return bool(option.isDefined()) and str(option.get()).lower() != "off"


def stateful_steps(df: DataFrame) -> list[str]:
    """Return the names of the steps in the plan of a DataFrame (a classic one) that keep state as a stream."""
    found = []
    for step in plan_steps(df):
        name, children = step.nodeName(), step.children()
        streams = [children.apply(index).isStreaming() for index in range(children.size())]
        if (name in _STATEFUL and any(streams)) or (name == "Join" and all(streams)):
            found.append(str(name))
    return found


class FoundPositions(NamedTuple):
    """Where sources begin.

    Attributes:
        positions: of each source: what it calls so, as JSON has it; or ``SeenFiles``; or None: it begins as in a new
            query.
        wrong: what speaks against it.
        added: the names of those that the savepoint does not have.
        gone: the names of those that the program does not have.
        places: where each is among the sources of the savepoint's program, or None; None: not every source of one of
            the programs reads one of Spark's.
        in_order: whether they are the savepoint's, in the same order.
    """

    positions: list[Any]
    wrong: list[str]
    added: Sequence[str] = ()
    gone: Sequence[str] = ()
    places: list[int | None] | None = None
    in_order: bool = False


class _Line(NamedTuple):
    """A line of Spark's offset log.

    Attributes:
        id: by which Spark keeps what the source notes for itself, if every line is of another source.
        title: the name that the source was given with ``DataStreamReader.name``.
        text: the position as JSON; ``-``: it has none.
    """

    id: str
    title: str | None
    text: str


def find_positions(
    start: SavepointStart, noted: Sources, names: Sequence[str] | None, planned: Sequence[PlannedSource]
) -> FoundPositions:
    """Return the position of each source.

    Where the savepoint has no positions, since another runtime wrote it or it was edited, all begin as in a new query.

    Args:
        names: of the sources of the savepoint's program.
    """
    wanted = start.positions
    if wanted == NONE or (isinstance(wanted, str) and not noted.offsets):
        return _checked([None] * len(planned), planned)
    if isinstance(wanted, tuple):
        if len(wanted) != len(planned):
            return FoundPositions([], [f"positions has {len(wanted)}, and the program reads {_named(planned)}"])
        return _checked(list(wanted), planned)
    given = {} if isinstance(wanted, str) else wanted
    unknown = [name for name in given if name not in {source.title or source.known_as for source in planned}]
    if unknown:
        return FoundPositions(
            [],
            [
                f"positions names {', '.join(map(repr, unknown))}, and the program has no source of that name"
                f" that reads one of Spark's alone; it reads {_named(planned)}"
            ],
        )
    lines = _lines(noted)
    has_titles = any(line.title for line in lines)
    then = [line.title for line in lines] if has_titles else _one_each(names, len(lines))
    now = [(source.title if has_titles else None) or source.known_as for source in planned]
    match = match_sources(then, now, start.renamed)
    if match is None:
        return FoundPositions(
            [], [f"it has positions of {len(lines)} sources, and the program reads {_named(planned)}: {_HINT}"]
        )
    places = [_place(index, match.places, planned) for index in range(len(planned))]
    # Only where all are in their places, the program tells which lines are of the same source.
    in_order = not has_titles and places == [*range(len(lines))]
    found: list[Any] = []
    for place, source in zip(places, planned):
        name = source.title or source.known_as
        if name is not None and name in given:
            found.append(given[name])
        elif place is None:
            found.append(None)
        else:
            line = lines[place]
            seen = noted.files.get(str(source.number) if in_order else line.id)
            position, problem = _position(line, seen, place, source)
            if problem is not None:
                return FoundPositions([], [problem])
            found.append(position)
    return _checked(found, planned)._replace(
        added=[str(name) for name, place in zip(now, places) if place is None and name not in given],
        gone=[str(then[place]) for place in match.gone],
        places=places if None not in then and all(source.known_as for source in planned) and not has_titles else None,
        in_order=in_order,
    )


def _lines(noted: Sources) -> list[_Line]:
    """Return the lines of the offset log, in the order of the sources where they have no names.

    Raises:
        CheckpointMismatchError: they are of a version that is not known.
    """
    texts = OffsetEntry(noted.offsets).sources
    return [_Line(name, name if noted.are_named else None, text) for name, text in texts.items()]


def _one_each(names: Sequence[str] | None, lines: int) -> list[str | None]:
    """Return the names of the program's sources for the lines of the offset log, if they are as many."""
    return [*names] if names is not None and len(names) == lines else [None] * lines


def _place(index: int, places: Sequence[int | None], planned: Sequence[PlannedSource]) -> int | None:
    """Return the place of a source; one that is read twice has the same in both."""
    same = [place for place, source in zip(places, planned) if source.number == planned[index].number]
    return next((place for place in (places[index], *same) if place is not None), None)


def _position(line: _Line, seen: Sequence[str] | None, place: int, source: PlannedSource) -> tuple[Any, str | None]:
    """Return the position that a line says, and what speaks against it.

    Args:
        seen: of a source of files, the lines of its own log.
    """
    position: Any = None if line.text == "-" else json.loads(line.text)
    was_files = isinstance(position, dict) and position.keys() == {"logOffset"}
    if position is not None and was_files != source.is_files:
        was = "files" if was_files else f"at {line.text[:60]}"
        return None, f"source {place + 1} of Spark's was {was}, and is {source.name}: {_HINT}"
    if not was_files:
        return position, None
    if position == BEGINNING:
        return None, None
    if seen is None:
        return None, f"it does not say which files source {place + 1} of Spark's has read: {_HINT}"
    return SeenFiles(paths_seen(seen, position["logOffset"])), None


def _checked(found: list[Any], planned: Sequence[PlannedSource]) -> FoundPositions:
    problems = [
        f"source {place} of Spark's is {source.name}, which begins as in a new query, or resumes where the savepoint"
        " has it, and at no other position"
        for place, (position, source) in enumerate(zip(found, planned), 1)
        if source.is_files and not isinstance(position, (SeenFiles, type(None)))
    ]
    problems += [
        f"source {place} of Spark's is {source.name}, which counts from the start of its query: it has no position to"
        " resume from"
        for place, (position, source) in enumerate(zip(found, planned), 1)
        if source.name == "rate" and position is not None
    ]
    if all(position is None for position in found) and not any(
        source.is_files or source.has_beginning for source in planned
    ):
        problems.append(
            f"no source has a position, and the program reads {_named(planned)}: give one of them a position, as in"
            " Spark's offset log"
        )
    return FoundPositions(found, problems)


def _named(planned: Sequence[PlannedSource]) -> str:
    return f"{len(planned)} ({', '.join(source.name for source in planned)})"


def stand_ins(
    spark: SparkSession, positions: Sequence[Any], planned: Sequence[PlannedSource], checkpoint: str
) -> DataFrame:
    """Return a streaming DataFrame without rows, of one column, that reads one source for each position.

    Args:
        checkpoint: where the query's is.
    """
    # Spark runs no epoch in which no source has a new position. So if none has one, some source is where it begins.
    begins = any(position is not None and not isinstance(position, SeenFiles) for position in positions)
    first = None
    if not begins and not any(source.is_files for source in planned):
        first = next(source.number for source in planned if source.has_beginning)
    made: dict[int, DataFrame] = {}
    spark.dataSource.register(Position)
    for position, source in zip(positions, planned):
        if source.number in made:
            continue
        there = None
        if source.number == first:
            position = _own_beginning(spark, source, checkpoint)  # noqa: PLW2901
        elif isinstance(position, SeenFiles) or position is None:
            there = _still_there(spark, position)
            position = _beginning(source) if there is None and source.is_files and not begins else None  # noqa: PLW2901
            begins = begins or there is not None or position is not None
        reader = spark.readStream if source.title is None else spark.readStream.name(source.title)
        if position is not None:
            made[source.number] = reader.format("pillarbox_position").option("position", json.dumps(position)).load()
        else:
            made[source.number] = _files(reader, there or _NO_FILES)
    # One by one, as in the offset log, also where the plan has a source several times.
    return reduce(lambda one, other: one.unionAll(other), [made[source.number] for source in planned])


def _own_beginning(spark: SparkSession, source: PlannedSource, checkpoint: str) -> Any:
    """Return where a source begins by its own options: where the same query would begin on a new checkpoint."""
    # Kafka's notes it in its own folder; if the start is interrupted, the next one finds it there.
    folder = f"{checkpoint}/sources/{source.number if source.title is None else source.title}"
    jvm(spark).SparkSession.setActiveSession(java_session(spark))
    stream = source.step.table().newScanBuilder(source.step.extraOptions()).build().toMicroBatchStream(folder)
    try:
        return json.loads(stream.initialOffset().json())
    finally:
        stream.stop()


def _beginning(source: PlannedSource) -> Any:
    if source.cleans:
        raise CheckpointMismatchError(
            f"{source.name} has read no file that is still there, and Spark cannot clean files after such a start:"
            " start the query without the option cleanSource until its first micro-batch is committed"
        )
    return BEGINNING


def _still_there(spark: SparkSession, position: SeenFiles | None) -> str | None:
    """Return the path of the files that still exist; None: none does."""
    if not position or not position.paths:
        return None
    path = glob_of(position.paths)
    return None if unless_missing(lambda: _files(spark.read, path), None) is None else path


def _files(reader: DataFrameReader | DataStreamReader, path: str) -> DataFrame:
    # Looked up recursively, folders such as day=1 are no columns.
    return reader.schema("value STRING").option("recursiveFileLookup", "true").text(path)
