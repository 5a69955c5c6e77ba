"""What a task hands over, as Arrow batches: how many there are, and what is in them."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from pillarbox.elements import ArrowRecords, Buffer, Records, TaskReport, encode
from pillarbox.graph import output_target
from pillarbox.runtime.spark.output import REPORT_TYPES, BufferOutput, ColumnOutput
from pillarbox.task import REPORT_TARGET

COLUMNS = pa.schema([("n", pa.int64()), ("name", pa.string())])
OUT, OTHER = output_target(0), output_target(1)
METRICS: dict[str, Any] = {**dict.fromkeys(REPORT_TYPES, 7), "counters": {"late": 3}}
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
    assert columns["report"][:3] == [None] * 3 and json.loads(columns["report"][3]) == vars(REPORT)
    assert list(output([rows(OTHER, (9, "z"))])) == []
    (batch,) = ColumnOutput({OUT: ("out", COLUMNS)}, None)([rows(OUT, (1, "a")), report()])
    assert batch.to_pylist() == [{"n": 1, "name": "a"}]


def test_several_outputs_are_beside_each_other():
    output = ColumnOutput({OUT: ("one", COLUMNS), OTHER: ("two", COLUMNS)}, "report")
    (batch,) = output([rows(OTHER, (1, "a")), rows(OUT, (2, "b"))])
    one, two = {"n": 2, "name": "b"}, {"n": 1, "name": "a"}
    assert batch.to_pylist() == [{"one": None, "two": two, "report": None}, {"one": one, "two": None, "report": None}]


def test_buffers_stay_as_they_are():
    sent = [Buffer(1, 5, 0, b"x"), Buffer(2, 5, 0, encode(Records([1])))]
    (batch,) = BufferOutput("report")([*sent, report()])
    assert [tuple(row.values())[:4] for row in batch.to_pylist()[:2]] == sent
    assert batch.column(0).null_count == 1 and json.loads(batch.column(4)[2].as_py()) == vars(REPORT)
    (batch,) = BufferOutput(None)([*sent, report()])
    assert [tuple(row.values()) for row in batch.to_pylist()] == sent
    assert list(BufferOutput(None)([report()])) == []


def test_very_much_at_once_becomes_several_batches():
    large = rows(OUT, *((n, "x" * 1000) for n in range(1000)))
    for output in (ColumnOutput({OUT: ("out", COLUMNS)}, "report"), BufferOutput("report")):
        batches = list(output([large] * 20 + [report()]))
        assert 4 <= len(batches) <= 6
        assert all(batch.nbytes < 6 * 1024 * 1024 for batch in batches)
        assert sum(batch.num_rows for batch in batches) == (20_001 if isinstance(output, ColumnOutput) else 21)
