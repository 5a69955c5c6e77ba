from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import pillarbox
from examples.shipped.fraud.model import serve
from pillarbox.examples import copy, examples
from tests.support.docs import STEPS, modules

pytestmark = pytest.mark.spark

SHOWN = re.compile(
    r"^```console\n\$ python (?:-m pytest -q )?(\w+\.py)[^`]*^```\n\n```\n(.*?)^```", re.MULTILINE | re.DOTALL
)


def shown(step: Path) -> tuple[str, str]:
    (program, output), *_ = SHOWN.findall(step.read_text())
    return program, output.strip()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    copy(examples()["fraud"], tmp_path / "fraud")
    for step in STEPS:
        for name, source in modules(step).items():
            (tmp_path / "fraud" / f"{name}.py").write_text(source)
    return tmp_path / "fraud"


@pytest.fixture
def model() -> Iterator[int]:
    with serve(0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_each_step_has_a_program_and_what_it_prints():
    assert len(STEPS) == 7
    for step in STEPS:
        program, output = shown(step)
        assert program.removesuffix(".py") in modules(step) and output


@pytest.mark.long("five queries; spark/test_readme.py runs the programs of README and of other pages")
def test_programs_print_what_their_pages_show(spark: SparkSession, folder: Path, model: int, monkeypatch, capsys):
    monkeypatch.setattr(pillarbox, "local_session", lambda: spark)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    for step in STEPS[:5]:
        program, output = shown(step)
        # The session's Java runs in another folder, and the model at another port.
        source = re.sub(r'"(payments|\w+\.py)"', rf'"{folder}/\1"', (folder / program).read_text())
        source = source.replace(":8123/", f":{model}/")
        capsys.readouterr()
        exec(compile(source, program, "exec"), {"__name__": "__main__"})
        assert output in capsys.readouterr().out, step.name


def run(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=540, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.long("another pytest, which imports everything and simulates fifty schedules")
def test_the_tests_of_step_6_pass(folder: Path):
    _, output = shown(STEPS[5])
    assert output in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_fraud.py")


@pytest.mark.long("three drivers, one of which is killed; faults/ has many that are")
def test_the_job_of_step_7_is_killed_and_upgraded(folder: Path):
    _, output = shown(STEPS[6])
    with subprocess.Popen(
        [sys.executable, "job.py"], cwd=folder, stderr=subprocess.DEVNULL, start_new_session=True
    ) as job:
        commit = folder / "checkpoint" / "commits" / "2"
        while not commit.exists():
            assert job.poll() is None, "the job ended before it could be killed"
            time.sleep(0.1)
        os.killpg(job.pid, signal.SIGKILL)
    assert output in run(folder, "job.py")

    page = STEPS[6].read_text()
    run(folder, "-m", "pillarbox", "savepoint", "checkpoint", "savepoint-1")
    programs = {name: (folder / name).read_text() for name in ("detector.py", "job.py")}
    for change in re.findall(r"^```diff\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        before, after = (
            "".join(line[1:] for line in change.splitlines(keepends=True) if not line.startswith(sign)) for sign in "+-"
        )
        (name,) = (name for name, source in programs.items() if source.count(before) == 1)
        programs[name] = programs[name].replace(before, after)
    for name, source in programs.items():
        (folder / name).write_text(source)
    (more,) = re.findall(r"<<'END'\n(.*?)END\n", page, re.DOTALL)
    (folder / "payments" / "2026-03-02-18.csv").write_text(more)
    *_, matches = re.findall(r"^```\n(\+--.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert matches in run(folder, "job.py")
