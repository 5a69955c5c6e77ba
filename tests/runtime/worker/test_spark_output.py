from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyspark.sql.types as spark
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._elements.buffers import Buffer, encode
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._elements.task_report import TaskReport, report_of_text
from pillarbox._errors import ExchangeError
from pillarbox._graph.targets import output_target
from pillarbox._graph.transformations import DataFrameSource
from pillarbox._runtime.spark.rows import buffer_rows
from pillarbox._runtime.spark.rows.buffer_rows import (
    BUFFER_COLUMNS,
    PORTION_BYTES,
    BufferRows,
    as_rows,
    batch_settings,
    has_narrow_rows,
)
from pillarbox._runtime.spark.rows.output import BufferOutput, ColumnOutput
from pillarbox._task.vertex import REPORT_TARGET

COLUMNS = pa.schema([("n", pa.int64()), ("name", pa.string())])
OUT, OTHER = output_target(0), output_target(1)
METRICS: dict[str, Any] = {**dict.fromkeys(TaskReport.__annotations__, 7), "counters": {"late": 3}}
REPORT = TaskReport(**METRICS)


def rows(target: int, *values: tuple[int, str]) -> Buffer:
    columns = [pa.array(column, field.type) for column, field in zip(zip(*values), COLUMNS)]
    return Buffer(target, 5, 0, encode(ArrowRecords(pa.RecordBatch.from_arrays(columns, schema=COLUMNS))))


def report() -> Buffer:
    return Buffer(REPORT_TARGET, 5, 0, encode(REPORT))


def test_rows_and_metrics_share_a_batch():
    output = ColumnOutput({OUT: ("out", COLUMNS)}, "report")
    (batch,) = output([rows(OUT, (1, "a"), (2, "b")), rows(OTHER, (9, "z")), rows(OUT, (3, "c")), report()])
    columns = batch.to_pydict()
    assert (columns["n"], columns["name"]) == ([1, 2, 3, None], ["a", "b", "c", None])
    assert columns["report"][:3] == [None] * 3 and report_of_text(columns["report"][3]) == REPORT
    assert list(output([rows(OTHER, (9, "z"))])) == []
    (batch,) = ColumnOutput({OUT: ("out", COLUMNS)}, None)([rows(OUT, (1, "a")), report()])
    assert batch.to_pylist() == [{"n": 1, "name": "a"}]


def test_several_outputs_are_beside_each_other():
    output = ColumnOutput({OUT: ("one", COLUMNS), OTHER: ("two", COLUMNS)}, "report")
    (batch,) = output([rows(OTHER, (1, "a")), rows(OUT, (2, "b"))])
    first, second = {"n": 2, "name": "b"}, {"n": 1, "name": "a"}
    assert batch.to_pylist() == [
        {"one": None, "two": second, "report": None},
        {"one": first, "two": None, "report": None},
    ]


def test_buffers_stay_as_they_are():
    sent = [Buffer(1, 5, 0, b"x"), Buffer(2, 5, 0, encode(Records([1])))]
    (batch,) = BufferOutput("report")([*sent, report()])
    assert list(BufferRows().take(columns_of(batch.slice(0, 2)))) == sent
    assert batch.column(0).null_count == 1 and report_of_text(batch.column(6)[2].as_py()) == REPORT
    (batch,) = BufferOutput(None)([*sent, report()])
    assert batch.schema.names == [*BUFFER_COLUMNS] and list(BufferRows().take(columns_of(batch))) == sent
    (batch,) = BufferOutput("report")([report()])
    assert batch.num_rows == 1 and batch.schema.names == [*BUFFER_COLUMNS, "report"]
    assert list(BufferOutput(None)([report()])) == []


def columns_of(batch: pa.RecordBatch) -> list[list[Any]]:
    return [column.to_pylist() for column in batch.columns[: len(BUFFER_COLUMNS)]]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.binary(max_size=40)), max_size=8),
    st.integers(1, 12),
    st.randoms(use_true_random=False),
    st.integers(1, 20),
)
def test_buffers_are_rows_of_moderate_size_that_come_in_any_order(sent, size, random, frame):
    buffers = [Buffer(target, channel, seq, payload) for seq, (target, channel, payload) in enumerate(sent)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_rows, "_ROW_BYTES", size)
        every = list(zip(*(column.to_pylist() for column in as_rows(buffers))))
    assert all(len(row[-1]) <= size for row in every)
    random.shuffle(every)
    rows = BufferRows()
    results: list[Buffer] = []
    for start in range(0, len(every), frame):
        results += rows.take(list(zip(*every[start : start + frame])))
    rows.end()
    assert sorted(results) == sorted(buffers)


def test_a_missing_or_doubled_row_is_reported():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buffer_rows, "_ROW_BYTES", 2)
        first, second, last = zip(*(column.to_pylist() for column in as_rows([Buffer(1, 5, 3, b"12345")])))
    rows = BufferRows()
    assert list(rows.take(list(zip(first, last)))) == []
    with pytest.raises(ExchangeError, match="buffer 3 of channel 5 is incomplete: 2 of 3 rows arrived"):
        rows.end()
    with pytest.raises(ExchangeError, match="row 2 of buffer 3 of channel 5 arrived twice"):
        list(rows.take(list(zip(last))))
    assert list(rows.take(list(zip(second)))) == [(1, 5, 3, b"12345")]
    # A repeated part of a complete buffer begins a new, incomplete buffer.
    assert list(rows.take(list(zip(second)))) == []
    with pytest.raises(ExchangeError, match="1 of 3 rows"):
        rows.end()


def test_very_much_at_once_becomes_several_batches():
    large = rows(OUT, *((n, "x" * 1000) for n in range(1000)))
    for output in (ColumnOutput({OUT: ("out", COLUMNS)}, "report"), BufferOutput("report")):
        batches = list(output([large] * 20 + [report()]))
        assert 4 <= len(batches) <= 6
        assert all(batch.nbytes < 6 * 1024 * 1024 for batch in batches)
        parts = -(-len(large.payload) // 4096)
        expected = 20_000 if isinstance(output, ColumnOutput) else 20 * parts
        assert sum(batch.num_rows for batch in batches) == expected + 1


# -- settings --

RECORDS, BYTES = (f"spark.sql.execution.arrow.{name}PerBatch" for name in ("maxRecords", "maxBytes"))
KINDS: dict[str, spark.DataType] = {
    "LONG": spark.LongType(),
    "DOUBLE": spark.DoubleType(),
    "TIMESTAMP": spark.TimestampType(),
    "STRING": spark.StringType(),
    "ARRAY": spark.ArrayType(spark.LongType()),
}


def settings_for(schema: str | None, **user: str) -> dict[str, str]:
    session: Any = SimpleNamespace(conf=SimpleNamespace(get={RECORDS: "10000", **user}.get))
    are_narrow = False
    if schema is not None:
        fields = [spark.StructField(f"c{index}", KINDS[kind]) for index, kind in enumerate(schema.split(", "))]
        source: Any = object.__new__(DataFrameSource)
        source.dataframe = SimpleNamespace(schema=spark.StructType(fields))
        program: Any = SimpleNamespace(sources={0: source})
        are_narrow = has_narrow_rows(program)
    return batch_settings(session, user, are_narrow=are_narrow)


def test_bytes_are_bounded_by_spark_only_where_a_row_may_be_large():
    assert settings_for("LONG, DOUBLE, TIMESTAMP") == {BYTES: "2147483647"}
    assert settings_for("LONG, STRING") == settings_for("LONG, ARRAY") == settings_for(None) == {}
    assert settings_for(", ".join(["LONG"] * 401)) == {}
    assert settings_for("LONG", **{BYTES: "1000000"}) == {}


@pytest.mark.parametrize(("set_to", "needed"), [("0", "10000"), ("-1", "10000"), ("50000", "10000"), ("500", None)])
def test_the_rows_of_an_arrow_batch_are_bounded(set_to, needed):
    assert settings_for(None, **{RECORDS: set_to}).get(RECORDS) == needed


def test_a_task_takes_buffers_in_portions_however_many_spark_brings():
    sent = [Buffer(1, 0, number, bytes(700_000)) for number in range(60)]
    batch = pa.RecordBatch.from_arrays(as_rows(sent), list(BUFFER_COLUMNS))
    portions = list(BufferRows().portions(columns_of(batch)))
    assert [buffer for portion in portions for buffer in portion] == sent
    assert len(portions) == 10
    assert max(sum(len(buffer.payload) for buffer in portion[:-1]) for portion in portions) < PORTION_BYTES
    assert list(BufferRows().portions(columns_of(batch.slice(0, 5)))) == []
