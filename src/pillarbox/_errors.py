"""Exceptions, argument checks, and shortening of values in messages.

Each message names the operator, the key or field, the (shortened) value and a remedy. A second line gives the location
in the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, NoReturn

from pillarbox._unpickle import make_error

_MESSAGE_LIMIT = 1000
_FIELDS_LIMIT = 300
# Maximum length of a value in a text column.
SHOWN = 10_000


class PillarboxError(Exception):
    """Base class of pillarbox's own errors."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._place: dict[str, str] = {}

    def __reduce__(self) -> Any:
        if not type(self).__module__.startswith("pillarbox."):
            return super().__reduce__()
        return make_error, (type(self).__name__, self.args), self.__dict__

    def at(self, **location: object) -> None:
        """Add parts of the error's location: ``operator``, ``subtask``, ``key``, ``record``. Existing parts are kept.

        If the location already names another operator, nothing is added: the error is propagating through upstream
        operators.
        """
        shown = {
            name: shorten_record(value) if name == "record" else shorten(value) for name, value in location.items()
        }
        if "operator" not in shown or self._place.setdefault("operator", shown["operator"]) == shown["operator"]:
            self._place = {**shown, **self._place}

    @property
    def place(self) -> dict[str, str]:
        """The known parts of the error's location (``operator``, ``subtask``, ...), with shortened values."""
        return dict(self._place)

    def __str__(self) -> str:
        message = super().__str__()
        parts = [f"{name} {value}" for name in _PLACE if (value := self._place.get(name)) is not None]
        missing = [part for part in parts if part not in message]
        return f"{message}\n  ({', '.join(missing)})" if missing else message


_PLACE = ("operator", "subtask", "key", "record")


def place_of_task(operator: str, subtask: int | None = None, epoch: int | None = None) -> str:
    parts = [f"operator {operator!r}"]
    parts += [f"{name} {value}" for name, value in (("subtask", subtask), ("epoch", epoch)) if value is not None]
    return f"({', '.join(parts)})"


class ProgramError(PillarboxError, ValueError):
    """The program is invalid. Raised while the program is built."""


class MissingMethodError(ProgramError, AttributeError):
    """A stream or another object lacks a method. This is an ``AttributeError``, so ``hasattr`` returns False."""


class MissingClassError(ProgramError, ImportError):
    """pillarbox lacks a PyFlink class. Raised by the ``import``, with an alternative in the message."""


class ConfigurationError(PillarboxError):
    """Spark, Java or a Python package lacks a required setting, or has an unsupported version."""


class KeyTypeError(PillarboxError, TypeError):
    """A key cannot be assigned to a subtask, because its hash would differ between processes."""


class OperatorError(PillarboxError):
    """User code in an operator raised an exception, which is chained as the cause."""


class BudgetExceededError(PillarboxError):
    """A request was rejected because a budget with ``when_exceeded="fail"`` has reached its ceiling."""


class CircuitOpenError(PillarboxError):
    """A request was rejected because the circuit breaker of a budget with ``when_exceeded="fail"`` is open."""


class TypeMismatchError(PillarboxError, TypeError):
    """A value does not fit the declared type of its column."""


class ExchangeError(PillarboxError):
    """A channel between two tasks lost, duplicated or reordered a buffer, or ended without its barrier."""


class CheckpointMismatchError(PillarboxError):
    """State is damaged, or belongs to another program, another parallelism or a newer version of pillarbox."""


class SavepointError(PillarboxError):
    """A query could not be stopped with a savepoint, or ended before the savepoint was complete.

    The message says whether the query is running, and how to resume it.
    """


class TaskCanceledError(PillarboxError):
    """A task was cancelled while it ran an epoch."""


class TaskStateError(PillarboxError):
    """A task's method was called in a state that does not allow it."""


# Brackets of these types in a repr.
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    dict: ("{", "}"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def check_kind(value: object, kinds: type | tuple[type, ...], what: str, expected: str) -> None:
    """Raise ProgramError with "``what`` must be ``expected``" unless ``value`` is an instance of one of ``kinds``."""
    if not isinstance(value, kinds):
        raise ProgramError(f"{what} must be {expected}, not {shorten(value)}")


def check_takes(value: object, kinds: type | tuple[type, ...], method: str, expected: str) -> None:
    """Raise ProgramError with "``method`` takes ``expected``" unless ``value`` is an instance of one of ``kinds``."""
    if not isinstance(value, kinds):
        raise ProgramError(f"{method} takes {expected}, not {shorten(value)}")


def check_text(value: object, what: str) -> None:
    check_kind(value, str if value != "" else (), what, "a non-empty string")


def is_count(value: object, least: int = 1) -> bool:
    """Return whether a value is an int (but not a bool) of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_count(value: object, what: str, expected: str = "a positive integer") -> None:
    if not is_count(value):
        raise ProgramError(f"{what} must be {expected}, not {shorten(value)}")


def listed(names: Iterable[object]) -> str:
    return ", ".join(map(repr, names)) or "none"


def shorten(value: object, limit: int = 80) -> str:
    """Return ``repr(value)`` in at most ``limit`` characters. Never raises."""
    try:
        text = _shown(value, limit)
    except Exception as error:  # a user's __repr__ may raise
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return encodable(text if len(text) <= limit else text[: limit - 3] + "...")


def _shown(value: Any, limit: int) -> str:
    """Return ``repr(value)`` or, for a huge value, a prefix of more than ``limit`` characters."""
    kind = type(value)
    if kind in (str, bytes, bytearray):
        return repr(value[: max(limit, 0) + 1])
    fields: Iterable[str] | None = None
    if kind in _BRACKETS:
        opening, closing = _BRACKETS[kind]
    elif isinstance(value, tuple) and kind.__repr__.__qualname__ == "Row.__repr__":
        opening, closing, fields = "Row(", ")", getattr(value, "_fields", ())
    else:
        return repr(value)
    if limit <= 0 or not value:
        return repr(value) if not value else "..."
    text = opening
    for name, item in zip(repeat("") if fields is None else map("{}=".format, fields), value):
        text += name + _shown(item, limit - len(text))
        if kind is dict:
            text += ": " + _shown(value[item], limit - len(text))
        if len(text) > limit:
            return text
        text += ", "
    return text[:-2] + ("," if kind is tuple and len(value) == 1 else "") + closing


def shorten_record(record: object) -> str:
    return shorten(record, 200)


def advice_on_version(written: int, supported: int) -> str:
    return "update pillarbox" if written > supported else "run the version of pillarbox that wrote it"


def describe(error: BaseException) -> str:
    """Describe an exception in one line: type, shortened message and any grouped exceptions. Never raises."""
    try:
        message = " ".join(str(error).split())
    except Exception as broken:  # a user's __str__ may raise
        message = f"<its message raised {type(broken).__name__}>"
    inner: Any = getattr(error, "exceptions", ())
    if isinstance(inner, (list, tuple)) and inner:
        message += f" [{'; '.join(describe(part) for part in inner if isinstance(part, BaseException))}]"
    message += _fields_of(error)
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 3] + "..."
    return encodable(f"{type(error).__name__}: {message}" if message else type(error).__name__)


def encodable(text: str) -> str:
    """Escape lone surrogates, which a column or Spark's error report would refuse."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def _fields_of(error: BaseException) -> str:
    if not isinstance(error, AttributeError) or not isinstance(error.obj, tuple):
        return ""
    fields: object = getattr(type(error.obj), "_fields", None)
    if not fields or not isinstance(fields, tuple):
        return ""
    names = ", ".join(map(str, fields))
    return f"; its fields are {names if len(names) <= _FIELDS_LIMIT else names[: _FIELDS_LIMIT - 3] + '...'}"


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and its causes and contexts that Python would print, without duplicates."""
    errors: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        candidate = pending.pop()
        if isinstance(candidate, BaseException) and not any(candidate is other for other in errors):
            errors.append(candidate)
            inner = getattr(candidate, "exceptions", ())
            pending += inner if isinstance(inner, (list, tuple)) else ()
            pending.append(candidate.__cause__ if candidate.__suppress_context__ else candidate.__context__)
    return errors


def no_time_zone(what: str) -> str:
    return (
        f"{what} has no time zone, and there is no Spark session with a default: add one, such as"
        " tzinfo=timezone.utc, or set a default with env.set_time_zone('Europe/Berlin') or time_zone= of a harness"
    )


def failed(error: BaseException) -> str:
    """Return the verb for a call that raised: "was interrupted" after Ctrl-C, otherwise "failed"."""
    return "was interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def raise_from_user_code(error: BaseException, what: str, **location: object) -> NoReturn:
    """Raise an :class:`OperatorError` whose cause is an error in user code.

    pillarbox's own errors are re-raised with the location added. ``KeyboardInterrupt`` keeps its type, so that no
    ``except Exception`` catches it.
    """
    if isinstance(error, PillarboxError):
        error.at(**location)
        raise error
    if isinstance(error, KeyboardInterrupt) and isinstance(error.__cause__, KeyboardInterrupt):
        raise error  # an operator downstream has added the message
    if isinstance(error, KeyboardInterrupt):
        raise KeyboardInterrupt(what) from error
    outcome = OperatorError(f"{what}: {describe(error)}")
    outcome.at(**location)
    raise outcome from error


class UnknownColumnError(KeyError):
    """A row has no column with the requested name."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError shows the repr of its message
