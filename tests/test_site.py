"""The site of ``docs/``. Each public name is on one API page, and the published site keeps all versions.

External links lead to the repository.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import textwrap
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from scripts import site_versions

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def api_pages() -> Any:
    spec = importlib.util.spec_from_file_location("api_pages", ROOT / "docs" / "site" / "api_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_public_name_is_on_one_page(api_pages):
    on_pages = Counter(name for _, _, names in api_pages.PAGES.values() for name in names)
    public = set(pillarbox.__all__)
    for module in ("async_retry_predicates", "functions", "mailbox", "testing"):
        public |= {f"{module}.{name}" for name in importlib.import_module(f"pillarbox.{module}").__all__}
    assert on_pages == Counter(public)


def test_the_pages_are_written(api_pages, tmp_path):
    api_pages.write(tmp_path)
    assert {path.stem for path in tmp_path.iterdir()} == {"index", *api_pages.PAGES}
    assert ".. autoclass:: pillarbox.DataStream\n   :members:" in (tmp_path / "streams.md").read_text()
    assert ".. autofunction:: pillarbox.start\n```" in (tmp_path / "queries.md").read_text()


def test_members_of_a_base_that_is_on_a_page_are_there_alone(api_pages, tmp_path):
    api_pages.write(tmp_path)
    page = (tmp_path / "keyed-streams.md").read_text()
    options = page.partition(".. autoclass:: pillarbox.KeyedStream\n")[2].partition("```")[0]
    assert "Protocol, DataStream\n" in options
    sentence = options.strip().splitlines()[-1]
    assert ":py:obj:`~pillarbox.DataStream.map`, " in sentence
    assert sentence.endswith(" from :py:class:`~pillarbox.DataStream`.")
    assert "`~pillarbox.DataStream.process`" not in sentence, "KeyedStream has its own"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("[a](state.md)", "[a](state.md)"),
        ("[a](state.md#types)", "[a](state.md#types)"),
        ("[a](#types)", "[a](#types)"),
        ("[a](https://spark.apache.org/x.md)", "[a](https://spark.apache.org/x.md)"),
        ("[a](../README.md#start)", "[a](HERE/README.md#start)"),
        ("[a](../tests/faults)", "[a](HERE/tests/faults)"),
        ("[a](no-such-page.md)", "[a](no-such-page.md)"),  # reported by Sphinx
    ],
)
def test_links_to_files_that_are_no_page_lead_to_the_repository(api_pages, link, target):
    assert api_pages.absolute_links(link, ROOT / "docs", ROOT, "HERE", {"state"}) == target


def test_pictures_that_are_built_are_part_of_the_site(api_pages, tmp_path):
    for folder in ("build", "tests", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.png").touch()
    text = "![a](../build/x.png) ![b](../tests/x.png)"
    mended = api_pages.absolute_links(text, tmp_path / "docs", tmp_path, "HERE", set())
    assert mended == "![a](../build/x.png) ![b](HERE/tests/x.png)"


# -- versions --


@pytest.fixture
def built(tmp_path: Path) -> Path:
    site = tmp_path / "built"
    site.mkdir()
    page = """<html data-content_root="./"><script src="versions.js" defer></script>
    <label class="sidebar-versions" hidden><select></select></label><article>A page</article></html>"""
    (site / "index.html").write_text(page)
    (site / "state.html").write_text(page)
    shutil.copy(ROOT / "docs" / "site" / "static" / "versions.js", site)
    return site


@pytest.fixture
def published(built: Path, tmp_path: Path) -> Path:
    sites = tmp_path / "sites"
    for name in ("latest", "v0.9.0", "v0.10.0", "v0.11.0rc1"):
        site_versions.add(built, sites, name)
    return sites


def test_versions_are_listed_with_the_newest_first(published):
    versions = json.loads((published / "versions.json").read_text())
    assert versions == {"newest": "0.10.0", "versions": ["latest", "0.11.0rc1", "0.10.0", "0.9.0"]}
    assert 'url=0.10.0/"' in (published / "index.html").read_text()
    assert (published / "0.9.0" / "state.html").exists()


def test_before_the_first_release_there_is_latest_alone(built, tmp_path):
    site_versions.add(built, tmp_path / "sites", "latest")
    assert json.loads((tmp_path / "sites" / "versions.json").read_text()) == {"newest": None, "versions": ["latest"]}
    assert 'url=latest/"' in (tmp_path / "sites" / "index.html").read_text()


def test_a_version_that_is_published_again_replaces_its_pages_alone(published, built):
    (built / "state.html").unlink()
    site_versions.add(built, published, "latest")
    assert not (published / "latest" / "state.html").exists()
    assert (published / "0.10.0" / "state.html").exists()


@pytest.mark.parametrize("name", ["main", "../elsewhere", "v1.0.0.dev3"])
def test_only_releases_and_latest_are_published(built, tmp_path, name):
    with pytest.raises(ValueError, match="is neither 'latest' nor the tag of a release"):
        site_versions.add(built, tmp_path / "sites", name)
    assert not (tmp_path / "sites").exists()


def test_the_workflow_keeps_what_was_published_before(built, tmp_path):
    workflow = (ROOT / ".github" / "workflows" / "docs.yml").read_text()
    match = re.search(r"^ +run: \|\n((?: {10}.*\n)+)", workflow, re.MULTILINE)
    assert match is not None
    remote, clone = tmp_path / "remote.git", tmp_path / "clone"
    for command in (["init", "--quiet", "--bare", remote], ["init", "--quiet", clone]):
        subprocess.run(["git", *command], check=True)
    subprocess.run(["git", "remote", "add", "origin", remote], cwd=clone, check=True)
    (clone / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "site_versions.py", clone / "scripts")
    for version in ("latest", "v0.1.0", "latest"):
        shutil.rmtree(clone / "build", ignore_errors=True)
        shutil.copytree(built, clone / "build" / "site")
        environment = {**os.environ, "VERSION": version}
        subprocess.run(["bash", "-e", "-c", textwrap.dedent(match[1])], cwd=clone, check=True, env=environment)
    show = ["git", "--git-dir", remote, "ls-tree", "-r", "--name-only", "site"]
    files = subprocess.run(show, check=True, capture_output=True, text=True).stdout.split()
    assert {"latest/state.html", "0.1.0/state.html", "versions.json", "index.html", ".nojekyll"} <= set(files)
    log = ["git", "--git-dir", remote, "rev-list", "--count", "site"]
    assert subprocess.run(log, check=True, capture_output=True, text=True).stdout == "1\n"


@pytest.fixture
def address(published: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(published))) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize(
    ("version", "notice"),
    [
        ("0.9.0", "This page is about version 0.9.0. Read about version 0.10.0, the newest release."),
        ("0.10.0", None),
        ("latest", "This page is about the next release, which is not published yet. Read about version 0.10.0, the"),
    ],
)
def test_a_page_offers_the_other_versions_and_says_if_it_is_not_of_the_newest(address, tmp_path, version, notice):
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--virtual-time-budget=5000",
    ]
    command = [str(CHROMIUM), *options, "--dump-dom", f"{address}/{version}/state.html"]
    page = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.findall(r'<option value="([^"]+)"', page) == ["latest", "0.11.0rc1", "0.10.0", "0.9.0"]
    assert re.findall(r'<option value="([^"]+)" selected', page) == [version]
    assert '<label class="sidebar-versions">' in page
    words = re.sub(r"<[^>]+>", "", page.partition("<article>")[2])
    assert words.startswith(notice or "A page")
