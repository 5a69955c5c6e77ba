"""The programs in README and docs: ``python -m tests.docs FOLDER`` writes them there, for type checkers.

They are the code blocks marked ``python``; a fragment that cannot run by itself is marked ``py``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

__all__ = ["HOME", "blocks", "programs"]

HOME = Path(__file__).parents[1]

# What the programs take for granted.
PREAMBLE = """\
from pyspark.sql import SparkSession

from pillarbox import StreamExecutionEnvironment

spark = SparkSession.builder.getOrCreate()
payments = spark.table("payments")
env = StreamExecutionEnvironment.get_execution_environment(spark)
"""


def blocks(page: Path) -> list[str]:
    """Return the Python code blocks of a page, in their order."""
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def programs() -> dict[str, list[str]]:
    """Return the code blocks of each page that has some, by its path."""
    pages = [HOME / "README.md", HOME / "CONTRIBUTING.md", *sorted((HOME / "docs").rglob("*.md"))]
    return {page.relative_to(HOME).as_posix(): found for page in pages if (found := blocks(page))}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.py"):
        stale.unlink()
    for path, found in programs().items():
        name = path.removesuffix(".md").replace("/", "_").lower()
        (folder / f"{name}.py").write_text("\n".join([PREAMBLE, *found]))
