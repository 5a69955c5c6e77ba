from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pillarbox._runtime.spark.homes.settings import MODE, MOST
from tests.homes.conftest import Executor, wait_until
from tests.homes.libraries import BY_NAME, PLACES, TABLE, WORKS, Entry, outcome

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.fault,
    pytest.mark.slow("each entry of the table has homes, or a worker, of its own"),
    pytest.mark.skipif(sys.platform != "linux", reason="it looks at processes in /proc"),
]


def check(entry: Entry, setting: str, effect: str) -> None:
    if entry.in_place(setting) == WORKS:
        assert effect == WORKS, (entry.name, setting)
    else:
        assert entry.error in effect, (entry.name, setting)


@pytest.mark.parametrize("setting", ["homes", "shared homes"])
def test_in_homes(executor: Executor, tmp_path: Path, setting: str) -> None:
    settings = {MODE: "fork", MOST: "1" if setting == "shared homes" else "8"}
    for number, entry in enumerate(TABLE):
        folder, run = tmp_path / str(number), f"run of {entry.name}"
        folder.mkdir()
        result = outcome(entry, folder, run, **settings)
        check(entry, setting, result)
        if result == WORKS:
            assert len(executor.homes) >= (1 if setting == "shared homes" else 2), (
                "they may have processes of their own"
            )
        executor.keeper.ask("end", run=run, secrets=[], within=30.0)
        wait_until(lambda: not executor.homes)
        assert len([*folder.glob("of-*/end")]) == 2 * entry.at_the_end, entry.name


def test_in_workers(tmp_path: Path) -> None:
    code = "import sys; from tests.homes.libraries import play_workers; play_workers(*sys.argv[1:])"
    command = [sys.executable, "-c", code, str(tmp_path), *BY_NAME]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    document = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in document] == [*BY_NAME], done.stderr[-3000:]
    for name, text, ends in document:
        check(BY_NAME[name], "workers", text)
        assert ends == 2 * BY_NAME[name].at_the_end, name


def test_the_document_shows_the_table() -> None:
    """The page has a table row for each entry that does not work everywhere, and a list of all other entries."""
    text = (ROOT / "docs" / "execution.md").read_text()
    section = text.partition("### Libraries that change a process")[2].partition("\n## ")[0]
    header, line, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("|")
    ]
    works = [entry for entry in TABLE if {*map(entry.in_place, PLACES)} == {WORKS}]
    assert header == ["", *PLACES] and {*line} == {"---"}
    assert rows == [[entry.name, *map(entry.in_place, PLACES)] for entry in TABLE if entry not in works]
    paragraph = re.sub(r"\s+", " ", section.partition("All other tested calls and libraries")[2].partition(".\n\n")[0])
    names = paragraph.partition(" work in workers, homes, shared homes and on Spark Connect: ")[2]
    assert names.split("; ") == [entry.name for entry in works]
