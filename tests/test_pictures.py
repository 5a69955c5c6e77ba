"""The docs' pictures show how windows and joins behave, and are legible on any page."""

from __future__ import annotations

import importlib
import re
import sys
from typing import Any

import pytest

from pillarbox import StreamExecutionEnvironment
from scripts import draw_architecture, draw_concepts
from tests.support.docs import HOME


def module_of(name: str) -> dict[str, Any]:
    sys.path.insert(0, str(HOME / "scripts"))
    try:
        return vars(importlib.import_module(name))
    finally:
        sys.path.remove(str(HOME / "scripts"))


DRAWING = module_of("draw_windows")
PICTURES = {picture.name: picture for picture in DRAWING["PICTURES"]}
JOINS = module_of("draw_joins")
PAGE = (HOME / "docs" / "windows.md").read_text()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_windows_do(name):
    committed = (DRAWING["FOLDER"] / f"{name}.svg").read_text()
    assert DRAWING["draw"](PICTURES[name]) == committed, "draw it again: python scripts/draw_windows.py"


@pytest.mark.parametrize("name", draw_concepts.PICTURES)
def test_a_picture_of_a_concept_is_what_a_run_does(name):
    committed = (draw_concepts.FOLDER / f"{name}.svg").read_text()
    assert draw_concepts.PICTURES[name]() == committed, "draw it again: python -m scripts.draw_concepts"


@pytest.mark.parametrize("name", draw_architecture.PICTURES)
def test_a_picture_of_the_architecture_is_what_its_script_draws(name):
    committed = (draw_architecture.FOLDER / f"{name}.svg").read_text()
    assert draw_architecture.PICTURES[name]() == committed, "draw it again: python -m scripts.draw_architecture"


@pytest.mark.parametrize("drawing", [draw_architecture, draw_concepts])
def test_a_page_shows_each_picture_and_there_are_no_others(drawing):
    page = (HOME / "docs" / f"{drawing.FOLDER.name}.md").read_text()
    shown = re.findall(rf"!\[[^\]]+\]\(images/{drawing.FOLDER.name}/([\w-]+)\.svg\)", page)
    assert sorted(shown) == sorted(drawing.PICTURES) == sorted(path.stem for path in drawing.FOLDER.glob("*.svg"))


def test_the_picture_of_the_join_is_what_it_does():
    committed = (JOINS["FOLDER"] / "interval.svg").read_text()
    assert JOINS["draw"]() == committed, "draw it again: python scripts/draw_joins.py"
    page = (HOME / "docs" / "two-inputs.md").read_text()
    assert re.findall(r"!\[[^\]]+\]\((images/joins/\w+\.svg)\)", page) == ["images/joins/interval.svg"]


def test_the_page_shows_all_pictures_and_there_are_no_others():
    shown = re.findall(r"!\[[^\]]+\]\(images/windows/(\w+)\.svg\)", PAGE)
    assert sorted(shown) == sorted(PICTURES) == sorted(path.stem for path in DRAWING["FOLDER"].glob("*.svg"))


def test_the_program_below_the_pictures_prints_what_the_page_says(capsys):
    match = re.search(
        r"^```python\n((?:(?!^```).)*)^```\n\nThe program prints\n\n```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL
    )
    assert match is not None
    exec(compile(match[1], "windows.md", "exec"), {"env": StreamExecutionEnvironment(), "__name__": "__main__"})
    assert capsys.readouterr().out == match[2]
    tumbling = PICTURES["tumbling"]
    assert str([(key, time, number) for number, (key, time) in enumerate(tumbling.records, 1)])[1:-1] in match[
        1
    ].replace('"', "'")


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
def test_pictures_can_be_read_on_light_and_dark_pages(page):
    folders = DRAWING["FOLDER"], JOINS["FOLDER"], draw_architecture.FOLDER, draw_concepts.FOLDER
    drawn = "".join(path.read_text() for folder in folders for path in folder.glob("*.svg"))
    texts = set(re.findall(r'<text [^>]*fill="(#\w+)"', drawn)) - {"#ffffff"}  # numbers in filled circles
    assert texts
    for color in texts:
        assert contrast(color, page) >= 3.5
    for fill in set(re.findall(r'<circle [^>]*fill="(#\w+)"', drawn)):
        assert contrast("#ffffff", fill) >= 3.5


def contrast(color: str, background: str) -> float:
    """Return the contrast of two colors (from 1 to 21), as defined by the Web Content Accessibility Guidelines."""
    dark, light = sorted((luminance(color), luminance(background)))
    return (light + 0.05) / (dark + 0.05)


def luminance(color: str) -> float:
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
