"""What is published: links of its description, and the same bytes for the same commit."""

from __future__ import annotations

import re
import subprocess
import tarfile
import zipfile

import pytest

import pillarbox
from scripts.dist import absolute_links, build
from tests.support.docs import HOME

REPOSITORY = "https://example.org/pillarbox"


def test_links_of_the_description_lead_to_the_repository():
    text = "[a](docs/a.md#b) ![c](docs/c.svg) [d](https://example.com) [e](#here)"
    there = f"{REPOSITORY}/blob/main/docs"
    assert absolute_links(text, REPOSITORY) == (
        f"[a]({there}/a.md#b) ![c]({there}/c.svg) [d](https://example.com) [e](#here)"
    )
    readme = absolute_links((HOME / "README.md").read_text(), REPOSITORY)
    assert not [link for link in re.findall(r"\]\(([^)\s]+)\)", readme) if not re.match(r"https?:|#", link)]


@pytest.mark.long("it builds the package twice, as the release workflow does")
def test_a_commit_is_the_same_bytes_each_time(tmp_path):
    command = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout.strip()
    first, second = (build(commit, tmp_path / name) for name in ("first", "second"))
    assert [path.name for path in first] == [path.name for path in second] and len(first) == 2
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes()
    wheel, source = sorted(first, key=lambda path: path.suffix != ".whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"pillarbox/py.typed", "pillarbox/examples/_programs/fraud/README.md"} <= names
    assert not [name for name in names if name.startswith("tests") or "__pycache__" in name]
    with tarfile.open(source) as files:
        members = {name.partition("/")[2] for name in files.getnames()}
    assert {"CHANGELOG.md", "docs/index.md", "tests/test_house.py", "LICENSE"} <= members


def test_the_package_and_its_metadata_have_the_same_version():
    (version,) = re.findall(r'^version = "(.*)"$', (HOME / "pyproject.toml").read_text(), re.MULTILINE)
    assert version == pillarbox.__version__
