"""The README's programs have the results that README shows. The first program is also one of the examples."""

from __future__ import annotations

import ast
import json
import re
import runpy
import threading
from collections.abc import Iterator
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import StreamExecutionEnvironment
from tests.support.budgets import LONG
from tests.support.docs import HOME, blocks, programs, shown_errors, without_carets

README = HOME / "README.md"
FIRST_PROGRAM = HOME / "examples" / "first_program.py"
SERVICE = "http://fraud.internal"
PATIENCE = 'timeout="2 seconds"'
FEWER_SCHEDULES = ("seeds=100", "seeds=10")


class Scores(BaseHTTPRequestHandler):
    """A fake of the service that README's last program calls. A score is the number in the order's name."""

    def do_GET(self) -> None:
        order = parse_qs(urlsplit(self.path).query)["order"][0]
        answer = json.dumps({"score": float(order.removeprefix("A"))}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Scores) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def printed() -> str:
    match = re.search(r"The program prints\n\n```\n(.*?)```", README.read_text(), re.DOTALL)
    assert match is not None
    return match[1]


def test_readme_programs_do_what_readme_says(spark: SparkSession, service: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(pillarbox, "local_session", lambda: spark)
    names: dict[str, Any] = {}
    # The machine may be too busy for the timeout that README has.
    sources = [source.replace(SERVICE, service).replace(PATIENCE, 'timeout="1 hour"') for source in blocks(README)]
    assert any(PATIENCE in source for source in blocks(README))
    for number, source in enumerate(sources):
        # Functions of a module are pickled by its name, and this one is nowhere in a worker: so it is ``__main__``.
        names["__name__"] = "__main__"
        exec(compile(source, f"README.md, program {number}", "exec"), names)

    assert printed() in capsys.readouterr().out
    hours = [(row.what, row.n) for row in names["per_hour"].to_dataframe().collect()]
    assert sorted(hours) == [("ordered", 2), ("paid", 1)]
    scores = sorted((row.order_id, row.what, row.score) for row in names["scored"].collect())
    assert scores == [("A1", "ordered", 1.0), ("A1", "paid", 1.0), ("A2", "ordered", 2.0)]


# The programs of these pages have tests of their own.
ELSEWHERE = ("README.md", "docs/pyflink.md")
PAYMENTS = [("ann", 1_000, 5.0), ("bob", 2_000, 150.0), ("ann", 62_000, 7.0)]
WHERE = 'File "docs/errors.md, program 1", line 13, in process_element'
LETTER = f"Traceback (most recent call last):\n  {WHERE}\nKeyError: 'ann'"


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds)


def are_numbered(rows: list[tuple[str, int]]) -> bool:
    return [card for card, _ in rows] == ["ann", "ann", "bob"] and len({number for _, number in rows}) == 3


# Each program's results for the payments: the rows of its last expression, or of its last name; its printed output, if
# there are no rows; or a function that checks the rows.
RESULTS: dict[tuple[str, int], Any] = {
    ("docs/async.md", 0): [("ann", 2.0), ("ann", 5.0), ("bob", 150.0)],
    ("docs/async.md", 1): [("ann", "receipt of ann"), ("ann", "receipt of ann"), ("bob", "receipt of bob")],
    ("docs/async.md", 2): [("ann", 0.05), ("ann", 0.07), ("bob", 1.5)],
    ("docs/async.md", 3): [("ann", 420), ("ann", 420), ("bob", 420)],
    ("docs/errors.md", 1): [
        (f"Row(card='ann', at={at}, amount={amount})", "'ann'", None, "process: Spent", "KeyError: 'ann'", LETTER, None)
        for at, amount in ((1_000, 5.0), (62_000, 7.0))
    ],
    ("docs/errors.md", 2): [("ann",), ("ann",), ("bob",)],
    ("docs/execution.md", 0): [("ann", 12.0), ("bob", 150.0)],
    ("docs/howto/adopt.md", 0): [
        *(("ann", 12.0), ("ann", 24.0), ("ann", 36.0)),
        *(("bob", 150.0), ("bob", 300.0), ("bob", 450.0)),
    ],
    ("docs/howto/agent.md", 0): None,  # it asserts by itself
    ("docs/howto/backfill.md", 0): [("ann", 1_000, 5.0), ("ann", 62_000, 12.0), ("bob", 2_000, 150.0)],
    ("docs/howto/enrich.md", 0): [("bob", 150.0)],
    ("docs/howto/enrich.md", 1): [("Ann Ames", 5.0), ("Ann Ames", 7.0), ("Bob Bell", 150.0)],
    ("docs/howto/enrich.md", 2): [("owner of ann", 5.0), ("owner of ann", 7.0), ("owner of bob", 150.0)],
    ("docs/howto/from-bytewax.md", 0): [("ann", 5.0), ("ann", 6.0), ("bob", 150.0)],
    ("docs/howto/from-transform-with-state.md", 0): None,  # it asserts by itself
    ("docs/howto/from-transform-with-state.md", 1): [("ann", 12.0), ("bob", 150.0)],
    ("docs/howto/late-data.md", 0): None,
    ("docs/state.md", 0): [("ann", 5.0), ("ann", 7.0), ("bob", 150.0)],
    ("docs/state.md", 1): [("ann", 5.0), ("ann", 12.0), ("bob", 150.0)],
    ("docs/state.md", 2): are_numbered,
    ("docs/testing.md", 0): None,  # it asserts by itself
    ("docs/testing.md", 3): None,
    ("docs/testing.md", 4): None,  # it asserts by itself
    ("docs/two-inputs.md", 0): [("ann", 0), ("ann", 0), ("ann", 61_000), ("bob", 0)],
    ("docs/two-inputs.md", 1): [
        ("ann", 1_000, 5.0, 1_000, 5.0),
        ("ann", 1_000, 5.0, 62_000, 7.0),
        ("ann", 62_000, 7.0, 62_000, 7.0),
        ("bob", 2_000, 150.0, 2_000, 150.0),
    ],
    ("docs/two-inputs.md", 2): [
        ("ann", 1_000, 5.0, 1_000, 5.0),
        ("ann", 1_000, 5.0, 62_000, 7.0),
        ("ann", 62_000, 7.0, 62_000, 7.0),
        ("bob", 2_000, 150.0, 2_000, 150.0),
    ],
    ("docs/two-inputs.md", 3): [("ann", 12.0)],
    ("docs/windows.md", 0): [("ann", 0, 5.0), ("ann", 60_000, 7.0), ("bob", 0, 150.0)],
    ("docs/windows.md", 1): (
        "a from 0 to 10000: [1, 3]\na from 10000 to 20000: [4]\na from 20000 to 30000: [7]\n"
        "b from 0 to 10000: [2]\nb from 10000 to 20000: [5]\nb from 20000 to 30000: [6, 8]\n"
        "a from 1000 to 18000: [1, 3, 4]\na from 25000 to 31000: [7]\n"
        "b from 14000 to 20000: [5]\nb from 21000 to 33000: [6, 8]\nb from 3000 to 9000: [2]\n"
    ),
    ("docs/windows.md", 2): [
        ("ann", at(0), at(60), 1, 5.0, 5.0),
        ("ann", at(60), at(120), 1, 7.0, 7.0),
        ("bob", at(0), at(60), 1, 150.0, 150.0),
    ],
    ("docs/windows.md", 3): [
        ("ann", at(1), at(31), 1, 5.0),
        ("ann", at(62), at(92), 1, 7.0),
        ("bob", at(2), at(32), 1, 150.0),
    ],
}


def test_every_program_of_the_docs_has_a_result():
    pages = {page: result for page, result in programs().items() if page not in ELSEWHERE}
    every = {(page, number) for page, result in pages.items() for number in range(len(result))}
    assert RESULTS.keys() == every - shown_errors().keys()


# Programs with several queries.
QUERIES = pytest.mark.long("tests/spark/stateful_programs/test_adopt.py adopts a query")
PROGRAMS = [pytest.param(*key, marks=QUERIES if "adopt.md" in key[0] else ()) for key in RESULTS]


@pytest.mark.parametrize(("page", "number"), PROGRAMS, ids=str)
def test_a_program_of_the_docs(page: str, number: int, spark: SparkSession, capsys: pytest.CaptureFixture[str]):
    env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
    payments = spark.createDataFrame(PAYMENTS, "card STRING, at LONG, amount DOUBLE").coalesce(1)
    names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "payments": payments, "env": env}
    source = programs()[page][number] if LONG else programs()[page][number].replace(*FEWER_SCHEDULES)
    label, (*statements, last) = f"{page}, program {number}", ast.parse(source).body
    exec(compile(ast.Module(statements, []), label, "exec"), names)
    capsys.readouterr()
    if isinstance(last, ast.Assign):  # it is planned, and nothing asks for its rows
        exec(compile(ast.Module([last], []), label, "exec"), names)
        (target,) = last.targets
        last = ast.Expr(ast.Name(ast.unparse(target), ast.Load(), lineno=1, col_offset=0))
    if isinstance(last, ast.Expr):
        frame = eval(compile(ast.Expression(last.value), label, "eval"), names)
    else:
        frame = None
        exec(compile(ast.Module([last], []), label, "exec"), names)
    rows: Any = capsys.readouterr().out or None if frame is None else sorted(map(tuple, frame.collect()))
    expected = RESULTS[page, number]
    assert expected(rows) if callable(expected) else rows == expected


@pytest.mark.usefixtures("one_attempt")
def test_a_program_fails_with_the_error_that_its_page_shows(spark: SparkSession, tmp_path: Path, monkeypatch):
    """See ``tests/test_shown_errors.py`` for errors on pages that do not need Spark."""
    monkeypatch.setattr(pillarbox, "local_session", lambda: spark)
    (tmp_path / "job.py").write_text(programs()["docs/errors.md"][0])
    with pytest.raises(PythonException) as caught:
        runpy.run_path(str(tmp_path / "job.py"), run_name="__main__")
    error = f"{type(caught.value).__module__}.{type(caught.value).__qualname__}: {caught.value}"
    shown = shown_errors()["docs/errors.md", 0].replace('File "', f'File "{tmp_path}/')
    assert without_carets(error) == without_carets(shown)


def test_the_first_program_is_readmes():
    _, _, program = FIRST_PROGRAM.read_text().partition("\n\n")
    assert program == blocks(README)[0]
