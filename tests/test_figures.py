from __future__ import annotations

import json
import re

import pytest

from benchmarks.cases import CASES
from benchmarks.harness.case import Results
from benchmarks.report.pages import BLOCK, blocks, fill, filled, pages
from benchmarks.report.results import RESULTS, RUNS, command, read_results
from scripts import reference
from tests.support.docs import HOME

# Apparent measurements that are properties of Linux or settings.
NOT_MEASURED = {
    "async.md": ["400 ms", "200 ms"],  # pauses between attempts, from the options
    "performance.md": ["40 ms"],  # Linux acknowledges by TCP after that long
}
MEASURED = re.compile(
    r"[\d.,]*\d (?:ns|us|µs|ms|rows/s|(?:rows|records|keys) a second|(?:bytes )?(?:a|per) (?:key|row|record))\b"
    r"|[\d.,]*\d times (?:as (?:fast|long|much)|faster|slower)"
)
# It is written where README has a place for it.
OPTIONAL = {"first page"}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return read_results(charts=tmp_path_factory.mktemp("charts"))


@pytest.mark.long("it draws all charts")
def test_the_pages_and_charts_are_what_the_results_say(report):
    others = [str(page.relative_to(HOME)) for page, text in filled(report).items() if text != page.read_text()]
    assert others == [], "write them again: make bench-report"
    drawn = {path.name: path.read_text() for path in report.charts.glob("*.svg")}
    committed = {path.name: path.read_text() for path in RESULTS.glob("*.svg")}
    assert drawn.keys() == committed.keys()
    assert [name for name, chart in drawn.items() if chart != committed[name]] == [], "draw them: make bench-report"


def test_every_block_has_a_place():
    results, marks = [], []
    for page in pages():
        text = page.read_text()
        results += [block["name"] for block in BLOCK.finditer(text)]
        marks += re.findall(r"<!-- (?:begin|end) (.+?) -->", text)
    assert len(marks) == 2 * len(results)
    assert set(results) | OPTIONAL == blocks().keys()


def test_a_figure_that_is_not_what_was_measured_is_found(report):
    page = (HOME / "docs" / "operations.md").read_text()
    measured = f"{report['epoch']['epoch_ms']['pillarbox']['rows']} ms"
    assert page.count(measured) == 1
    assert fill(page.replace(measured, "1 ms"), report) == page


@pytest.mark.parametrize("page", [page for page in pages() if page.parent.name == "docs"], ids=lambda page: page.stem)
def test_words_by_hand_have_no_measured_figures(page):
    text = "" if page in reference.PAGES else BLOCK.sub("", page.read_text())
    by_hand = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    message = "a block of a case in benchmarks/cases writes a figure that a benchmark measured; others are left out"
    assert MEASURED.findall(by_hand) == NOT_MEASURED.get(page.name, []), message


def test_measured_figures_are_recognised():
    text = "391,000 rows a second, 12 times as fast, 0.5 us, 3 µs, 320 bytes a key, 30 seconds, 64 MiB, 5 times, 2 keys"
    assert MEASURED.findall(text) == [
        "391,000 rows a second", "12 times as fast", "0.5 us", "3 µs", "320 bytes a key",
    ]  # fmt: skip


def test_the_first_page_shows_figures_that_are_measured_and_what_is_slower_last(report):
    block = fill("# pillarbox\n<!-- begin first page -->\n<!-- end first page -->\n", report)
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| ")][2:]
    factors = [float(row[3].strip("*").partition(" ")[0]) for row in rows]
    slower = ["slower" in row[3] for row in rows]
    assert slower == [factor < 1 for factor in factors] == sorted(slower)
    assert {row[4].removeprefix("`make bench-").removesuffix("`") for row in rows} <= CASES.keys()
    spark = report["keyed"]["rows_per_s"]["pillarbox"] / report["keyed"]["rows_per_s"]["rows"]
    assert factors[0] == pytest.approx(spark, rel=0.05)
    for figure in (f"{report.runs['keyed']['machine']['cores']} cores", report["keyed"]["spark"]):
        assert figure in block
    assert report.runs["join"]["date"] in block


def test_blocks_without_a_result_stay_unchanged(report, tmp_path):
    notes: list[str] = []
    page = "<!-- begin join -->\n1,000,000 rows a second\n<!-- end join -->\n"
    assert fill(page, Results({"keyed": report.runs["keyed"]}, tmp_path), notes) == page
    assert notes == ["join: left as it is, join was not run"]
    with pytest.raises(SystemExit, match="'joins' is no block"):
        fill(page.replace("join -->", "joins -->"), report)


def test_memory_of_a_key_has_the_kinds_of_state_once_they_are_measured(report):
    page = "<!-- begin memory of a key -->\n<!-- end memory of a key -->\n"
    kinds = {"a number": {"memory": 1_234, "written": 56}}
    record = {"command": "make bench-key-cost", "result": {"name": "key_cost", "ratio": 1, "kinds": kinds}}
    text = fill(page, Results({**report.runs, "key-cost": record}, report.charts))
    assert "| a number | 1,234 | 56 |" in text
    assert f"{report['state']['memory_bytes_per_key']} bytes" in " ".join(text.split())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_are_what_was_measured_and_no_goals(path):
    record = json.loads(path.read_text())
    assert path.stem in RUNS and {"command", "date", "machine", "result"} <= record.keys()
    assert record["result"]["name"] and record["result"]["ratio"] > 0
    assert not re.search(r'"(\w+_)?bars?(_\w+)?":', path.read_text())


def test_each_run_has_a_command():
    assert {case for case, _ in RUNS.values()} <= CASES.keys()
    assert command("recovery") == 'make bench-recovery ARGS="--spark-keys 100000 1000000 5000000"'
