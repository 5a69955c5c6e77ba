"""Reads and writes small files next to a checkpoint, through Hadoop or, as under Spark Connect, with DataFrames."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pillarbox._graph.description import json_object
from pillarbox._runtime.spark.session.folders import Folder, HadoopFolder, SparkFolder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "of [1] {a,b} %20" / "notes"


@pytest.fixture(params=[HadoopFolder, SparkFolder])
def folder(request: pytest.FixtureRequest, spark: SparkSession, path: Path) -> Folder:
    created_folder: Folder = request.param(spark, str(path))
    return created_folder


def test_a_folder_that_is_not_there_has_no_files(folder: Folder) -> None:
    assert folder.names() == []
    assert folder.lines() == []
    assert folder.lines(["1"]) == []


def test_lines_are_read_as_they_were_written(folder: Folder) -> None:
    texts = ['{"a": "ä\u2028b"}', "", "it's; `x` \\n ${y}"]
    for text in texts:
        folder.add_line(text)
    assert sorted(line for _, line in folder.lines()) == sorted(texts)
    assert len(folder.names()) == len(texts)


def test_files_by_name_and_none_that_is_hidden(folder: Folder, path: Path) -> None:
    path.mkdir(parents=True)
    for name in ("7", "8", "80", ".9.crc", "_begun", ".5.tmp"):
        (path / name).write_text(f"v1\n{name}\n")
    (path / "requests").mkdir()
    (path / "requests" / "deep").write_text("no file of the folder's\n")
    assert sorted(folder.names()) == ["7", "8", "80"]
    assert sorted(folder.lines(["8", "9", "7"])) == [("7", "7"), ("7", "v1"), ("8", "8"), ("8", "v1")]


def test_a_file_that_is_removed_meanwhile_has_no_lines(
    spark: SparkSession, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = HadoopFolder(spark, str(path))
    folder.add_line("one")
    monkeypatch.setattr(folder, "names", lambda: ["gone", *(file.name for file in path.glob("*.txt"))])
    assert [line for _, line in folder.lines()] == ["one"]


def test_a_line_is_written_as_a_whole_beside_others(spark: SparkSession, path: Path) -> None:
    folder = HadoopFolder(spark, str(path))
    seen: set[str] = set()
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(folder.add_line, f"{number:03d}" * 50) for number in range(60)]
        while not all(future.done() for future in writing):
            seen |= {line for _, line in folder.lines()}
    for future in writing:
        future.result()
    whole = {f"{number:03d}" * 50 for number in range(60)}
    assert seen <= whole
    assert {line for _, line in folder.lines()} == whole


def test_only_an_object_is_an_object() -> None:
    assert [json_object(line) for line in ('{"a": 1}', "[1]", "v1", "", "nul")] == [{"a": 1}, {}, {}, {}, {}]
