"""docs/pyflink.md: its program prints what the page says, and the code in its tables is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import PillarboxError, StreamExecutionEnvironment, Types
from tests.support.docs import HOME, blocks

PAGE = HOME / "docs" / "pyflink.md"
PAYMENT = Types.ROW_NAMED(["card", "amount"], [Types.STRING(), Types.LONG()])


def cells() -> Iterator[str]:
    """The right column of the tables."""
    for row in re.findall(r"^\| (?!---)(.*) \|$", PAGE.read_text(), re.MULTILINE):
        left, _, right = row.partition(" | ")
        if left != "in PyFlink":
            yield right


def code() -> list[str]:
    """The code in the right column that calls something."""
    spans = [span for cell in cells() for span in re.findall(r"`(.+?)`(?!`)", cell)]
    return [span for span in spans if "(" in span and "..." not in span and is_expression(span)]


def is_expression(span: str) -> bool:
    try:
        ast.parse(span, mode="eval")
    except SyntaxError:
        return False
    return True


def refused(call: Callable[[], Any]) -> bool:
    with pytest.raises(PillarboxError):
        call()
    return True


def evaluate(span: str, env: StreamExecutionEnvironment, **more: Any) -> None:
    stream = env.from_collection([("ann", 5), ("bob", 7)])
    names = {name: getattr(pillarbox, name) for name in pillarbox.__all__}
    value = eval(
        span,
        {**names, "pillarbox": pillarbox, "env": env, "stream": stream, "PAYMENT": PAYMENT, "refused": refused, **more},
    )
    assert value is not False, span
    assert value is True or " == " not in span, span


def needs_spark(span: str) -> bool:
    return "spark" in span or "to_dataframe" in span


def test_the_program_prints_what_the_page_says(capsys):
    (program,) = blocks(PAGE)
    exec(compile(program, "docs/pyflink.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == ["ann 6", "bob 7"]
    assert "It prints `ann 6` and `bob 7`." in PAGE.read_text()


@pytest.mark.parametrize("span", [span for span in code() if not needs_spark(span)])
def test_the_code_in_the_tables_is_right(span):
    evaluate(span, StreamExecutionEnvironment())


def test_the_code_in_the_tables_that_takes_spark(spark: SparkSession):
    found = [span for span in code() if needs_spark(span)]
    assert len(found) >= 4
    for span in found:
        evaluate(span, StreamExecutionEnvironment(spark), spark=spark)
