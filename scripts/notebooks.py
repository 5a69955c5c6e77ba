"""Runs the notebooks in docs/notebooks, ``python -m scripts.notebooks [NAME ...]``, and converts them to pages.

A run writes ``build/notebooks/NAME.ipynb``, with the cells' output, and a PNG for each picture. ``make docs`` shows
this output, unless the notebook has changed since.
"""

from __future__ import annotations

import base64
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "notebooks"
BUILT = ROOT / "build" / "notebooks"
TIMEOUT = 600  # seconds for a cell


def cells(notebook: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook."""
    result: list[dict[str, Any]] = json.loads(notebook.read_text())["cells"]
    return result


def text(lines: str | list[str]) -> str:
    """Return a text in a notebook, which may be stored as a list of lines."""
    return lines if isinstance(lines, str) else "".join(lines)


def code(notebook: Path) -> list[str]:
    """Return the code of a notebook's cells."""
    return [text(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "code"]


def execute(notebook: Path, built: Path) -> None:
    """Run a notebook in a new process and folder, and write it with its output.

    The output of Spark and its workers is written to ``NAME.log`` next to it.

    Raises:
        CellExecutionError: a cell has failed (nbclient's error).
        ValueError: the output contains a path on this machine.
    """
    import nbformat  # needed only to run notebooks
    from nbclient import NotebookClient

    read = nbformat.read(notebook, as_version=4)
    built.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with TemporaryDirectory() as folder, (built / f"{notebook.stem}.log").open("w") as log:
        client = NotebookClient(read, timeout=TIMEOUT, kernel_name="python3", resources={"metadata": {"path": folder}})
        client.execute(env=environment, stdout=log, stderr=log)
    for stale in built.glob(f"{notebook.stem}-*.png"):
        stale.unlink()
    nbformat.write(read, built / notebook.name)
    for name, data in _pictures(built / notebook.name):
        (built / name).write_bytes(data)
    for path in (sys.prefix, gettempdir(), str(ROOT)):
        if path in page(notebook, built):
            raise ValueError(f"{notebook.name} prints {path}, which is a path of this machine")


def page(notebook: Path, built: Path) -> str:
    """Return a notebook as Markdown, with its output if ``built`` has the output of the same cells."""
    ran, folder = built / notebook.name, "../../build/notebooks"
    shown = cells(notebook)
    if ran.exists() and [text(cell["source"]) for cell in cells(ran)] == [text(cell["source"]) for cell in shown]:
        shown = cells(ran)
    pictures = iter(_names(notebook.stem))
    parts = []
    for cell in shown:
        if cell["cell_type"] == "markdown":
            parts.append(text(cell["source"]))
            continue
        parts.append(f"```{{code-block}} python\n{text(cell['source'])}\n```")
        for output in cell["outputs"]:
            if "image/png" in output.get("data", {}):
                parts.append(f"![{_title(cell)}]({folder}/{next(pictures)})")
            elif printed := _printed(output):
                parts.append(f"```{{code-block}} text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def _names(stem: str) -> Iterator[str]:
    return (f"{stem}-{number}.png" for number in range(1, 1000))


def _pictures(notebook: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each picture in a notebook's output."""
    outputs = (output for cell in cells(notebook) for output in cell.get("outputs", ()))
    pictures = (output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {}))
    for name, picture in zip(_names(notebook.stem), pictures):
        yield name, base64.b64decode(text(picture))


def _title(cell: dict[str, Any]) -> str:
    """Return a picture's alternative text: the title that its cell sets."""
    titles = re.findall(r"set_title\(f?\"(.+?)\"\)", text(cell["source"]))
    return re.sub(r"\{.*?\}", "...", titles[-1]) if titles else "The picture that the code draws"


def _printed(output: dict[str, Any]) -> str:
    """Return the text of an output: printed text without Spark's warnings, or the value of the last line."""
    if output["output_type"] == "stream":
        return text(output["text"]).rstrip() if output["name"] == "stdout" else ""
    return text(output.get("data", {}).get("text/plain", ""))


def main(names: list[str]) -> None:
    """Run the notebooks, or some of them."""
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        if not names or notebook.stem in names:
            began = time.monotonic()
            execute(notebook, BUILT)
            print(f"{notebook.relative_to(ROOT)}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
