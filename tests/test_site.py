"""The site of ``docs/``: each public name is on one page of the API, and links out of it lead to the repository."""

from __future__ import annotations

import importlib
import importlib.util
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import pillarbox

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
    ("link", "wanted"),
    [
        ("[a](state.md)", "[a](state.md)"),
        ("[a](state.md#types)", "[a](state.md#types)"),
        ("[a](#types)", "[a](#types)"),
        ("[a](https://spark.apache.org/x.md)", "[a](https://spark.apache.org/x.md)"),
        ("[a](../README.md#start)", "[a](HERE/README.md#start)"),
        ("[a](../tests/faults)", "[a](HERE/tests/faults)"),
        ("[a](no-such-page.md)", "[a](no-such-page.md)"),  # Sphinx says so
    ],
)
def test_links_to_files_that_are_no_page_lead_to_the_repository(api_pages, link, wanted):
    assert api_pages.absolute_links(link, ROOT / "docs", ROOT, "HERE", {"state"}) == wanted
