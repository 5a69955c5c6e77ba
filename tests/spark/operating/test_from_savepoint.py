"""Starts from a savepoint that are refused. (For accepted starts, see tests/faults/test_from_savepoint.py.)"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pillarbox
from pillarbox import CheckpointMismatchError, StreamExecutionEnvironment
from pillarbox._runtime.spark.savepoint.seen_files import SeenFiles
from pillarbox._runtime.spark.savepoint.source_positions import PositionedSource
from pillarbox._runtime.spark.starting.first_epoch import restored

pytestmark = pytest.mark.spark

# Names with a meaning in wildcard paths, and their pattern for the source.
FOLDER = "in [1], {a}"
_ANY = str.maketrans("[]{}", "????")


def test_restored_state_is_listed() -> None:
    sources = [
        PositionedSource("FileSource[in]", 0, known_as="read"),
        PositionedSource("rate", 1),
        PositionedSource("kafka", 2),
    ]
    positions = [SeenFiles(["a", "b"]), '{"offset":7}', None]
    assert restored({"sum": 1204, "spent": 1}, {"spent": "spent per card"}, sources, positions) == (
        "operator 'sum' (1,204 rows); operator 'spent' as 'spent per card' (1 row); source read resumes after 2 files;"
        " source rate resumes at '{\"offset\":7}'; source kafka starts as its own options define"
    )


def test_a_start_prints_what_it_restores(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.json").write_text('{"value": 1}\n{"value": 2}\n')

    def run(checkpoint: str, uid: str, savepoint: bool = False) -> None:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(1).set_max_parallelism(1)
        if savepoint:
            env.from_savepoint(str(tmp_path / "savepoint"), renamed={"sum": uid})
        rows = env.from_dataframe(spark.readStream.schema("value LONG").json(str(tmp_path / "in")), "read")
        sums = rows.key_by("value").sum("value").uid(uid).to_dataframe("value LONG")
        writer = sums.writeStream.format("noop").option("checkpointLocation", str(tmp_path / checkpoint))
        pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()

    run("first", "sum")
    pillarbox.savepoint(spark, str(tmp_path / "first"), str(tmp_path / "savepoint"))
    capsys.readouterr()
    run("second", "total", savepoint=True)
    [line] = [line for line in capsys.readouterr().err.splitlines() if "begins with the state of savepoint" in line]
    assert (
        f"checkpoint {tmp_path / 'second'} begins with the state of savepoint {tmp_path / 'savepoint'}, epoch 0" in line
    )
    assert "operator 'sum' as 'total' (2 rows); source read resumes after 1 file" in line


@pytest.mark.long("it runs a query for its words; tests/faults/test_from_savepoint.py starts from savepoints as well")
def test_starts_that_are_refused(spark: Any, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "0 *{x,y}? #%20.json").write_text('{"value": 1}\n{"value": 2}\n')
    source = str(tmp_path / FOLDER).translate(_ANY)

    def run(checkpoint: str, start: str | None = None, *, change: Any = None) -> None:
        env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        if start is not None:
            env.from_savepoint(str(tmp_path / start), allow_non_restored_state=False)
        numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        read = env.from_dataframe(spark.readStream.schema("value LONG").json(source), "read")
        both = read.union(env.from_dataframe(numbers.select("value"), "numbers"))
        rows = both.key_by("value").sum("value").uid("sum").to_dataframe("value LONG")
        if change is not None:
            rows = change(rows, numbers)
        writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / checkpoint))
        pillarbox.start(writer.trigger(once=True)).awaitTermination()

    run("first")
    pillarbox.savepoint(spark, str(tmp_path / "first"), str(tmp_path / "savepoint"))
    with pytest.raises(CheckpointMismatchError, match="was created without a savepoint"):
        run("first", "savepoint")
    with pytest.raises(CheckpointMismatchError) as caught:
        run(
            "other",
            "savepoint",
            change=lambda rows, numbers: rows.unionAll(numbers.select("value")).dropDuplicates(["value"]),
        )
    assert str(caught.value).splitlines()[1:] == [
        "  - the query reads 3 streaming sources, but the program reads only 2 of them: pass the others to the program,"
        " too, or read them in a separate query",
        "  - the query has other stateful Spark operators besides the program (Deduplicate), whose state is not in a"
        " savepoint: remove them, or move them into the program",
        f"  - it has positions of 2 sources, but the program reads 3 (FileSource[{source}], rate-micro-batch,"
        ' rate-micro-batch): pass positions="none", or a position for each source',
    ]
