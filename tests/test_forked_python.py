"""The tests' replacement for Spark's Python behaves like Python."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ASKED = """
import json, os, sys
said = [__name__, sys.argv[1:], os.environ.get("ASKED"), os.getcwd(), sys.stdin.read(), os.environ.get("PATH") is None]
print(json.dumps(said))
print("and more", file=sys.stderr)
sys.exit(7)
"""

HANGS = """
import os, time
print(os.getpid(), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def begin(workers_python: str, tmp_path: Path) -> Any:
    def begin(source: str, *arguments: str) -> subprocess.Popen[str]:
        (tmp_path / "asked.py").write_text(source)
        env = {"ASKED": "yes", "PYTHONPATH": str(tmp_path)}
        pipes: dict[str, Any] = dict.fromkeys(["stdin", "stdout", "stderr"], subprocess.PIPE)
        command = [workers_python, "-m", "asked", *arguments]
        return subprocess.Popen(command, env=env, cwd=tmp_path, text=True, **pipes)

    return begin


def test_a_module_has_arguments_environment_folder_and_streams(begin: Any, tmp_path: Path) -> None:
    for number in ("1", "2"):
        process = begin(ASKED, number, "a b")
        output, errors = process.communicate("hello")
        assert json.loads(output) == ["__main__", [number, "a b"], "yes", str(tmp_path), "hello", True]
        assert (errors, process.returncode) == ("and more\n", 7)


def test_it_ends_with_its_process_and_the_process_with_it(begin: Any) -> None:
    process = begin(HANGS)
    os.kill(int(process.stdout.readline()), signal.SIGKILL)
    assert process.wait() == 128 + signal.SIGKILL
    process.communicate()
    process = begin(HANGS)
    process.stdout.readline()
    process.terminate()
    assert process.stdout.read() == "", "the process, too, has its end of the pipe"
    process.communicate()


def test_anything_else_is_left_to_python(workers_python: str) -> None:
    command = [workers_python, "-c", "import sys; print(sys.prefix)"]
    assert subprocess.check_output(command, text=True) == f"{sys.prefix}\n"
