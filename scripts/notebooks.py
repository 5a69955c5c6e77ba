"""Runs the notebooks of docs/notebooks: ``python -m scripts.notebooks [NAME ...]``, and makes pages of them.

A run writes ``build/notebooks/NAME.ipynb``, with the output of its cells, and a PNG for each picture. ``make docs``
shows the output if it belongs to the notebook as it is, and the notebook without output otherwise.
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
    """Return a text of a notebook, which may be a list of lines there."""
    return lines if isinstance(lines, str) else "".join(lines)


def code(notebook: Path) -> list[str]:
    """Return what the cells of a notebook run."""
    return [text(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "code"]


def execute(notebook: Path, built: Path) -> None:
    """Run a notebook in a process and a folder of its own, and write it with its output.

    What Spark and its workers say goes into ``NAME.log`` next to it.

    Raises:
        CellExecutionError: of nbclient: a cell has failed.
        ValueError: the output has a path of this machine.
    """
    import nbformat  # only those who run notebooks have these
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
    """Return a notebook as Markdown, with its output if that is there and of the same cells."""
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
    """Return what a picture shows, for those who do not see it: the title that its cell gives it."""
    titles = re.findall(r"set_title\(f?\"(.+?)\"\)", text(cell["source"]))
    return re.sub(r"\{.*?\}", "...", titles[-1]) if titles else "The picture that the code draws"


def _printed(output: dict[str, Any]) -> str:
    """Return the text of an output: what is printed, but no warnings of Spark's; or the value of the last line."""
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
