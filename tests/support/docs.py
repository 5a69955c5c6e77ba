"""Programs in README, docs and notebooks. ``python -m tests.support.docs FOLDER`` writes them for type checkers.

Programs are code blocks marked ``python``. A fragment (a block marked ``py``) becomes a function whose parameters are
the fragment's undefined names. Each tutorial page becomes a module that imports the earlier pages' names.
"""

from __future__ import annotations

import builtins
import re
import symtable
import sys
from pathlib import Path

import pillarbox
from scripts import notebooks

__all__ = [
    "HOME",
    "PAGES",
    "STEPS",
    "blocks",
    "fragments",
    "modules",
    "notebook_program",
    "outputs",
    "programs",
    "shown_errors",
    "without_carets",
]

HOME = Path(__file__).parents[2]
PAGES = sorted(HOME.glob("*.md")) + sorted((HOME / "docs").rglob("*.md"))
STEPS = sorted((HOME / "docs" / "tutorial").glob("[1-9]-*.md"))
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ERROR = re.compile(r"^[\w.]*(?:Error|Exception): ", re.MULTILINE)
_MODULE = re.compile(r"^`(\w+)\.py`[^`]*?^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

# The programs' preamble.
PREAMBLE = """\
from pyspark.sql import SparkSession

from pillarbox import StreamExecutionEnvironment

spark = SparkSession.builder.getOrCreate()
payments = spark.table("payments")
env = StreamExecutionEnvironment.get_execution_environment(spark)
"""

# The fragments' preamble, with types.
FRAGMENTS_PREAMBLE = """\
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import pillarbox
from pillarbox import *
"""
# Programs for Spark's own classes, whose types PySpark declares for pandas only, and does not export.
SPARK_PROGRAMS = """\
# mypy: disable-error-code="attr-defined"
# pyright: reportPrivateImportUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportArgumentType=false, reportOptionalSubscript=false
"""
TAKEN = {
    "Agent": "type[KeyedProcessFunction]",
    "At": "type[TimestampAssigner]",
    "BAD": "OutputTag[Any]",
    "Fraud": "Any",
    "MODEL": "Budget",
    "Report": "type[ProcessFunction]",
    "Spent": "type[KeyedProcessFunction]",
    "TOTAL": "TypeInformation[Any]",
    "Worst": "type[KeyedProcessFunction]",
    "alarms_of": "Callable[[DataStream[Any]], DataStream[Any]]",
    "alerts": "DataStream[Any]",
    "build": "Callable[..., DataStream[Any]]",
    "df": "DataFrame",
    "env": "StreamExecutionEnvironment",
    "events": "DataStream[Any]",
    "history": "DataFrame",
    "kinds": "list[str]",
    "late_by": "WatermarkStrategy",
    "payments": "DataStream[Any]",
    "query": "StreamingQuery",
    "schema": "Any",
    "scored": "DataStream[Any]",
    "scores": "DataStream[Any]",
    "spark": "SparkSession",
    "unpaid": "DataStream[Any]",
    "writer": "DataStreamWriter",
}


def blocks(page: Path, kind: str = "python") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def outputs(page: Path) -> list[str]:
    return [text for language, text in _BLOCK.findall(page.read_text()) if not language]


def programs() -> dict[str, list[str]]:
    pages = [page for page in PAGES if page not in STEPS]
    return {page.relative_to(HOME).as_posix(): result for page in pages if (result := blocks(page))}


def shown_errors() -> dict[tuple[str, int], str]:
    results = {}
    for page in PAGES:
        programs_so_far = 0
        for language, text in _BLOCK.findall(page.read_text()):
            programs_so_far += language == "python"
            if not language and _ERROR.search(text):
                results[page.relative_to(HOME).as_posix(), programs_so_far - 1] = text
    return results


def without_carets(text: str) -> str:
    return "\n".join(line for line in text.strip().splitlines() if line.strip(" ~^"))


def modules(step: Path) -> dict[str, str]:
    return dict(_MODULE.findall(step.read_text()))


def fragments() -> dict[str, list[str]]:
    """Return the code fragments of each page (path -> list of sources), each wrapped in a function."""
    results = {page.relative_to(HOME).as_posix(): blocks(page, "py") for page in PAGES}
    return {
        path: [_as_function(f"fragment_{number}", source) for number, source in enumerate(sources)]
        for path, sources in results.items()
        if sources
    }


def notebook_program(notebook: Path) -> str:
    source = "\n".join(notebooks.code(notebook))
    package = f"examples.shipped.{notebook.stem}"
    source = re.sub(r"^from model import", f"from {package}.model import", source, flags=re.MULTILINE)
    source = re.sub(r"^(\w+) = (.+\.toPandas\(\))$", r"\1: Any = \2", source, flags=re.MULTILINE)
    return f"from typing import Any\n\n{source}\n"


def _as_function(name: str, source: str) -> str:
    source = source.replace("(...)", "()")  # "and so on"
    body = "".join(f"    {line}\n" for line in source.splitlines())
    (function,) = symtable.symtable(f"def {name}():\n{body}", name, "exec").get_children()
    available = {"SparkSession", "pillarbox", *pillarbox.__all__, *dir(builtins)}
    missing = sorted(_taken(function) - available)
    return f"def {name}({', '.join(f'{name_}: {TAKEN[name_]}' for name_ in missing)}) -> None:\n{body}"


def _taken(scope: symtable.SymbolTable) -> set[str]:
    own = {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
    return own.union(*map(_taken, scope.get_children()))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("*.py"):
        stale.unlink()
    for suffix, preamble, pages in (("", PREAMBLE, programs()), ("_fragments", FRAGMENTS_PREAMBLE, fragments())):
        for path, sources in pages.items():
            name = path.removesuffix(".md").replace("/", "_").lower() + suffix
            text = "\n".join([preamble, *sources])
            (folder / f"{name}.py").write_text(SPARK_PROGRAMS * ("StatefulProcessor" in text) + text)
    written = {name: source for step in STEPS for name, source in modules(step).items()}
    own = re.compile(rf"^from ({'|'.join(written)}) import", re.MULTILINE)
    for name, source in written.items():
        (folder / f"{name}.py").write_text(own.sub(r"from build.programs.\1 import", source))
    for notebook in notebooks.FOLDER.glob("*.ipynb"):
        (folder / f"notebook_{notebook.stem}.py").write_text(notebook_program(notebook))
