"""The start positions of sources after a start from a savepoint, computed without Spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._graph.savepoint_start import SavepointStart
from pillarbox._runtime.spark.savepoint import seen_files
from pillarbox._runtime.spark.savepoint.seen_files import SeenFiles, file_outside, glob_of, paths_seen
from pillarbox._runtime.spark.savepoint.source_positions import FoundPositions, PositionedSource
from pillarbox._runtime.spark.savepoint.source_positions import find_positions as find
from pillarbox._state.savepoint.manifest import Sources

FILES = PositionedSource("FileSource[/in]", 0)
KAFKA = PositionedSource("kafka", 1)
RATE = PositionedSource("rate", 0)


def start(positions: Any = "savepoint", **renamed: str) -> SavepointStart:
    return SavepointStart.of("savepoint", False, renamed, positions)


def find_positions(selected: Any, noted: Sources, planned: list[PositionedSource]) -> tuple[list[Any], list[str]]:
    return find(start(selected), noted, None, planned)[:2]


def noted(*lines: str, **seen: list[str]) -> Sources:
    files = {number[1:]: tuple(json.dumps({"path": path}) for path in paths) for number, paths in seen.items()}
    return Sources(("v1", "{}", *lines), files)


@pytest.mark.parametrize(
    ("paths", "glob"),
    [
        (["file:///in/a.json"], "file:///{in/a.json}"),
        (["file:///data/in/b", "file:///data/in/a"], "file:///data/{in/{a,b}}"),
        (["/in/x/a", "/in/b", "/in/x/c", "/in/x/a/c"], "/{in/b,in/x/{a,c},in/x/a/c}"),
        (["s3a://bucket/x/day=1/a", "s3a://bucket/x/day=2/a"], "s3a://bucket/{x/day=1/a,x/day=2/a}"),
        (["/x/y [1]/a{b,c}*?\\d"], r"/x/{y \\\[1\\\]/a\\\{b\\\,c\\\}\\\*\\\?\\\\d}"),
        (["/a[b]/in/c"], r"/a\[b\]/{in/c}"),
        (["/a"], "/{a}"),
        (["/b", "/a*"], r"/{{a\*,b}}"),
        (["/b", "/a*", "/x/c"], r"/{{a\\\*,b},x/c}"),
    ],
)
def test_a_path_that_matches_these_files_alone(paths: list[str], glob: str) -> None:
    assert glob_of(paths) == glob


def test_very_many_files_of_a_folder_are_looked_for_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen_files, "_TOGETHER", 2)
    assert glob_of([f"/in/{name}" for name in "edcba"]) == "/{in/{a,b},in/{c,d},in/e}"


@pytest.mark.parametrize("paths", [["file:///a/b", "s3a://c/d"], ["no/full/path"], ["s3a://b/10:00", "s3a://b/x"]])
def test_no_path_for_these(paths: list[str]) -> None:
    with pytest.raises(CheckpointMismatchError):
        glob_of(paths)


@pytest.mark.parametrize(
    ("folder", "path", "is_inside"),
    [
        ("/in", "file:///in/a", True),
        ("/in/", "file:///in/day=1/a", True),
        ("file:/in", "file:///in/a", True),
        ("/", "file:///in/a", True),
        ("/in2", "file:///in/a", False),
        ("/in/2024", "file:///in/a", False),
        ("s3a://bucket/in", "s3a://bucket/in/a", True),
        ("s3://bucket/in", "s3a://bucket/in/a", True),
        ("s3a://other/in", "s3a://bucket/in/a", False),
        ("hdfs:///in", "hdfs://name:8020/in/a", True),
        ("/in*", "file:///elsewhere/a", True),
        ("in", "file:///elsewhere/a", True),
    ],
)
def test_the_folder_of_a_source_has_changed(folder: str, path: str, is_inside: bool) -> None:
    assert file_outside(folder, [path]) == (None if is_inside else path)


def test_spark_notes_encoded_paths() -> None:
    lines = [json.dumps({"path": f"file:///in/{name}", "timestamp": 1, "batchId": name}) for name in range(3)]
    assert paths_seen(lines, 1) == ["file:///in/0", "file:///in/1"]
    assert paths_seen(['{"path":"file:///in/a%20b%2520%23.json","timestamp":1,"batchId":0}'], 0) == [
        "file:///in/a b%20#.json"
    ]


def test_sources_go_on_where_they_were() -> None:
    topic = {"topic": {"0": 4711}}
    positions, problems = find_positions(
        "savepoint", noted('{"logOffset":3}', json.dumps(topic), n0=["file:///in/a"]), [FILES, KAFKA]
    )
    assert (positions, problems) == ([SeenFiles(["file:///in/a"]), topic], [])


def test_a_source_that_occurs_twice_has_two_lines() -> None:
    positions, problems = find_positions(
        "savepoint", noted('{"logOffset":3}', '{"logOffset":3}', n0=["file:///in/a"]), [FILES, FILES]
    )
    assert positions == [SeenFiles(["file:///in/a"])] * 2 and not problems


@pytest.mark.parametrize(
    ("selected", "sources", "planned"),
    [
        ("none", noted('{"logOffset":3}', "{}", n0=["file:///in/a"]), [FILES, KAFKA]),
        ("savepoint", Sources(), [FILES, KAFKA]),
        ("savepoint", noted('{"logOffset":-1}', "-"), [FILES, KAFKA]),
        ((None, None), noted(), [FILES, KAFKA]),
    ],
)
def test_sources_begin_anew(selected: Any, sources: Sources, planned: list[PositionedSource]) -> None:
    assert find_positions(selected, sources, planned) == ([None, None], [])


@pytest.mark.parametrize(
    ("selected", "sources", "planned", "says"),
    [
        (
            "savepoint",
            noted("{}"),
            [FILES, KAFKA],
            "it has positions of 1 sources, but the program reads 2 (FileSource",
        ),
        ("savepoint", noted('{"logOffset":3}', n0=[]), [KAFKA], "Spark source 1 was files, but is now kafka"),
        ("savepoint", noted('{"topic":{"0":1}}'), [FILES], 'Spark source 1 was at position {"topic"'),
        ("savepoint", noted('{"logOffset":3}'), [FILES], "does not list the files that Spark source 1"),
        (
            "savepoint",
            noted('{"logOffset":3}', n0=["file:///other/a"]),
            [FILES],
            "Spark source 1 has read file:///other/a, but is now FileSource[/in], whose files would all count as new",
        ),
        ("savepoint", noted("12"), [RATE], "which counts from the start of its query"),
        ("none", noted("12"), [KAFKA], "no source has a position, but the program reads 1 (kafka): pass positions="),
        (({},), noted("12"), [KAFKA, KAFKA], "positions= has 1 sources, but the program reads 2 (kafka, kafka)"),
        (({"a": 1},), noted("12"), [FILES], "which can start as in a new query or resume at the savepoint's position"),
    ],
)
def test_positions_that_cannot_be(selected: Any, sources: Sources, planned: list[PositionedSource], says: str) -> None:
    _, problems = find_positions(selected, sources, planned)
    assert len(problems) == 1 and says in problems[0]


def topic(offset: int) -> str:
    return json.dumps({"topic": {"0": offset}})


def kafka(*names: str | None, titles: bool = False) -> list[PositionedSource]:
    return [
        PositionedSource("kafka", number, title=name if titles else None, known_as=name, has_beginning=True)
        for number, name in enumerate(names)
    ]


def offsets(positions: FoundPositions) -> list[Any]:
    assert not positions.wrong
    return [position and position["topic"]["0"] for position in positions.positions]


@pytest.mark.parametrize(
    ("then", "now", "renamed", "is_at", "added", "gone"),
    [
        (["a", "b"], ["a", "b"], {}, [0, 1], [], []),
        (["a", "b"], ["b", "a"], {}, [1, 0], [], []),
        (["a", "b"], ["c", "b", "a"], {}, [None, 1, 0], ["c"], []),
        (["a", "b", "c"], ["c"], {}, [2], [], ["a", "b"]),
        (["a"], ["b"], {}, [None], ["b"], ["a"]),
        (["a", "b"], ["c", "b"], {"a": "c"}, [0, 1], [], []),
        (["dataframe"], ["a"], {}, [0], [], []),
        (["a", "dataframe"], ["dataframe", "b"], {}, [1, None], ["b"], ["a"]),
        (["dataframe", "dataframe"], ["a", "b"], {}, [0, 1], [], []),
        (["dataframe"], ["dataframe", "b"], {}, [0, None], ["b"], []),
        ([None, None], ["a", "b"], {}, [0, 1], [], []),
    ],
)
def test_sources_are_known_by_their_names(
    then: Any, now: list[str], renamed: dict[str, str], is_at: list[Any], added: list[str], gone: list[str]
) -> None:
    names = None if None in then else then
    positions = find(start(**renamed), noted(*map(topic, range(len(then)))), names, kafka(*now))
    assert (offsets(positions), list(positions.added), list(positions.gone)) == (is_at, added, gone)


def test_files_seen_are_found_by_the_place_that_the_source_had() -> None:
    files = [PositionedSource("FileSource[/in]", 0, known_as="files"), *kafka(None, "topic")[1:]]
    result = find(start(), noted(topic(7), '{"logOffset":0}', n1=["file:///in/a"]), ["topic", "files"], files)
    assert result.positions == [SeenFiles(["file:///in/a"]), {"topic": {"0": 7}}] and not result.wrong


def test_names_that_spark_was_given_are_in_its_log() -> None:
    sources = Sources(("v2", "{}", f"b:{topic(2)}", "c:-", f"a:{topic(1)}"), {})
    positions = find(start(), sources, ["x", "y", "z"], kafka("a", "new", "b", titles=True))
    assert offsets(positions) == [1, None, 2]
    assert (positions.added, positions.gone, positions.places) == (["new"], ["c"], None)


def test_a_log_of_the_second_version_without_names() -> None:
    sources = Sources(("v2", "{}", *(f"{number}:{topic(number)}" for number in (10, 2, 0, *range(3, 10), 1))), {})
    assert offsets(find(start(), sources, None, kafka(*"abcdefghijk"))) == [*range(11)]


def test_positions_of_some_sources_by_name() -> None:
    then = noted(topic(1), topic(2))
    started = start({"b": {"topic": {"0": 70}}, "c": None})
    assert offsets(find(started, then, ["a", "b"], kafka("a", "b", "c"))) == [1, 70, None]
    refused = find(started, then, ["a", "b"], kafka("a", "b"))
    assert "positions= names 'c', but the program has no source of that name" in refused.wrong[0]
    edited = find(start({"b": {"topic": {"0": 70}}}), Sources(), None, kafka("a", "b"))
    assert offsets(edited) == [None, 70]


def test_sources_without_names_of_their_own_cannot_be_told_apart() -> None:
    positions = find(start(), noted(topic(1), topic(2)), ["dataframe", "dataframe"], kafka("dataframe"))
    assert "it has positions of 2 sources, but the program reads 1 (kafka)" in positions.wrong[0]


def test_a_source_that_tells_its_beginning_needs_no_position() -> None:
    assert offsets(find(start("none"), noted(topic(1)), None, kafka("a"))) == [None]
