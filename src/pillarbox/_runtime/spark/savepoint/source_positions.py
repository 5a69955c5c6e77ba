"""The source positions of a query that starts from a savepoint.

In the first epoch on a new checkpoint, replacement sources make Spark write the savepoint's positions into its logs:
the source in ``worker/position.py`` or, for a file source, Spark's own source over exactly the files that were read.
Their rows are not used.
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
from pillarbox._runtime.spark.savepoint.seen_files import SeenFiles, file_outside, glob_of, paths_seen
from pillarbox._runtime.spark.session.folders import unless_missing
from pillarbox._runtime.spark.session.java import java_session, jvm, plan_steps
from pillarbox._runtime.spark.session.session_settings import spark_version
from pillarbox._runtime.spark.worker.position import Position

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader

    from pillarbox._state.savepoint.manifest import Sources

_HINT = 'pass positions="none", or a position for each source'

_FILE_SOURCE = "FileSource["

# A file source that has read nothing.
BEGINNING = {"logOffset": -1}

# Because of the wildcard, Spark accepts a source without files.
_NO_FILES = "file:///pillarbox/_none/*"

# Since this version, Spark has source names.
_TITLES_SINCE = (4, 2)
_TITLE = re.compile(r'name="(\w+)"')

_RELATIONS = ("StreamingRelation", "StreamingRelationV2")
# Plan nodes that keep state for streaming input.
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
class PositionedSource:
    """A source in a query's plan. Each entry of Spark's offset log has a line for it.

    Attributes:
        number: Spark's number for the source's metadata. A source that occurs twice in the plan has a single number.
        title: the name set with ``DataStreamReader.name`` (Spark's source evolution), or None.
        known_as: the name of the program's source that reads this and no other Spark source, or None.
        has_beginning: whether the initial offset is known before the source is read.
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
        return self.name.startswith(_FILE_SOURCE)


def planned_sources(df: DataFrame) -> list[PositionedSource]:
    """Return the streaming sources in a classic DataFrame's plan, in the order of the offset log."""
    sources: list[PositionedSource] = []
    different: list[Any] = []
    for step in plan_steps(df):
        if step.nodeName() not in _RELATIONS:
            continue
        number = next((number for number, other in enumerate(different) if other.equals(step)), len(different))
        if number == len(different):
            different.append(step)
        title = _title(df.sparkSession, step)
        has_beginning = step.nodeName() == "StreamingRelationV2" and _is_read_by_v2(df.sparkSession, step)
        sources.append(
            PositionedSource(
                str(step.sourceName()), number, _cleans(step), title=title, has_beginning=has_beginning, step=step
            )
        )
    return sources


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
    steps = []
    for step in plan_steps(df):
        name, children = step.nodeName(), step.children()
        streams = [children.apply(index).isStreaming() for index in range(children.size())]
        if (name in _STATEFUL and any(streams)) or (name == "Join" and all(streams)):
            steps.append(str(name))
    return steps


class FoundPositions(NamedTuple):
    """The start positions of the sources of a starting query.

    Attributes:
        positions: for each source, an offset as JSON, ``SeenFiles``, or None to start as in a new query.
        places: for each source, its index among the savepoint's sources, or None for a new source. The whole list is
            None if the savepoint's program or the new one has a source that combines Spark sources.
    """

    positions: list[Any]
    wrong: list[str]
    added: Sequence[str] = ()
    gone: Sequence[str] = ()
    places: list[int | None] | None = None
    in_order: bool = False


class _Line(NamedTuple):
    id: str
    title: str | None
    text: str


def find_positions(
    start: SavepointStart, noted: Sources, names: Sequence[str] | None, planned: Sequence[PositionedSource]
) -> FoundPositions:
    requested = start.positions
    if requested == NONE or (isinstance(requested, str) and not noted.offsets):
        return _checked([None] * len(planned), planned)
    if isinstance(requested, tuple):
        if len(requested) != len(planned):
            return FoundPositions(
                [], [f"positions= has {len(requested)} sources, but the program reads {_named(planned)}"]
            )
        return _checked(list(requested), planned)
    by_name = {} if isinstance(requested, str) else requested
    unknown = [name for name in by_name if name not in {source.title or source.known_as for source in planned}]
    if unknown:
        return FoundPositions(
            [],
            [
                f"positions= names {', '.join(map(repr, unknown))}, but the program has no source of that name that"
                f" reads a single Spark source; it reads {_named(planned)}"
            ],
        )
    lines = _lines(noted)
    has_titles = any(line.title for line in lines)
    then = [line.title for line in lines] if has_titles else _one_each(names, len(lines))
    now = [(source.title if has_titles else None) or source.known_as for source in planned]
    match = match_sources(then, now, start.renamed)
    if match is None:
        return FoundPositions(
            [], [f"it has positions of {len(lines)} sources, but the program reads {_named(planned)}: {_HINT}"]
        )
    places = [_savepoint_index(index, match.places, planned) for index in range(len(planned))]
    # Only in this case, the program determines which lines belong to the same source.
    in_order = not has_titles and places == [*range(len(lines))]
    positions: list[Any] = []
    for line_index, source in zip(places, planned):
        name = source.title or source.known_as
        if name is not None and name in by_name:
            positions.append(by_name[name])
        elif line_index is None:
            positions.append(None)
        else:
            line = lines[line_index]
            seen = noted.files.get(str(source.number) if in_order else line.id)
            position, problem = _position(line, seen, line_index, source)
            if problem is not None:
                return FoundPositions([], [problem])
            positions.append(position)
    return _checked(positions, planned)._replace(
        added=[str(name) for name, index in zip(now, places) if index is None and name not in by_name],
        gone=[str(then[index]) for index in match.gone],
        places=places if None not in then and all(source.known_as for source in planned) and not has_titles else None,
        in_order=in_order,
    )


def _lines(noted: Sources) -> list[_Line]:
    texts = OffsetEntry(noted.offsets).sources
    return [_Line(name, name if noted.are_named else None, text) for name, text in texts.items()]


def _one_each(names: Sequence[str] | None, lines: int) -> list[str | None]:
    return [*names] if names is not None and len(names) == lines else [None] * lines


def _savepoint_index(index: int, places: Sequence[int | None], planned: Sequence[PositionedSource]) -> int | None:
    number = planned[index].number
    same = [position for position, source in zip(places, planned) if source.number == number]
    return next((position for position in (places[index], *same) if position is not None), None)


def _position(line: _Line, seen: Sequence[str] | None, index: int, source: PositionedSource) -> tuple[Any, str | None]:
    position: Any = None if line.text == "-" else json.loads(line.text)
    was_files = isinstance(position, dict) and position.keys() == {"logOffset"}
    if position is not None and was_files != source.is_files:
        was = "files" if was_files else f"at position {line.text[:60]}"
        return None, f"Spark source {index + 1} was {was}, but is now {source.name}: {_HINT}"
    if not was_files:
        return position, None
    if position == BEGINNING:
        return None, None
    if seen is None:
        return None, f"it does not list the files that Spark source {index + 1} has read: {_HINT}"
    paths = paths_seen(seen, position["logOffset"])
    other = file_outside(source.name[len(_FILE_SOURCE) : -1], paths)
    if other is not None:
        return None, (
            f"Spark source {index + 1} has read {other}, but is now {source.name}, whose files would all count as new:"
            f" {_HINT}"
        )
    return SeenFiles(paths), None


def _checked(positions: list[Any], planned: Sequence[PositionedSource]) -> FoundPositions:
    problems = [
        f"Spark source {number} is {source.name}, which can start as in a new query or resume at the savepoint's"
        " position, but not at another position"
        for number, (position, source) in enumerate(zip(positions, planned), 1)
        if source.is_files and not isinstance(position, (SeenFiles, type(None)))
    ]
    problems += [
        f"Spark source {number} is {source.name}, which counts from the start of its query, so it has no position to"
        " resume from"
        for number, (position, source) in enumerate(zip(positions, planned), 1)
        if source.name == "rate" and position is not None
    ]
    if all(position is None for position in positions) and not any(
        source.is_files or source.has_beginning for source in planned
    ):
        problems.append(
            f"no source has a position, but the program reads {_named(planned)}: pass positions= with a position of one"
            " of them, as in Spark's offset log"
        )
    return FoundPositions(positions, problems)


def _named(planned: Sequence[PositionedSource]) -> str:
    return f"{len(planned)} ({', '.join(source.name for source in planned)})"


def placeholder_sources(
    spark: SparkSession, positions: Sequence[Any], planned: Sequence[PositionedSource], checkpoint: str
) -> DataFrame:
    """Return a streaming DataFrame without rows, with one source for each position."""
    # Spark runs an epoch only if a source's position changes.
    begins = any(position is not None and not isinstance(position, SeenFiles) for position in positions)
    first = None
    if not begins and not any(source.is_files for source in planned):
        first = next(source.number for source in planned if source.has_beginning)
    frames: dict[int, DataFrame] = {}
    spark.dataSource.register(Position)
    for position, source in zip(positions, planned):
        if source.number in frames:
            continue
        there = None
        if source.number == first:
            position = _initial_offset(spark, source, checkpoint)  # noqa: PLW2901
        elif isinstance(position, SeenFiles) or position is None:
            there = _existing_files(spark, position)
            position = _before_first_file(source) if there is None and source.is_files and not begins else None  # noqa: PLW2901
            begins = begins or there is not None or position is not None
        reader = spark.readStream if source.title is None else spark.readStream.name(source.title)
        if position is not None:
            frames[source.number] = reader.format("pillarbox_position").option("position", json.dumps(position)).load()
        else:
            frames[source.number] = _files(reader, there or _NO_FILES)
    # In the offset log's order.
    return reduce(lambda left, other: left.unionAll(other), [frames[source.number] for source in planned])


def _initial_offset(spark: SparkSession, source: PositionedSource, checkpoint: str) -> Any:
    # Where Kafka's source reads its initial offset.
    folder = f"{checkpoint}/sources/{source.number if source.title is None else source.title}"
    jvm(spark).SparkSession.setActiveSession(java_session(spark))
    stream = source.step.table().newScanBuilder(source.step.extraOptions()).build().toMicroBatchStream(folder)
    try:
        return json.loads(stream.initialOffset().json())
    finally:
        stream.stop()


def _before_first_file(source: PositionedSource) -> Any:
    if source.cleans:
        raise CheckpointMismatchError(
            f"all files that {source.name} has read are gone, and a query with Spark's option cleanSource cannot"
            " start then: start it without cleanSource, let one micro-batch commit, and restart it with the option"
        )
    return BEGINNING


def _existing_files(spark: SparkSession, position: SeenFiles | None) -> str | None:
    if not position or not position.paths:
        return None
    path = glob_of(position.paths)
    return None if unless_missing(lambda: _files(spark.read, path), None) is None else path


def _files(reader: DataFrameReader | DataStreamReader, path: str) -> DataFrame:
    # Without this option, folders such as day=1 would become columns.
    return reader.schema("value STRING").option("recursiveFileLookup", "true").text(path)
