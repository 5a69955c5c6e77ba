# SPDX-License-Identifier: Apache-2.0
"""The set-up. Lock files have no URLs, and ``scripts/setup.sh`` makes uv install them once.

Scripts that record their calls replace uv, pip and Java.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LOCKS = sorted(path.relative_to(ROOT) for path in (*ROOT.glob("*.lock"), *ROOT.glob("tests/versions/*.lock")))

UV = """#!/bin/sh
echo "$UV_DEFAULT_INDEX: $*" >>uv.log
for last in "$@"; do if [ "$before" = --target ]; then mkdir -p "$last"; fi; before=$last; done
case "$*" in
    *" venv "*) mkdir -p "$last/bin" && ln -s {python} "$last/bin/python" ;;
    *"--editable"*) test ! -e broken ;;
esac
"""
PIP = """#!/bin/sh
echo "global.index-url='{index}'"
"""
GO = """#!/bin/sh
mkdir -p "$GOBIN" && echo "$*" >"$GOBIN/versitygw" && chmod +x "$GOBIN/versitygw"
"""
JAVA = """#!/bin/sh
echo '    java.home = {home}' >&2
echo '    java.specification.version = {version}' >&2
"""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def write_java(home: Path, version: str) -> None:
    write_program(home / "bin" / "java", JAVA.format(home=home, version=version))


class Clone:
    """A clone of the files for the set-up, on a machine with only these replacements."""

    def __init__(self, root: Path) -> None:
        self.root = root / "clone"
        self.tools = root / "tools"
        for name in map(str, ("scripts/setup.sh", "pyproject.toml", *LOCKS)):
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.root / name)
        write_program(self.tools / "uv", UV.format(python=sys.executable))
        write_program(self.tools / "pip", PIP.format(index="mirror-of-pip"))
        self.env = {
            "PATH": f"{self.tools}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(root),
            "JAVA_HOME": str(root / "java-21"),
            "JAVA_DIRS": str(root / "no-java"),
            "SETUP_INSTALL": "no",
        }
        write_java(root / "java-21", "21")

    def hide_java(self) -> None:
        system = self.tools.with_name("system")
        system.mkdir()
        for name in ("sh", "awk", "cat", "cksum", "dirname", "head", "id", "ln", "mkdir", "printenv", "rm", "sed"):
            (system / name).symlink_to(str(shutil.which(name)))
        self.env["PATH"] = f"{self.tools}{os.pathsep}{system}"

    def set_up(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", str(self.root / "scripts" / "setup.sh"), *arguments]
        return subprocess.run(command, env={**self.env, **env}, capture_output=True, text=True, check=False)

    def asked(self) -> list[str]:
        log = self.root / "uv.log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


@pytest.mark.parametrize("lock", LOCKS, ids=str)
def test_a_lock_file_names_no_place_and_each_package_has_its_version_and_hashes(lock):
    text = (ROOT / lock).read_text()
    assert "://" not in text
    for package in text.replace("\\\n", "").splitlines():
        assert package[0].isalnum() and "==" in package and "--hash=sha256:" in package


def test_uv_makes_the_environment_from_the_index_that_pip_uses_and_a_second_call_does_nothing(clone):
    assert clone.set_up().returncode == 0
    venv, packages, project = clone.asked()
    assert venv == "mirror-of-pip: -q venv --python >=3.10,<3.15 .venv"
    assert packages == "mirror-of-pip: -q pip sync --python .venv --require-hashes requirements.lock"
    assert project.endswith("--no-deps --editable .")
    assert (clone.root / ".venv" / "java_home").read_text() == f"{clone.env['JAVA_HOME']}\n"
    assert clone.set_up().stderr == ""
    assert clone.asked() == []


def test_settings_of_uv_take_precedence_over_settings_of_pip(clone):
    clone.set_up(UV_DEFAULT_INDEX="mirror-of-uv")
    assert {line.partition(":")[0] for line in clone.asked()} == {"mirror-of-uv"}


def test_another_lock_file_or_python_makes_the_environment_anew(clone):
    clone.set_up()
    clone.asked()
    with (clone.root / "requirements.lock").open("a") as lock:
        lock.write("another==1 --hash=sha256:0\n")
    clone.set_up()
    assert len(clone.asked()) == 3
    clone.set_up(PYTHON=sys.executable)
    assert clone.asked()[0].endswith(f"--python {sys.executable} .venv")


def test_an_environment_that_uv_failed_to_create_is_created_by_the_next_call(clone):
    (clone.root / "broken").touch()
    failed = clone.set_up()
    assert (failed.returncode, failed.stderr.splitlines()[-1]) == (
        1,
        "[setup] ERROR: uv could not make .venv (see above).",
    )
    (clone.root / "broken").unlink()
    assert clone.set_up().returncode == 0
    assert len(clone.asked()) == 6


def test_other_environments_are_made_once(clone):
    clone.set_up()
    clone.asked()
    assert clone.set_up("spark", "4.1", "4.2").returncode == 0
    for version, asked in zip(("4.1", "4.2"), clone.asked()):
        assert asked.endswith(f"--target .venvs/spark-{version} --no-deps -r tests/versions/spark-{version}.lock")
    assert clone.set_up("worker").returncode == 0
    assert "--constraints requirements.lock" in clone.asked()[1]
    clone.set_up("spark", "4.2")
    clone.set_up("worker")
    assert clone.asked() == []


def test_without_java_one_sentence_says_what_to_do_before_anything_is_made(clone):
    clone.hide_java()
    done = clone.set_up(JAVA_HOME="")
    assert (done.returncode, done.stderr) == (
        1,
        "[setup] ERROR: Spark needs Java 17 or newer: please install one, or set JAVA_HOME to where one is.\n",
    )
    assert clone.asked() == []


def test_the_java_is_one_that_spark_is_known_to_run_on_and_else_a_newer_one(clone, tmp_path):
    clone.hide_java()
    for version in ("1.8", "24", "17"):
        write_java(tmp_path / f"java-{version}", version)
    chosen = clone.root / ".venv" / "java_home"
    old, newer, fit = (str(tmp_path / f"java-{version}") for version in ("1.8", "24", "17"))
    done = clone.set_up(JAVA_HOME=old, JAVA_DIRS=f"{old} {newer} {fit}")
    assert done.stderr.startswith(f"[setup] JAVA_HOME={old} holds no Java 17 or newer; looking elsewhere\n")
    assert chosen.read_text() == f"{fit}\n"
    clone.set_up(JAVA_HOME=newer, JAVA_DIRS=fit)
    assert chosen.read_text() == f"{newer}\n"
    done = clone.set_up(JAVA_HOME="", JAVA_DIRS=f"{old} {newer}")
    assert done.stderr == "[setup] found only Java 24, which Spark may not run on; trying it\n"
    assert chosen.read_text() == f"{newer}\n"


def test_the_gateway_of_the_tests_is_built_once(clone):
    write_program(clone.tools / "go", GO)
    (version,) = re.findall(r'^VERSION = "(.+)"$', (ROOT / "tests" / "s3" / "gateway.py").read_text(), re.MULTILINE)
    assert clone.set_up("s3").returncode == 0
    program = clone.root / ".venvs" / f"versitygw-{version}" / "versitygw"
    assert program.read_text() == f"install github.com/versity/versitygw/cmd/versitygw@v{version}\n"
    (clone.tools / "go").unlink()
    assert clone.set_up("s3").returncode == 0
