"""Where sources begin behind a savepoint, from what it says of them; Spark itself is in tests/spark."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox.runtime.spark.seen_files import glob_of, paths_seen
from pillarbox.runtime.spark.source_positions import PlannedSource, SeenFiles, find_positions
from pillarbox.state.savepoint import Sources

FILES = PlannedSource("FileSource[/in]", 0)
KAFKA = PlannedSource("kafka", 1)
RATE = PlannedSource("rate", 0)


def noted(*lines: str, **seen: list[str]) -> Sources:
    files = {number[1:]: tuple(json.dumps({"path": path}) for path in paths) for number, paths in seen.items()}
    return Sources(("v1", "{}", *lines), files)


@pytest.mark.parametrize(
    ("paths", "glob"),
    [
        (["file:///in/a.json"], "file:///{in/a.json}"),
        (["file:///data/in/b", "file:///data/in/a"], "file:///data/{in/a,in/b}"),
        (["s3a://bucket/x/day=1/a", "s3a://bucket/x/day=2/a"], "s3a://bucket/{x/day=1/a,x/day=2/a}"),
        (["/x/y [1]/a{b,c}*?\\d"], r"/x/{y \\\[1\\\]/a\\\{b\\\,c\\\}\\\*\\\?\\\\d}"),
        (["/a[b]/in/c"], r"/a\[b\]/{in/c}"),
        (["/a"], "/{a}"),
    ],
)
def test_a_path_that_matches_these_files_alone(paths: list[str], glob: str) -> None:
    assert glob_of(paths) == glob


@pytest.mark.parametrize("paths", [["file:///a/b", "s3a://c/d"], ["no/full/path"]])
def test_no_path_for_these(paths: list[str]) -> None:
    with pytest.raises(CheckpointMismatchError):
        glob_of(paths)


def test_spark_notes_encoded_paths() -> None:
    assert paths_seen(['{"path":"file:///in/a%20b%2520%23.json","timestamp":1,"batchId":0}']) == [
        "file:///in/a b%20#.json"
    ]


def test_sources_go_on_where_they_were() -> None:
    topic = {"topic": {"0": 4711}}
    found, problems = find_positions(
        "savepoint", noted('{"logOffset":3}', json.dumps(topic), n0=["file:///in/a"]), [FILES, KAFKA]
    )
    assert (found, problems) == ([SeenFiles(["file:///in/a"]), topic], [])


def test_a_source_that_occurs_twice_has_two_lines() -> None:
    found, problems = find_positions(
        "savepoint", noted('{"logOffset":3}', '{"logOffset":3}', n0=["file:///in/a"]), [FILES, FILES]
    )
    assert found == [SeenFiles(["file:///in/a"])] * 2 and not problems


@pytest.mark.parametrize(
    ("wanted", "sources", "planned"),
    [
        ("none", noted('{"logOffset":3}', "{}", n0=["file:///in/a"]), [FILES, KAFKA]),
        ("savepoint", Sources(), [FILES, KAFKA]),
        ("savepoint", noted('{"logOffset":-1}', "-"), [FILES, KAFKA]),
        ((None, None), noted(), [FILES, KAFKA]),
    ],
)
def test_sources_begin_anew(wanted: Any, sources: Sources, planned: list[PlannedSource]) -> None:
    assert find_positions(wanted, sources, planned) == ([None, None], [])


@pytest.mark.parametrize(
    ("wanted", "sources", "planned", "says"),
    [
        (
            "savepoint",
            noted("{}"),
            [FILES, KAFKA],
            "it has positions of 1 sources, and the program reads 2 (FileSource",
        ),
        ("savepoint", noted('{"logOffset":3}', n0=[]), [KAFKA], "source 1 of Spark's was files, and is kafka"),
        ("savepoint", noted('{"topic":{"0":1}}'), [FILES], 'source 1 of Spark\'s was at {"topic"'),
        ("savepoint", noted('{"logOffset":3}'), [FILES], "does not say which files source 1"),
        ("savepoint", Sources(("v2", "{}", "{}"), {}), [KAFKA], "sources have names of their own (offset log v2)"),
        ("savepoint", noted("12"), [RATE], "which counts from the start of its query"),
        ("none", noted("12"), [KAFKA], "no source has a position, and the program reads 1 (kafka): give one of them"),
        (({},), noted("12"), [KAFKA, KAFKA], "positions has 1, and the program reads 2 (kafka, kafka)"),
        (({"a": 1},), noted("12"), [FILES], "which begins anew, or goes on where the savepoint has it"),
    ],
)
def test_positions_that_cannot_be(wanted: Any, sources: Sources, planned: list[PlannedSource], says: str) -> None:
    _, problems = find_positions(wanted, sources, planned)
    assert len(problems) == 1 and says in problems[0]
