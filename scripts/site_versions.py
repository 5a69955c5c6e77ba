"""Adds a version's site to the published sites: ``python scripts/site_versions.py build/site SITES v0.2.0``.

The version may also be ``latest``, the main branch. ``SITES`` has a folder for each version. ``versions.json`` lists
them for the sidebar, and the first page redirects to the newest release.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

LATEST = "latest"
_RELEASE = re.compile(r"\d+(\.\d+)*")
_FIRST = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={folder}/">
<title>pillarbox</title>
<p><a href="{folder}/">The documentation of pillarbox</a></p>
"""


def add(built: Path, sites: Path, name: str) -> None:
    """Replace the folder of a version with a site, and list all versions.

    Args:
        built: the site that ``make docs`` has built.
        sites: the folder of all versions.
        name: "latest", or the tag of a release, such as "v0.2.0".

    Raises:
        ValueError: the name is invalid.
    """
    version = name.removeprefix("v")
    if version != LATEST and _numbers(version) is None:
        raise ValueError(f"{name!r} is neither 'latest' nor the tag of a release, such as 'v0.2.0'")
    folder = sites / version
    if folder.exists():
        shutil.rmtree(folder)
    shutil.copytree(built, folder)
    _write_list(sites)


def _write_list(sites: Path) -> None:
    """Write the list of versions, newest first, and the page that redirects to the newest release."""
    folders = [path.name for path in sites.iterdir() if (path / "index.html").exists()]
    numbered = {name: numbers for name in folders if (numbers := _numbers(name)) is not None}
    releases = sorted(numbered, key=lambda name: numbered[name], reverse=True)
    newest = next((name for name in releases if _RELEASE.fullmatch(name)), None)
    versions = [LATEST] * (LATEST in folders) + releases
    (sites / "versions.json").write_text(json.dumps({"newest": newest, "versions": versions}, indent=2) + "\n")
    (sites / "index.html").write_text(_FIRST.format(folder=newest or LATEST))
    (sites / ".nojekyll").touch()  # Jekyll would leave out folders whose names begin with an underscore


def _numbers(version: str) -> tuple[list[int], bool, str] | None:
    """Return a sort key for versions (1.0rc1 precedes 1.0), or None if the name is not a version."""
    match = re.fullmatch(rf"({_RELEASE.pattern})((?:a|b|rc)\d+)?", version)
    if match is None:
        return None
    numbers, before = match[1], match[3] or ""
    return [int(part) for part in numbers.split(".")], not before, before


if __name__ == "__main__":
    add(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
