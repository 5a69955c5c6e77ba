"""Benchmark cases are complete, and print figures and one JSON object."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cases import CASES, load
from benchmarks.harness.case import Block, Outcome, run_case
from tests.support.docs import HOME

BENCHMARKS = HOME / "benchmarks"


def last_line(*command: str) -> tuple[str, dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *command], cwd=HOME, capture_output=True, text=True, check=True
    )
    *shown, last = done.stdout.splitlines()
    return "\n".join(shown), json.loads(last)


@pytest.mark.parametrize(
    ("case", "keys"),
    [
        ("mailbox", {"mails_per_s", "asyncio_calls_per_s", "rounds", "mails"}),
        pytest.param(
            "timers", {"heapq_ratio", "ratios", "operations_per_s", "keys"}, marks=pytest.mark.long("it measures")
        ),
        pytest.param(
            "state",
            {"bytes_ratio", "epoch_ms", "plain_dict_ratio", "memory_bytes_per_key", "touched", "epochs"},
            marks=pytest.mark.long("it measures"),
        ),
    ],
)
def test_the_cheapest_cases_end_with_their_figures(case, keys):
    shown, result = last_line(case, "--size", "small")
    assert result["name"] == case
    assert isinstance(result["ratio"], float) and result["ratio"] > 0
    assert result["results_agree"] is True
    assert keys <= result.keys()
    assert "| ---: |" in shown


def test_the_list_has_each_case_with_what_it_measures():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "list"], cwd=HOME, capture_output=True, text=True, check=True
    )
    lines = [line.split(None, 1) for line in done.stdout.splitlines()]
    assert [name for name, _ in lines] == list(CASES)
    assert all(len(words) > 20 for _, words in lines)


@pytest.mark.parametrize("name", CASES)
def test_a_case_says_its_method_and_has_a_small_size(name):
    case = load(name)
    assert len(case.__doc__.splitlines()) >= 5
    assert all(isinstance(block, Block) for block in case.BLOCKS.values())
    parser = argparse.ArgumentParser()
    case.options(parser)
    options = {action.dest for action in parser._actions}
    assert case.SMALL and case.SMALL.keys() <= options


class Doubtful:
    SMALL = {"rows": 3}
    BLOCKS: dict[str, Block] = {}

    @staticmethod
    def options(parser):
        parser.add_argument("--rows", type=int, default=1_000)

    @staticmethod
    def run(arguments, directory: Path) -> Outcome:
        wrong = [f"{arguments.rows} rows"] if directory.is_dir() else []
        return Outcome("doubtful", 1.23456, {"rows": arguments.rows}, wrong)

    @staticmethod
    def present(result, charts):
        return f"{result['rows']} rows were read"


def test_wrong_results_are_said_and_fail_the_run(capsys):
    with pytest.raises(SystemExit) as ended:
        run_case("doubtful", Doubtful, [])
    assert ended.value.code == 1
    *shown, last = capsys.readouterr().out.splitlines()
    assert "1000 rows were read" in shown
    assert "WRONG RESULTS: 1000 rows" in shown
    result = json.loads(last)
    assert (result["name"], result["ratio"], result["results_agree"], result["rows"]) == (
        "doubtful",
        1.235,
        False,
        1_000,
    )


@pytest.mark.parametrize(("options", "rows"), [([], 3), (["--rows", "7"], 7)])
def test_an_option_counts_more_than_the_size(capsys, options, rows):
    with pytest.raises(SystemExit):
        run_case("doubtful", Doubtful, ["--size", "small", *options])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["rows"] == rows


def test_files_and_folders_are_small():
    files = list(BENCHMARKS.rglob("*.py"))
    assert {path.name: len(path.read_text().splitlines()) for path in files if path.read_text().count("\n") > 500} == {}
    folders = {path.parent for path in files}
    assert [folder for folder in folders if len(list(folder.glob("*.py"))) > 16] == []
