from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cases.rates.window_rows import WORKS, WindowBatches
from benchmarks.harness.contest import Contest, contest_page
from benchmarks.harness.process import SideFailed
from benchmarks.harness.rows import summary
from benchmarks.harness.runners import Contender

CONTENDERS = {
    "ours": Contender("pillarbox", "ours"),
    "spark": Contender("Spark's own", "spark"),
    "job": Contender("PyFlink", "flink", 2),
    "limit": Contender("(identity)", "limit"),
}


class FakeSide:
    def __init__(self, contest: Windows, name: str, kind: str) -> None:
        self.contest, self.name, self.kind = contest, name, kind
        self.numbers: dict[str, int] = {}

    def ask(self, method: str, **asked: Any) -> dict[str, Any]:
        if method == "run":
            return self.job(Path(asked["source"]), Path(asked["target"]))
        if method != "step":
            self.numbers.pop(asked["name"], None)
            return {}
        number = self.numbers.get(asked["name"], 0)
        self.numbers[asked["name"]] = number + 1
        self.contest.seen.append(asked["name"].strip())
        results = self.contest.batches(1).expected(number, self.kind)
        if asked["name"].strip() in self.contest.liars:
            results = [results[0] + 1, *results[1:]]
        return {"ms": self.contest.ms.get(asked["name"].strip(), 100), "cpu": 0.01, "results": results, "tasks": []}

    def job(self, source: Path, target: Path) -> dict[str, Any]:
        self.contest.seen.append(self.name)
        if self.name in self.contest.broken:
            raise SideFailed("Traceback\n  lines\nValueError: no such job\n  more")
        half = source.name
        rows = zip(*self.contest.batches(2).of_job(int(source.parent.name)))
        part = [row for row in rows if half == "whole" or row[0] % 2 == int(half)]
        target.write_text("".join(f"{','.join(map(str, row))}\n" for row in part))
        return {"seconds": 1.0}

    def close(self) -> None:
        pass


class Windows(Contest):
    contenders = CONTENDERS
    title = "a minute"

    def __init__(self, directory: Path, *, rounds: int = 2, batches: int = 2) -> None:
        arguments = argparse.Namespace(
            keys=20, rounds=rounds, batches=batches, warm_up_seconds=0, stores=["slow", "fast"]
        )
        super().__init__(arguments, directory)
        self.seen: list[str] = []
        self.ms = {"spark slow": 300, "spark fast": 200}
        self.liars: set[str] = set()
        self.broken: set[str] = set()

    def new_batches(self, share: int, path: Path) -> WindowBatches:
        return WindowBatches(WORKS["tumbling"], 200 // share, 40 // share, 20 // share, path)

    def new_process(self, name: str, kind: str) -> Any:
        return FakeSide(self, name, kind)

    def new_jobs(self, name: str, kind: str) -> list[Any]:
        return [FakeSide(self, name, kind) for _ in range(2)]


class Visits(Windows):
    visits = True


def test_in_rounds_each_contender_has_a_turn_in_each(tmp_path):
    contest = Windows(tmp_path)
    contest.run(["a work"], ["ours"], ["spark", "job", "limit"])
    assert contest.wrong == []
    warm_up = [*["ours"] * 4, *["spark"] * 4, "job", "job", *["limit"] * 4]
    one_round = ["ours", "ours", "spark", "spark", "job", "job", "limit", "limit"]
    assert contest.seen == [*warm_up, *one_round, *one_round]
    figures = contest.figures("a work", ["ours"])
    assert figures["rows_per_s"] == {"ours": 2_000, "spark": 2_000, "job": 100, "limit": 2_000}
    assert figures["over"] == {"ours": {"spark": 1, "job": 20, "limit": 1}}
    assert figures["cpu_s_per_1m_rows"] == {"ours": 50, "spark": 50, "limit": 50}
    assert {name: len(rounds) for name, rounds in figures["rounds"].items()} == {
        "ours": 4, "spark": 4, "job": 2, "limit": 4,
    }  # fmt: skip
    shown = contest_page(None, "work", "a minute", CONTENDERS, figures)
    assert "| PyFlink | 100 | 100 to 100 |  | 20.00 |" in shown


def test_in_visits_ours_has_a_turn_after_each_peer(tmp_path):
    contest = Visits(tmp_path)
    contest.run(["a work"], ["ours"], ["spark", "job"])
    spark, job, ours = ["spark"] * 6, ["job"] * 4, ["ours"] * 2
    assert contest.seen == [*["ours"] * 4, *spark, *ours, *job, *ours]
    assert {name: len(rounds) for name, rounds in contest.done["a work"].items()} == {"ours": 4, "spark": 2, "job": 1}


def test_the_fastest_store_is_the_one_that_counts(tmp_path):
    contest = Windows(tmp_path, rounds=1)
    contest.stores = {"slow": {}, "fast": {}}
    contest.run(["a work"], ["ours"], ["spark"])
    assert contest.seen[4:12] == ["spark slow", "spark fast"] * 4
    assert contest.seen[14:] == ["spark fast", "spark fast"]
    figures = contest.figures("a work", ["ours"])
    assert figures["store"] == "fast" and figures["over"] == {"ours": {"spark": 2}}


def test_wrong_results_are_noted(tmp_path):
    contest = Windows(tmp_path, rounds=1)
    contest.liars.add("spark")
    contest.run(["a work"], ["ours"], ["spark"])
    assert len(contest.wrong) == 6
    assert contest.wrong[0].startswith("Spark's own, number 0: [")


def test_a_peer_that_does_not_run_is_left_out_and_says_why(tmp_path):
    contest = Windows(tmp_path, rounds=1)
    contest.broken.add("job")
    contest.run(["one", "two"], ["ours"], ["job", "limit"])
    assert contest.left_out == {"job": "ValueError: no such job"}
    assert all(done.keys() == {"ours", "limit"} for done in contest.done.values())


@pytest.mark.parametrize(("half", "parity"), [("0", 0), ("1", 1)])
def test_a_job_has_half_of_the_keys(tmp_path, half, parity):
    batches = Windows(tmp_path).batches(2)
    text = (batches.path(2, "csv") / half / "rows.csv").read_text()
    keys = [int(line.split(",")[0]) for line in text.splitlines()]
    assert keys and all(key % 2 == parity for key in keys)
    assert summary(batches.of_job(2))[1] == sum(batches.columns(2)["amount"])
