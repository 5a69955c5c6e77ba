"""The program in docs/pyflink.md prints the page's output, and the code in the page's tables is right."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

import pillarbox
from pillarbox import PillarboxError, StreamExecutionEnvironment, Types
from tests.support.docs import HOME, blocks

PAGE = HOME / "docs" / "pyflink.md"
PAYMENT = Types.ROW_NAMED(["card", "amount"], [Types.STRING(), Types.LONG()])


# A cell's claim about its code: the value, or the error.
SAYS = re.compile(r"`([^`]+)` (is|returns|raises) `([^`]+)`")


class Claim(NamedTuple):
    """Code in a table's right column, and the page's claim about it."""

    code: str
    verb: str = ""
    value: str = ""


def cells() -> Iterator[str]:
    for row in re.findall(r"^\| (?!---)(.*) \|$", PAGE.read_text(), re.MULTILINE):
        left, _, right = row.partition(" | ")
        if left != "in PyFlink":
            yield right


def claims() -> list[Claim]:
    results = [Claim(*groups) for cell in cells() for groups in SAYS.findall(cell)]
    rest = [span for cell in cells() for span in re.findall(r"`(.+?)`(?!`)", SAYS.sub("", cell))]
    return results + [Claim(span) for span in rest if "(" in span and "..." not in span and is_expression(span)]


def is_expression(span: str) -> bool:
    try:
        ast.parse(span, mode="eval")
    except SyntaxError:
        return False
    return True


def check(claim: Claim, env: StreamExecutionEnvironment, **more: Any) -> None:
    stream = env.from_collection([("ann", 5), ("bob", 7)])
    names = {name: getattr(pillarbox, name) for name in pillarbox.__all__}
    names |= {"pillarbox": pillarbox, "env": env, "stream": stream, "PAYMENT": PAYMENT, **more}
    if claim.verb == "raises":
        with pytest.raises(PillarboxError) as caught:
            eval(claim.code, names)
        assert type(caught.value) is names[claim.value]
        return
    value = eval(claim.code, names)
    assert value is not False
    if claim.verb:
        assert value == eval(claim.value, names)


def needs_spark(claim: Claim) -> bool:
    return "spark" in claim.code or "to_dataframe" in claim.code


def test_the_page_says_what_code_returns_and_what_it_raises():
    assert {"is", "returns", "raises"} <= {claim.verb for claim in claims()}
    assert [claim.code for claim in claims() if " == " in claim.code] == []


def test_the_program_prints_what_the_page_says(capsys):
    (program,) = blocks(PAGE)
    exec(compile(program, "docs/pyflink.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == ["ann 6", "bob 7"]
    assert "The program prints `ann 6` and `bob 7`." in PAGE.read_text()


@pytest.mark.parametrize("claim", [claim for claim in claims() if not needs_spark(claim)], ids=lambda claim: claim.code)
def test_the_code_in_the_tables_is_right(claim):
    check(claim, StreamExecutionEnvironment())


def test_the_code_in_the_tables_that_takes_spark(spark: SparkSession):
    results = [claim for claim in claims() if needs_spark(claim)]
    assert len(results) >= 4
    for claim in results:
        check(claim, StreamExecutionEnvironment(spark), spark=spark)
