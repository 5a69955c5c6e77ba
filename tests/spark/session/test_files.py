"""The small files beside a checkpoint: through Hadoop's file system, and by DataFrames as under Spark Connect."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pillarbox._graph.description import json_object
from pillarbox._runtime.spark import files
from pillarbox._runtime.spark.files import add_line, file_names, read_lines


@pytest.fixture(params=["file system", "DataFrames"])
def way(request, monkeypatch):
    if request.param == "DataFrames":
        monkeypatch.setattr(files, "is_classic", lambda spark: False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose name Spark could take for a pattern, and a URI for an escape."""
    return tmp_path / "of [1] {a,b} %20" / "notes"


@pytest.mark.usefixtures("way")
def test_a_folder_that_is_not_there_has_no_files(spark: SparkSession, folder: Path) -> None:
    assert file_names(spark, str(folder)) == []
    assert read_lines(spark, str(folder)) == []
    assert read_lines(spark, str(folder), ["1"]) == []


@pytest.mark.usefixtures("way")
def test_lines_are_read_as_they_were_written(spark: SparkSession, folder: Path) -> None:
    texts = ['{"a": "ä\u2028b"}', "", "it's; `x` \\n ${y}"]
    for text in texts:
        add_line(spark, str(folder), text)
    assert sorted(line for _, line in read_lines(spark, str(folder))) == sorted(texts)
    assert len(file_names(spark, str(folder))) == len(texts)


@pytest.mark.usefixtures("way")
def test_files_by_name_and_none_that_is_hidden(spark: SparkSession, folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in ("7", "8", "80", ".9.crc", "_begun", ".5.tmp"):
        (folder / name).write_text(f"v1\n{name}\n")
    (folder / "requests").mkdir()
    (folder / "requests" / "deep").write_text("no file of the folder's\n")
    assert sorted(file_names(spark, str(folder))) == ["7", "8", "80"]
    assert sorted(read_lines(spark, str(folder), ["8", "9", "7"])) == [("7", "7"), ("7", "v1"), ("8", "8"), ("8", "v1")]


def test_a_file_that_is_removed_meanwhile_has_no_lines(
    spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running query removes the oldest file of its logs with each epoch."""
    add_line(spark, str(folder), "one")
    monkeypatch.setattr(files._Folder, "names", lambda self: ["gone", *(path.name for path in folder.glob("*.txt"))])
    assert [line for _, line in read_lines(spark, str(folder))] == ["one"]


def test_a_line_is_written_as_a_whole_beside_others(spark: SparkSession, folder: Path) -> None:
    """Two applications may write at the same time, and a third one reads."""
    seen: set[str] = set()
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(add_line, spark, str(folder), f"{number:03d}" * 50) for number in range(60)]
        while not all(each.done() for each in writing):
            seen |= {line for _, line in read_lines(spark, str(folder))}
    for each in writing:
        each.result()
    whole = {f"{number:03d}" * 50 for number in range(60)}
    assert seen <= whole
    assert {line for _, line in read_lines(spark, str(folder))} == whole


def test_only_an_object_is_an_object() -> None:
    assert [json_object(line) for line in ('{"a": 1}', "[1]", "v1", "", "nul")] == [{"a": 1}, {}, {}, {}, {}]
