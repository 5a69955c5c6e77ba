"""Shipped examples print the output in their READMEs, which equals plain Python's results.

The comparison leaves out measurements: times of day, and numbers before `retries` or after `epochs without rows:`. No
README shows lines with `rows/s`.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox.examples import copy, examples, main
from scripts import example_data
from tests.examples.shipped import ORACLES
from tests.support.docs import HOME

EXAMPLES = examples()
LONGEST_PROGRAM = 81  # lines
LARGEST = 1_000_000  # bytes
MEASURED = re.compile(r"\b\d\d:\d\d:\d\d(?=, SILENT)|\d+(?= retries)|(?<=epochs without rows: )\d+")


def comparable(output: str) -> list[str]:
    lines = [line for line in MEASURED.sub("N", output.strip()).splitlines() if not line.endswith(" rows/s")]
    return sorted(lines) if all("device" in line for line in lines[:2]) else lines


def shown(folder: Path) -> str:
    matches: list[str] = re.findall(r"^```\n(.*?)^```", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return matches[-1]


def run(*command: str, cwd: Path) -> str:
    installed = str(Path(pillarbox.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": installed, "PYSPARK_PYTHON": sys.executable, "TZ": "Asia/Kolkata"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_example_prints_in_a_session_what_its_readme_shows(spark: SparkSession, monkeypatch, capsys):
    monkeypatch.setattr(pillarbox, "local_session", lambda: spark)
    monkeypatch.setattr(sys, "argv", sys.argv)  # which the example gets for its own
    monkeypatch.setattr(sys, "path", [*sys.path])
    main(["orders_and_payments"])
    assert comparable(capsys.readouterr().out) == comparable(shown(EXAMPLES["orders_and_payments"]))


@pytest.mark.spark
@pytest.mark.long("each takes a session of its own, for what other tests have as well")
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_its_readme_shows(name: str, tmp_path: Path):
    output = run("-m", "pillarbox.examples", name, cwd=tmp_path)
    assert comparable(output) == comparable(shown(EXAMPLES[name]))
    assert output.count(" rows/s\n") == (2 if name == "clicks" else 0)
    if name == "weather_alarms":
        assert "<svg" in (tmp_path / "weather_alarms.svg").read_text()


@pytest.mark.parametrize("name", ORACLES)
def test_a_readme_shows_what_plain_python_finds(name: str):
    expected = ORACLES[name](EXAMPLES[name])
    assert expected, "an oracle that finds nothing tests nothing"
    lines = [" ".join(line.replace("|", " ").split()) for line in comparable(shown(EXAMPLES[name]))]
    assert [line for line in expected if line not in lines] == []


def test_no_example_starts_its_query_by_the_writers_own_method():
    folders = [*EXAMPLES.values(), *(HOME / "examples").iterdir()]
    programs = [path for folder in folders for path in [folder, *folder.glob("*.py")] if path.suffix == ".py"]
    assert len(programs) > 20
    calls = [
        (path.name, node.lineno)
        for path in programs
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start"
        if ".writeStream" in ast.unparse(node.func.value)
    ]
    assert calls == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_small_and_says_what_it_is(name: str):
    folder = EXAMPLES[name]
    assert re.match(r"# \S", (folder / "README.md").read_text())
    assert f"python -m pillarbox.examples {name}" in (folder / "README.md").read_text()
    assert len((folder / "program.py").read_text().splitlines()) <= LONGEST_PROGRAM
    data = [path for path in folder.rglob("*") if path.suffix in (".csv", ".parquet", ".jsonl")]
    assert sum(path.stat().st_size for path in data) <= LARGEST
    assert name in (HOME / "docs" / "examples.md").read_text()


def test_each_example_has_an_oracle():
    assert ORACLES.keys() == EXAMPLES.keys()


def test_no_readme_shows_rates():
    assert [name for name, folder in EXAMPLES.items() if "rows/s" in (folder / "README.md").read_text()] == []


@pytest.mark.slow("it makes all data anew")
def test_the_script_makes_the_same_data():
    files = example_data.files()
    assert [path for path, text in files.items() if path.read_text() != text] == []
    assert {path for folder in EXAMPLES.values() for path in folder.rglob("*.csv")} == files.keys()
    observed = example_data.weather()
    assert [path for path, table in observed.items() if not pq.read_table(path).equals(table)] == []
    assert {path for folder in EXAMPLES.values() for path in folder.rglob("*.parquet")} == observed.keys()


@pytest.mark.spark
@pytest.mark.long("a session of its own, for the same program in another folder")
def test_a_copy_runs_from_its_new_folder(tmp_path: Path):
    target = tmp_path / "mine"
    run("-m", "pillarbox.examples", "orders_and_payments", "--copy", str(target), cwd=tmp_path)
    (target / "payments.csv").write_text("id,at,amount\n")  # it reads its own data, without payments
    output = run(str(target / "program.py"), cwd=tmp_path)
    assert output.startswith("5000 orders that were not paid")


@pytest.mark.spark
@pytest.mark.long("a session of its own, for what the test before shows of another example")
def test_workers_find_the_modules_of_a_copy(tmp_path: Path):
    copy(EXAMPLES["score"], tmp_path / "mine")
    model = tmp_path / "mine" / "model.py"
    model.write_text(model.read_text().replace("[float(chance) for chance in", "[0.0 for _ in"))  # nothing is fraud
    output = run(str(tmp_path / "mine" / "program.py"), cwd=tmp_path)
    accuracies = [float(share) for share in re.findall(r"(0\.\d+)\|\n", output)]
    assert len(accuracies) == 3 and max(accuracies) < 0.7


def test_a_copy_has_files_in_the_order_of_their_names(tmp_path: Path):
    copy(EXAMPLES["dedupe_and_backfill"], tmp_path / "mine")
    files = sorted((tmp_path / "mine" / "live").iterdir())
    assert len(files) == 8
    assert files == sorted(files, key=lambda path: path.stat().st_mtime)


def test_the_program_of_a_copy_imports_the_modules_beside_it(tmp_path: Path):
    copy(EXAMPLES["score"], tmp_path / "mine")
    program = (tmp_path / "mine" / "program.py").read_text()
    assert "from model import predict, train" in program and (tmp_path / "mine" / "model.py").exists()
    assert "pillarbox.examples" not in program
