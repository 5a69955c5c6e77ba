from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import pytest

from pillarbox.examples import examples
from scripts import notebooks
from tests.support.docs import HOME, notebook_program

NOTEBOOKS = sorted(notebooks.FOLDER.glob("*.ipynb"))
MACHINE = re.compile(r"(?<![\w.])(?:/(?:home|root|Users|tmp|var|opt|mnt|dev|work)/|[A-Z]:\\)")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_are_notebooks():
    assert len(NOTEBOOKS) == 3


def test_git_has_no_output(notebook):
    for cell in notebooks.cells(notebook):
        assert cell["metadata"] == {}, cell["id"]
        if cell["cell_type"] == "code":
            assert cell["outputs"] == [] and cell["execution_count"] is None, f"{cell['id']}: clear all outputs"
    assert json.loads(notebook.read_text())["metadata"].keys() == {"kernelspec", "language_info"}


def test_no_path_of_a_machine_is_in_it(notebook):
    assert not MACHINE.search(notebook.read_text())
    assert str(HOME) not in notebook.read_text()


def test_paths_of_machines_are_found():
    for text in ("/home/ann/data", 'open("/tmp/x")', r"C:\data"):
        assert MACHINE.search(text)
    for text in ("pillarbox.examples/home/", "a/tmp/b", "https://example.org"):
        assert not MACHINE.search(text)


def test_it_copies_the_data_of_an_example(notebook):
    named = re.findall(r'"pillarbox\.examples", "(\w+)", "--copy"', "\n".join(notebooks.code(notebook)))
    assert named == [notebook.stem]
    assert notebook.stem in examples()


def test_it_is_a_program_that_needs_what_its_first_cell_says_alone(notebook):
    first = notebooks.text(notebooks.cells(notebook)[0]["source"])
    assert "pip install 'pillarbox[all]' matplotlib notebook" in first
    available = {*sys.stdlib_module_names, "examples", "pillarbox", "pyspark", "matplotlib"}
    imported: set[str] = set()
    for node in ast.walk(ast.parse(notebook_program(notebook))):
        if isinstance(node, ast.Import):
            imported |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert {module.partition(".")[0] for module in imported} <= available
    own = f"examples.shipped.{notebook.stem}.model"
    assert {module for module in imported if module.startswith(("pillarbox", "examples"))} <= {"pillarbox", own}
    assert notebooks.code(notebook)[-1] == "spark.stop()"


def test_each_picture_has_a_title_for_those_who_do_not_see_it(notebook):
    cells = [source for source in notebooks.code(notebook) if "plt.show()" in source]
    assert len(cells) >= 4
    for source in cells:
        assert "axes.set_title(" in source
        assert re.search(r"set_[xy]label|set_yticks|set_major_formatter", source), "an axis says what it shows"


# -- pages --

PICTURE = "aGVsbG8="


def written(path: Path, source: str, *outputs: dict[str, object]) -> Path:
    path.parent.mkdir(exist_ok=True)
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words"]},
        {"cell_type": "code", "source": source, "outputs": outputs},
    ]
    path.write_text(json.dumps({"cells": cells}))
    return path


def test_a_page_has_the_output_of_the_run(tmp_path):
    source = 'axes.set_title(f"{n} visits")\nprint(1)'
    notebook = written(tmp_path / "x.ipynb", source)
    written(
        tmp_path / "built" / "x.ipynb",
        source,
        {"output_type": "stream", "name": "stderr", "text": "a warning"},
        {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]},
        {"output_type": "display_data", "data": {"image/png": PICTURE, "text/plain": "<Figure>"}},
        {"output_type": "execute_result", "data": {"text/plain": "[3]", "text/html": "<b>3</b>"}},
    )
    assert notebooks.page(notebook, tmp_path / "built") == (
        f"# Title\nWords\n\n```{{code-block}} python\n{source}\n```\n\n```{{code-block}} text\n1\n2\n```\n\n"
        "![... visits](../../build/notebooks/x-1.png)\n\n```{code-block} text\n[3]\n```\n"
    )


def test_a_page_has_no_output_of_other_cells(tmp_path):
    notebook = written(tmp_path / "x.ipynb", "print(2)")
    assert "text\n" not in notebooks.page(notebook, tmp_path / "built")
    written(tmp_path / "built" / "x.ipynb", "print(1)", {"output_type": "stream", "name": "stdout", "text": "1"})
    assert notebooks.page(notebook, tmp_path / "built").endswith("```{code-block} python\nprint(2)\n```\n")
