"""Calls of user code: what it raises comes out as an error that names the operator, the key and the record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any, NoReturn

from pillarbox._errors import failed, raise_from_user_code, shorten_record
from pillarbox._operators.frame.operator import OperatorContext


def raise_at_record(
    error: BaseException, where: str, values: Sequence[Any], pending: Iterator[Any], hint: str = "", **place: Any
) -> NoReturn:
    """Raise the error that names ``where`` and the record, when user code raised in a pass over ``values``.

    Args:
        hint: what is to be said of the record.
    """
    position = len(values) - length_hint(pending) - 1
    at = f"{where} {failed(error)}"
    if 0 <= position < len(values):
        place |= {"record": values[position], "position": position}
        at += f" at the record {shorten_record(values[position])}{hint}"
    raise_from_user_code(error, at, **place)


def with_context(context: OperatorContext, what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call user code; an exception comes out as an error that names the operator and ``what`` was done."""
    try:
        return function(*args)
    except BaseException as error:
        said = f"operator {context.name!r} {failed(error)} in {what}"
        raise_from_user_code(error, said, operator=context.name, subtask=context.subtask)
