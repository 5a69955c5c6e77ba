from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import CheckpointMismatchError
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.checkpoint.damage import check_epoch, check_logs, damage_in

_OFFSETS = 'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":2}'


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    home = tmp_path / "checkpoint"
    for log, text in (("offsets", _OFFSETS), ("commits", 'v1\n{"nextBatchWatermarkMs":0}')):
        (home / log).mkdir(parents=True)
        for epoch in range(3):
            (home / log / str(epoch)).write_text(text)
    (home / "metadata").write_text('{"id":"c1b3ef2d-4b8a-4b31-9f14-6c4e3b1c1d5a"}')
    return home


def garbage(path: Path) -> None:
    path.write_bytes(b"\x00garbage")


def half(path: Path) -> None:
    path.write_text(path.read_text()[: len(path.read_text()) // 2])


def last_cut(path: Path) -> None:
    path.write_text(path.read_text()[:-1])


def empty(path: Path) -> None:
    path.write_text("")


def gone(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("damage", [garbage, half, last_cut, empty, gone])
@pytest.mark.parametrize("file", ["metadata", "offsets/2", "offsets/1", "commits/2"])
def test_a_damaged_file_is_named(
    spark: SparkSession, checkpoint: Path, file: str, damage: Callable[[Path], None]
) -> None:
    damage(checkpoint / file)
    if (file, damage) == ("commits/2", gone):  # the epoch was interrupted
        check_logs(spark, Checkpoint(spark, str(checkpoint)))
        return
    ways_out = {"metadata": "write {", "offsets": r"env\.from_savepoint\(\)", "commits": "delete it"}
    way_out = ways_out[file.partition("/")[0]]
    message = rf"the file {file} (is|cannot) .*: restore it.*{way_out}"
    with pytest.raises(CheckpointMismatchError, match=message):
        check_logs(spark, Checkpoint(spark, str(checkpoint)))
    if file != "metadata":  # which readers of state do not need
        epoch = int(file.partition("/")[2])
        with pytest.raises(CheckpointMismatchError, match=message):
            pillarbox.savepoint(spark, str(checkpoint), str(checkpoint.parent / "savepoint"), epoch=epoch)


def test_the_way_out_of_lost_metadata_works(spark: SparkSession, checkpoint: Path) -> None:
    gone(checkpoint / "metadata")
    with pytest.raises(CheckpointMismatchError) as caught:
        check_logs(spark, Checkpoint(spark, str(checkpoint)))
    [written] = re.findall(r"write (\{.*\}) into it", str(caught.value))
    (checkpoint / "metadata").write_text(written)
    check_logs(spark, Checkpoint(spark, str(checkpoint)))
    assert Checkpoint(spark, str(checkpoint)).query_id == json.loads(written)["id"]


def test_files_that_spark_does_not_read_may_be_lost(spark: SparkSession, checkpoint: Path) -> None:
    for file in ("offsets/0", "commits/0", "commits/1"):
        gone(checkpoint / file)
    (checkpoint / "offsets" / "3").write_text(_OFFSETS.replace('{"logOffset":2}', "-"))  # interrupted
    check_logs(spark, Checkpoint(spark, str(checkpoint)))
    check_epoch(spark, Checkpoint(spark, str(checkpoint)), 0, str(checkpoint))
    shutil.rmtree(checkpoint)
    check_logs(spark, Checkpoint(spark, str(checkpoint)))


@pytest.mark.parametrize(
    ("text", "file"),
    [
        (
            "[CANNOT_LOAD_STATE_STORE.CANNOT_READ_STREAMING_STATE_FILE] An error occurred during loading state. Error"
            " reading streaming state file of file:/c/state/0/1/3.changelog does not exist. If",
            "file state/0/1/3.changelog is damaged or missing",
        ),
        ("[CANNOT_LOAD_STATE_STORE.UNCATEGORIZED] An error occurred\n\tat /state/0/9", "a file in its folder state is"),
        (
            "[STDS_FAILED_TO_READ_OPERATOR_METADATA] Failed to read checkpointLocation=file:/c/state/0 and batchId=3.",
            "its file state/0 is damaged or missing",
        ),
        ("terminated with exception: batch 2 doesn't exist SQLSTATE: XXKST", "a source's file 2 in its folder"),
        ("[STREAM_FAILED] the table is locked", None),
    ],
)
def test_files_that_spark_finds_damaged(text: str, file: str | None) -> None:
    sentence = damage_in(["no damage", text], "/c")
    if file is None:
        assert sentence is None
    else:
        assert sentence is not None and file in sentence and "checkpoint /c: " in sentence and "restore" in sentence
