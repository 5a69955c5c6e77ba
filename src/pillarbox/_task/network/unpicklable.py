"""Finds the record that cannot be pickled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from pillarbox._elements.buffers import dumps
from pillarbox._errors import raise_from_user_code, shorten, shorten_record

_ADVICE = "(keep connections, locks and generators in the function that creates them)"


def refuse_unpicklable(
    error: BaseException, operator: str, values: Sequence[Any], does: str, what: str, keys: Sequence[Any] = ()
) -> NoReturn:
    """Raise an error that names the record or key that cannot be pickled, or ``error`` if all can be pickled.

    Args:
        does: the operator's action, for the message ("emits").
        what: the failed step, for the message ("cannot be sent on").
    """
    for value in values:
        if not _is_picklable(value):
            message = f"operator {operator!r} {does} the record {shorten_record(value)}, which {what} {_ADVICE}"
            raise_from_user_code(error, message, operator=operator, record=value)
    for value, key in zip(values, keys):
        if not _is_picklable(key):
            start = f"operator {operator!r} {does} the record {shorten_record(value)} with the key {shorten(key)}"
            raise_from_user_code(error, f"{start}, which {what}", operator=operator, record=value, key=key)
    raise error


def _is_picklable(value: Any) -> bool:
    try:
        dumps(value)
    except BaseException:
        return False
    return True
