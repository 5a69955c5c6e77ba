"""Errors and a log line on pages equal their programs' output. Names of Spark's errors exist in Spark."""

from __future__ import annotations

import ast
import json
import logging
import re
import zipfile
from pathlib import Path
from typing import Any

import pyspark
import pytest

from pillarbox import DataStream, StreamExecutionEnvironment
from pillarbox.testing import ProgramTestHarness, row
from tests.support.docs import HOME, PAGES, outputs, programs, shown_errors

# The programs of these errors need Spark: tests/spark/test_readme.py runs them.
ON_SPARK = {("docs/errors.md", 0)}
LOCAL = {("docs/testing.md", 1), ("docs/testing.md", 2)}
JARS = Path(pyspark.__file__).parent / "jars"


def test_the_program_of_each_error_is_run():
    assert shown_errors().keys() == ON_SPARK | LOCAL


@pytest.mark.parametrize(("page", "number"), sorted(LOCAL), ids=str)
def test_a_program_raises_the_error_that_its_page_shows(page: str, number: int):
    with pytest.raises(Exception) as caught:
        exec(compile(programs()[page][number], page, "exec"), {"__name__": "__main__"})
    error = f"{type(caught.value).__name__}: {caught.value}"
    shown = shown_errors()[page, number].strip()
    assert error == shown or (shown.endswith("...") and error.startswith(shown[:-3]))


def test_a_line_of_the_log_is_as_its_page_shows_it(caplog: pytest.LogCaptureFixture):
    (source,) = (source for source in programs()["docs/errors.md"] if "get_logger" in source)
    names: dict[str, Any] = {"__name__": "__main__"}
    definitions = [node for node in ast.parse(source).body if not isinstance(node, (ast.Assign, ast.Expr))]
    exec(compile(ast.Module(definitions, []), "docs/errors.md", "exec"), names)

    def build(env: StreamExecutionEnvironment, payments: DataStream) -> DataStream:
        return payments.rebalance().map(names["Check"](), "card STRING").name("check")

    with caplog.at_level(logging.WARNING), ProgramTestHarness(build, parallelism=8) as harness:
        harness.push("payments", row(card="ann", at=1000, amount=2_000_000.0))
        harness.run_epoch()
    (shown,) = (text.strip() for text in outputs(HOME / "docs" / "errors.md") if "epoch" in text)
    (line,) = (record.getMessage() for record in caplog.records if record.name == "checks")
    location = r"subtask \d, epoch \d+\)"
    assert re.sub(location, "", line) == re.sub(location, "", shown) and re.search(location, line)


def entry(jar: str, name: str) -> bytes:
    (path,) = JARS.glob(f"{jar}_*.jar")
    with zipfile.ZipFile(path) as archive:
        return archive.read(name)


def test_errors_of_spark_that_pages_name_are_sparks():
    conditions = entry("spark-common-utils", "error/error-conditions.json")
    words = [word for page in PAGES for word in re.findall(r"`([A-Z]+(?:_[A-Z]+){2,})`", page.read_text())]
    named = set(words) - {
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "UV_DEFAULT_INDEX",
    }
    assert named == {
        "CHECKPOINT_FILE_CHECKSUM_VERIFICATION_FAILED",
        "CONCURRENT_STREAM_LOG_UPDATE",
        "STATE_STORE_COMMIT_VALIDATION_FAILED",
    }
    assert named <= json.loads(conditions).keys()

    pages = "".join(page.read_text() for page in PAGES)
    for start, source in {
        "Multiple streaming queries are concurrently using ": conditions,
        "A shuffle map stage with indeterminate output was failed and retried": entry(
            "spark-core", "org/apache/spark/scheduler/DAGScheduler.class"
        ),
        "This query does not support recovering from checkpoint location": conditions,
        "ExecutorLostFailure": entry("spark-core", "org/apache/spark/ExecutorLostFailure.class"),
    }.items():
        assert start in pages and start.encode() in source
