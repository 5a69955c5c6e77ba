"""``make zip``: the archive for ``--py-files``. (Queries with it: ``tests/versions``.)"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def build(out: Path, root: Path = ROOT) -> bytes:
    subprocess.run([sys.executable, str(root / "scripts" / "zip_package.py"), str(out)], check=True, cwd="/")
    return out.read_bytes()


def copy(root: Path, files: list[str], when: int) -> Path:
    for name in ["scripts/zip_package.py", *files]:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes((ROOT / name).read_bytes())
        (root / name).chmod(0o644 if when % 2 else 0o600)
        os.utime(root / name, (when, when))
    return root


def test_two_builds_are_equal_whenever_and_wherever_the_files_were_written(tmp_path: Path) -> None:
    files = [f"src/pillarbox/{name}" for name in ("daemon.py", "_time/valve.py", "__init__.py", "py.typed")]
    first = copy(tmp_path / "one", files, 1_500_000_001)
    other = copy(tmp_path / "other", files[::-1], 1_700_000_000)
    (other / "src" / "pillarbox" / "__pycache__").mkdir()
    (other / "src" / "pillarbox" / "__pycache__" / "daemon.cpython-310.pyc").write_bytes(b"compiled")
    assert build(tmp_path / "one.zip", first) == build(tmp_path / "other.zip", other)
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.namelist() == sorted(name.removeprefix("src/") for name in files)


def test_it_has_the_whole_package_and_nothing_else(tmp_path: Path) -> None:
    assert build(tmp_path / "first.zip") == build(tmp_path / "second.zip")
    source = ROOT / "src"
    with zipfile.ZipFile(tmp_path / "first.zip") as archive:
        names = set(archive.namelist())
    packages = {"pillarbox", "pillarbox_tools"}
    modules = {path.relative_to(source).as_posix() for package in packages for path in (source / package).rglob("*.py")}
    assert modules | {"pillarbox/py.typed"} <= names
    assert {name.partition("/")[0] for name in names} == packages
    assert not [name for name in names if "__pycache__" in name]


def test_python_imports_it_from_the_archive_alone(tmp_path: Path) -> None:
    build(tmp_path / "pillarbox.zip")
    program = "import pillarbox, pillarbox.testing; print(pillarbox.__file__)"
    # -S omits the environment, in which pillarbox is installed: its packages are listed one by one.
    path = [str(tmp_path / "pillarbox.zip"), *(entry for entry in sys.path if entry.endswith("site-packages"))]
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == str(tmp_path / "pillarbox.zip" / "pillarbox" / "__init__.py")
