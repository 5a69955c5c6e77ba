# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel and the source distribution of the last commit: ``python -m scripts.dist``, into ``build/dist``.

A commit always gives the same bytes. README.md is the description of both, with links to the repository, whose address
is in ``pyproject.toml``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "dist"
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+)(\))")
_HOMEPAGE = re.compile(r'^Homepage = "(.*)"$', re.MULTILINE)


def absolute_links(text: str, repository: str) -> str:
    """Return a page with absolute links to the repository's files."""
    return _LINK.sub(rf"\1{repository}/blob/main/\2\3", text)


def build(commit: str, target: Path) -> list[Path]:
    """Build the wheel and the source distribution of a commit, and return their paths."""
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    with tempfile.TemporaryDirectory() as home:
        source = Path(home)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(source, filter="data")
        repository = _HOMEPAGE.findall((source / "pyproject.toml").read_text())[0]
        readme = source / "README.md"
        readme.write_text(absolute_links(readme.read_text(), repository))
        environment = {**os.environ, "SOURCE_DATE_EPOCH": time.decode().strip()}
        command = [str(ROOT / "scripts" / "setup.sh"), "uv", "-q", "build", "--out-dir", str(target), home]
        shutil.rmtree(target, ignore_errors=True)
        subprocess.run(command, cwd=ROOT, env=environment, check=True)
    for path in target.glob("*.tar.gz"):
        _normalize(path, int(time))
    return sorted(path for path in target.iterdir() if path.suffix in (".whl", ".gz"))


def _normalize(path: Path, time: int) -> None:
    """Rewrite an archive, with a fixed time and without owners."""
    with tarfile.open(path) as old:
        members = [
            (member, file.read() if (file := old.extractfile(member)) else None)
            for member in sorted(old.getmembers(), key=lambda member: member.name)
        ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member, content in members:
            member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "", ""
            member.pax_headers = {}
            new.addfile(member, None if content is None else io.BytesIO(content))
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=time))


if __name__ == "__main__":
    for built in build(sys.argv[1] if len(sys.argv) > 1 else "HEAD", TARGET):
        print(f"{built.relative_to(ROOT)}  {hashlib.sha256(built.read_bytes()).hexdigest()}")
