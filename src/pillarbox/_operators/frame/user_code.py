"""Adds the operator, key and record to exceptions that user code raises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any, NoReturn

from pillarbox._errors import failed, raise_from_user_code, shorten_record
from pillarbox._operators.frame.operator import OperatorContext


def raise_at_record(
    error: BaseException, where: str, values: Sequence[Any], pending: Iterator[Any], hint: str = "", **details: Any
) -> NoReturn:
    """Raise an OperatorError for a user-code exception."""
    position = len(values) - length_hint(pending) - 1
    at = f"{where} {failed(error)}"
    if 0 <= position < len(values):
        details |= {"record": values[position], "position": position}
        at += f" at the record {shorten_record(values[position])}{hint}"
    raise_from_user_code(error, at, **details)


def with_context(context: OperatorContext, what: str, function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except BaseException as error:
        message = f"operator {context.name!r} {failed(error)} in {what}"
        raise_from_user_code(error, message, operator=context.name, subtask=context.subtask)
