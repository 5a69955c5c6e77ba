from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

from pillarbox import OperatorReport, TaskReport
from pillarbox._runtime.spark.budgets.server import PORT
from pillarbox._runtime.spark.homes import settings
from scripts import reference
from tests.support.docs import HOME, PAGES, fragments

LINK = re.compile(r"(?<!\\)\]\(<?([^()<>\s]+(?:\([^()\s]*\))?)>?(?:\s+\"[^\"]*\")?\)")


def text_of(page: Path) -> str:
    return re.sub(r"^ *(```+|~~~+).*?^ *\1", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub makes for a page's headings."""
    results: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *#*$", text_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "")
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        repeated = [slug, *(f"{slug}-{number}" for number in range(1, 100))]
        results.add(next(anchor for anchor in repeated if anchor not in results))
    return results | set(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", page.read_text()))


def links(page: Path) -> list[str]:
    text = re.sub(r"`[^`\n]+`", "", text_of(page))
    matches = LINK.findall(text) + re.findall(r"<img [^>]*src=\"([^\"]+)\"", text)
    return [link for link in matches if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_links_of_a_page_resolve(page):
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_links_are_found(tmp_path):
    every = [link for page in PAGES for link in links(page)]
    assert len(every) > 100 and sum("#" in link for link in every) > 20
    (tmp_path / "page.md").write_text(
        "# One `two()`, three\n## One two, three\n## One two, three\n```\n# none\n[no](link)\n```\n"
        '`[no](link)` [a](other.md#b) and [c](https://elsewhere) <img src="picture.svg">\n'
    )
    assert anchors(tmp_path / "page.md") == {"one-two-three", "one-two-three-1", "one-two-three-2"}
    assert links(tmp_path / "page.md") == ["other.md#b", "picture.svg"]


def test_fragments_take_known_names():
    result = fragments()
    assert sum(map(len, result.values())) > 5
    for sources in result.values():
        for source in sources:
            ast.parse(source)


@pytest.mark.slow("it runs each wrong program")
@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_generated_pages_are_up_to_date(page):
    assert page.read_text() == reference.PAGES[page](), "write it anew: python -m scripts.reference"


def test_the_page_of_settings_has_all_of_pillarboxs():
    named = set(re.findall(r"`(spark\.pillarbox\.[a-z.]+)`", (HOME / "docs" / "settings.md").read_text()))
    assert named == {settings.MODE, settings.MOST, settings.IDLE, PORT}


@pytest.mark.parametrize("report", [TaskReport, OperatorReport])
def test_the_page_of_metrics_has_each_field_of_a_report(report):
    text = (HOME / "docs/metrics.md").read_text()
    assert [field_.name for field_ in dataclasses.fields(report) if f"`{field_.name}`" not in text] == []


def test_each_term_of_the_runtime_has_one_meaning_and_an_owner():
    text = (HOME / "docs" / "glossary.md").read_text().partition("## Inside of the runtime")[2]
    terms = re.findall(r"^\| ([^|]+?) \| .* \| `([\w/]+\.py)` \|$", text, re.MULTILINE)
    assert len(terms) == text.count(".py`") > 50
    assert len({term for term, _ in terms}) == len(terms)
    assert [file for _, file in terms if not (HOME / "src" / "pillarbox" / file).exists()] == []
