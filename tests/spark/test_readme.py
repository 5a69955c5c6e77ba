"""README's programs do what README says, in a session; its first program is the one in the examples."""

from __future__ import annotations

import ast
import json
import re
import runpy
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import StreamExecutionEnvironment
from tests.docs import HOME, blocks, programs

README = HOME / "README.md"
FIRST_PROGRAM = HOME / "examples" / "first_program.py"
SERVICE = "http://fraud.internal"
PATIENCE = 'timeout="2 seconds"'


class Scores(BaseHTTPRequestHandler):
    """The service of README's last program: the score is a hundredth of the amount."""

    def do_GET(self) -> None:
        amount = float(parse_qs(urlsplit(self.path).query)["amount"][0])
        answer = json.dumps({"score": amount / 100}).encode()
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
    """The table that README shows."""
    found = re.search(r"it prints\n\n```\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_readme_programs_do_what_readme_says(spark: SparkSession, service: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.setattr(pillarbox, "local_session", lambda: spark)
    first = runpy.run_path(str(FIRST_PROGRAM), run_name="__main__")
    assert printed() in capsys.readouterr().out

    names: dict[str, Any] = {"spark": spark, "payments": first["payments"]}
    # The machine may be too busy for the timeout that README has.
    sources = [source.replace(SERVICE, service).replace(PATIENCE, 'timeout="1 hour"') for source in blocks(README)]
    assert any(PATIENCE in source for source in blocks(README))
    for number, source in enumerate(sources):
        # Functions of a module are pickled by its name, and this one is nowhere in a worker: so it is ``__main__``.
        names["__name__"] = "__main__"
        exec(compile(source, f"README.md, program {number}", "exec"), names)

    alerts = names["alerts"].to_dataframe("card STRING, at LONG, payments INT, total DOUBLE")
    assert [tuple(row) for row in alerts.collect()] == [tuple(row) for row in first["found"].collect()]
    sums = {(row.card, row.n, row.total) for row in names["per_minute"].to_dataframe().collect()}
    assert sum(n for _, n, _ in sums) == first["payments"].count()
    assert sum(total for _, _, total in sums) == sum(row.amount for row in first["payments"].collect())
    scores = {(row.card, row.amount): row.score for row in names["scored"].collect()}
    assert scores == {(row.card, row.amount): row.amount / 100 for row in first["payments"].collect()}


def test_programs_of_the_docs_run(spark: SparkSession, capsys: pytest.CaptureFixture[str]):
    payments = spark.sql("SELECT 'ann' AS card, 1000L AS at, 5.0D AS amount")
    pages = {page: found for page, found in programs().items() if page != "README.md"}
    assert pages
    for page, found in pages.items():
        names: dict[str, Any] = {"__name__": "__main__", "spark": spark, "payments": payments}
        names["env"] = (
            StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2).set_max_parallelism(2)
        )
        for number, source in enumerate(found):
            *statements, last = ast.parse(source).body
            place = f"{page}, program {number}"
            exec(compile(ast.Module(statements, []), place, "exec"), names)
            if isinstance(last, ast.Expr):
                capsys.readouterr()
                frame = eval(compile(ast.Expression(last.value), place, "eval"), names)
                assert capsys.readouterr().out if frame is None else frame.collect(), place
            else:
                exec(compile(ast.Module([last], []), place, "exec"), names)


def test_the_first_program_is_readmes():
    program, source = blocks(README)[0], FIRST_PROGRAM.read_text()
    function = program[program.index("class ") : program.index("env = ")].strip()
    assert function in source
