from __future__ import annotations

import argparse
import os
import subprocess
import sys

import numpy as np
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from benchmarks.cases.rates.join import JoinBatches
from benchmarks.cases.rates.keyed import CountBatches
from benchmarks.cases.rates.window_rows import WORKS, WindowBatches
from benchmarks.harness.process import Side, SideFailed
from benchmarks.harness.rows import SUBTASKS, draw, read_rows, summary, write_halves
from benchmarks.harness.turns import extent, medians, rounded, table, turns


def test_sides_take_turns_and_every_other_round_goes_backwards():
    assert list(turns("ab", 2)) == [(-1, "a"), (-1, "b"), (0, "b"), (0, "a"), (1, "a"), (1, "b")]
    assert [index for index, _ in turns("a", 1, warm_up=3)] == [-3, -2, -1, 0]


def test_medians_and_rounding():
    assert medians({"a": [3, 1, 2], "b": [1.0, 2.0]}) == {"a": 2, "b": 1.5}
    assert rounded({"a": [1.26, {"b": 2.5}], "c": True, "d": None, "e": "x"}, 1) == {
        "a": [1.3, {"b": 2.5}], "c": True, "d": None, "e": "x",
    }  # fmt: skip
    assert rounded(1.7) == 2


def test_tables():
    assert table(["", "rows"], [["a", 1]]) == "|  | rows |\n| --- | ---: |\n| a | 1 |"
    assert extent([1_000, 2]) == "2 to 1,000"


def test_a_checksum_tells_rows_apart_but_not_their_order():
    key, n = np.array([1, 2, 3]), np.array([5, 6, 7])
    order = np.array([2, 0, 1])
    assert summary([key, n]) == summary([key[order], n[order]])
    assert summary([key, n])[:2] == [3, 18]
    assert summary([key, n]) != summary([key[order], n])  # as many rows with the same sum
    assert summary([]) == summary([key[:0], n[:0]]) == [0, 0, 0]


def test_results_are_read_as_jobs_write_them(tmp_path):
    (tmp_path / "plain").write_text("1,5\n2,6\n")
    (tmp_path / "flink").mkdir()
    (tmp_path / "flink" / "part").write_text("+I[3, 7]\n")
    (tmp_path / "empty").mkdir()
    rows = read_rows([tmp_path / "plain", tmp_path / "flink"])
    assert [column.tolist() for column in rows] == [[1, 2, 3], [5, 6, 7]]
    assert read_rows([tmp_path / "empty"]) == []


def test_rows_are_the_same_each_time_and_both_halves_end_together():
    key, ts, _ = draw([1, 2], 100, 10, 5_000, 1_000, disorder=50)
    again, same, _ = draw([1, 2], 100, 10, 5_000, 1_000, disorder=50)
    assert key.tolist() == again.tolist() and ts.tolist() == same.tolist()
    assert [ts[key % SUBTASKS == part].max() for part in range(SUBTASKS)] == [5_999, 5_999]
    assert ts.min() >= 4_950


def test_halves_are_written_in_two_files(tmp_path):
    folder = write_halves(tmp_path / "batch", key=np.arange(5), ts=np.arange(5))
    parts = [pq.read_table(path)["key"].to_pylist() for path in sorted(folder.iterdir())]
    assert parts == [[0, 2, 4], [1, 3]]


def windows(tmp_path, work="tumbling"):
    return WindowBatches(WORKS[work], 1_000, 100, 50, tmp_path)


def test_micro_batches_are_written_for_each_form(tmp_path):
    batches = windows(tmp_path)
    parquet = batches.path(3, "parquet")
    rows = sum(pq.read_table(path).num_rows for path in parquet.iterdir())
    assert rows == batches.length(3) == 1_000 and batches.length(0) == 100
    assert batches.path(3, "parquet") == parquet
    csv = batches.path(3, "csv")
    assert sorted(path.name for path in csv.iterdir()) == ["0", "1", "whole"]
    whole = pa_csv.read_csv(batches.path(3, "csv-whole") / "rows.csv")
    assert whole.column_names == ["key", "ts", "amount"] and whole.num_rows == 1_000


def counted(batches, number, late):
    results: dict[tuple[int, int], tuple[int, int]] = {}
    for index in range(number + 1):
        for key, ts, amount in zip(*(column.tolist() for column in batches.columns(index).values())):
            window = key, ts // 60_000 * 60_000
            n, total = results.get(window, (0, 0))
            results[window] = n + 1, total + amount
    ends = [int(batches.columns(index)["ts"].max()) - 5_000 for index in range(number + 1)]
    now = ends[number - 1] if late else ends[number]
    before = (ends[number - 2] if number > 1 else 0) if late else ends[number - 1]
    due = [(*window, *values) for window, values in results.items() if before < window[1] + 60_000 <= now]
    return summary(list(np.array(due).T))


@pytest.mark.parametrize(("kind", "late"), [("ours", False), ("spark", True)])
def test_expected_windows_are_those_that_a_plain_loop_counts(tmp_path, kind, late):
    batches = windows(tmp_path)
    assert batches.expected(3, kind) == counted(batches, 3, late)


def test_expected_pairs_are_those_that_a_plain_loop_finds(tmp_path):
    batches = JoinBatches(60, 20, 4, tmp_path)
    left, right = (batches.columns(3, side) for side in (0, 1))
    pairs = [
        (key, ts, other, amount + more)
        for key, ts, amount in zip(left["key"], left["ts"], left["amount"])
        for again, other, more in zip(right["key"], right["ts"], right["amount"])
        if key == again and abs(ts - other) <= 5_000
    ]
    assert pairs and summary(batches.of_job(3)) == summary(list(np.array(pairs).T))


def test_a_job_whose_watermark_goes_on_may_count_what_came_until_then(tmp_path):
    arguments = argparse.Namespace(rows=500, warm_up_rows=50, keys=9, flink_rows=300, flink_warm_up_rows=30)
    batches = CountBatches(arguments, 1, tmp_path)
    key, minute, n = batches.of_job(1)
    total = np.array([n[(key == k) & (minute <= end)].sum() for k, end in zip(key, minute)])
    assert batches.wrong_job(1, [key, minute, total]) == ""
    assert batches.wrong_job(1, [key, minute, total - 1]) != ""
    assert batches.wrong_job(1, [key[1:], minute[1:], total[1:]]) != ""


class Calculator:
    def __init__(self, start: int, closed: str) -> None:
        self.value = start
        self.closed = closed

    def add(self, number: int) -> dict[str, int]:
        print("not an answer")
        self.value += number
        return {"value": self.value, "pid": os.getpid()}

    def fail(self) -> None:
        raise ValueError("no such sum")

    def end(self) -> None:
        os._exit(3)

    def close(self) -> None:
        with open(self.closed, "w") as file:
            file.write("closed")


def test_a_side_is_an_object_in_a_process_of_its_own(tmp_path):
    side = Side(Calculator, start=40, closed=tmp_path / "closed")
    answer = side.ask("add", number=2)
    assert answer == {"value": 42, "pid": side.pid} and side.pid != os.getpid()
    with pytest.raises(SideFailed, match="no such sum"):
        side.ask("fail")
    assert side.ask("add", number=1)["value"] == 43
    side.close()
    assert (tmp_path / "closed").read_text() == "closed"


def test_a_side_that_ends_says_so(tmp_path):
    side = Side(Calculator, start=0, closed=tmp_path / "closed")
    with pytest.raises(SideFailed, match="ended with 3"):
        side.ask("end")
    with pytest.raises(SideFailed, match="ended with 3"):
        side.ask("add", number=1)
    side.close()


def test_imports_of_peers_need_neither_pillarbox_nor_spark():
    code = "import sys; import benchmarks.harness.process, benchmarks.harness.machine, benchmarks.peers.lookups;"
    code += "print(*sorted({'pillarbox', 'pyspark', 'numpy', 'pyarrow'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
