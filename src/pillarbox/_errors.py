"""The errors that pillarbox raises for wrong use and for broken promises, and how they show a value.

Every message names the operator, the key or field, the value (cut short) and what to do. Its first line is the
error message; the second says where in the program it happened, so far as the first does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from typing import Any, NoReturn

from pillarbox._unpickle import make_error

# Of what an exception says, this much is shown.
_MESSAGE_LIMIT = 1000
_FIELDS_LIMIT = 300
# Of a value that becomes a column of text, this much (characters).
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

    def at(self, **place: object) -> None:
        """Add where it happened: ``operator``, ``subtask``, ``key``, ``record``; the first operator to say so is right.

        The operators before it see the error, too, as it passes through their calls.
        """
        shown = {name: shorten_record(value) if name == "record" else shorten(value) for name, value in place.items()}
        if "operator" not in shown or self._place.setdefault("operator", shown["operator"]) == shown["operator"]:
            self._place = {**shown, **self._place}

    @property
    def place(self) -> dict[str, str]:
        """Where it happened, as far as that is known: each value as text, cut short."""
        return dict(self._place)

    def __str__(self) -> str:
        message = super().__str__()
        told = [f"{name} {value}" for name in _PLACE if (value := self._place.get(name)) is not None]
        missing = [part for part in told if part not in message]
        return f"{message}\n  ({', '.join(missing)})" if missing else message


_PLACE = ("operator", "subtask", "key", "record")


def place_of_task(operator: str, subtask: int | None = None, epoch: int | None = None) -> str:
    """Return where a task was, which lines of the log end with: ``(operator 'x', subtask 3, epoch 12)``.

    None is left out: it is not known there.
    """
    parts = [f"operator {operator!r}"]
    parts += [f"{name} {value}" for name, value in (("subtask", subtask), ("epoch", epoch)) if value is not None]
    return f"({', '.join(parts)})"


class ProgramError(PillarboxError, ValueError):
    """The program cannot run as it is written; raised while it is being built."""


class MissingMethodError(ProgramError, AttributeError):
    """An object of this kind has no such method: it is an ``AttributeError``, so ``hasattr`` says no."""


class MissingClassError(ProgramError, ImportError):
    """A class of PyFlink's does not exist here. It is an ``ImportError``, so an ``import`` shows what to do instead."""


class ConfigurationError(PillarboxError):
    """Spark, Java or a Python package is not set up as pillarbox needs it."""


class KeyTypeError(PillarboxError, TypeError):
    """A key has no hash that is the same in every process, so it cannot be routed."""


class OperatorError(PillarboxError):
    """User code of an operator raised; the cause is chained."""


class BudgetExceededError(PillarboxError):
    """A request did not begin: the ceiling of a budget with ``when_exceeded="fail"`` is reached."""


class CircuitOpenError(PillarboxError):
    """A request did not begin: the circuit breaker of a budget with ``when_exceeded="fail"`` is open."""


class TypeMismatchError(PillarboxError, TypeError):
    """A value does not fit the declared type of its column."""


class ExchangeError(PillarboxError):
    """A channel between two tasks lost, doubled or reordered a buffer, or ended without its barrier."""


class CheckpointMismatchError(PillarboxError):
    """The state at hand was written by another program, parallelism, or newer version of pillarbox, or is damaged."""


class SavepointError(PillarboxError):
    """A query could not be stopped with a savepoint, or was stopped before it had the state of one.

    It says whether the query runs, and how to resume it.
    """


class TaskCanceledError(PillarboxError):
    """A task was cancelled while it ran an epoch."""


class TaskStateError(PillarboxError):
    """A task was asked for something that cannot happen in the state that it is in."""


# How values of these types begin and end, as Python shows them.
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    dict: ("{", "}"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}


def check_kind(value: object, kinds: type | tuple[type, ...], what: str, wanted: str) -> None:
    """Check that an argument is of one of some classes.

    Args:
        what: the argument, and ``wanted``: the words for what it is, as in "the name of a column".

    Raises:
        ProgramError: it is of another one.
    """
    if not isinstance(value, kinds):
        raise ProgramError(f"{what} is {wanted}, not {shorten(value)}")


def check_takes(value: object, kinds: type | tuple[type, ...], method: str, wanted: str) -> None:
    """Check that a method is given an object of one of some classes.

    Args:
        method: the method, as in "key_by()".
        wanted: the words for what it takes, as in "an OutputTag".

    Raises:
        ProgramError: it is of another one.
    """
    if not isinstance(value, kinds):
        raise ProgramError(f"{method} takes {wanted}, not {shorten(value)}")


def check_text(value: object, what: str) -> None:
    """Check that an argument is text, and not empty.

    Raises:
        ProgramError: it is something else.
    """
    check_kind(value, str if value != "" else (), what, "a non-empty string")


def is_count(value: object, least: int = 1) -> bool:
    """Return whether something is a whole number, and at least another one. ``True`` is no number."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_count(value: object, what: str, wanted: str = "a whole number from 1") -> None:
    """Check that an argument is a whole number from 1.

    Raises:
        ProgramError: it is something else.
    """
    if not is_count(value):
        raise ProgramError(f"{what} is {wanted}, not {shorten(value)}")


def listed(names: Iterable[object]) -> str:
    """Return names for an error: each as ``repr`` shows it, or "none"."""
    return ", ".join(map(repr, names)) or "none"


def shorten(value: object, limit: int = 80) -> str:
    """Return ``repr(value)`` in at most ``limit`` characters; never raises."""
    try:
        text = _shown(value, limit)
    except Exception as error:  # a user's __repr__ may be broken: the report must still come out
        text = f"<{type(value).__name__} whose repr raised {type(error).__name__}>"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _shown(value: Any, limit: int) -> str:
    """Return ``repr(value)``, or a beginning of it that is longer than ``limit``: all of it may be huge.

    Classes of the program's own say themselves what they show.
    """
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
    for name, each in zip(repeat("") if fields is None else map("{}=".format, fields), value):
        text += name + _shown(each, limit - len(text))
        if kind is dict:
            text += ": " + _shown(value[each], limit - len(text))
        if len(text) > limit:
            return text
        text += ", "
    return text[:-2] + ("," if kind is tuple and len(value) == 1 else "") + closing


def shorten_record(record: object) -> str:
    """Return ``repr(record)``, cut short where it is longer than records are that one reads at a glance."""
    return shorten(record, 200)


def advice_on_version(written: int, known: int) -> str:
    """Return what to do about a file of a format, or by a scheme, with another number than this version knows."""
    return "update pillarbox" if written > known else "run the version of pillarbox that wrote it"


def describe(error: BaseException) -> str:
    """Return an exception as one line: its type, its message, cut short, and those that it groups; never raises."""
    try:
        message = " ".join(str(error).split())
    except Exception as broken:  # a user's __str__ may be broken: the report must still come out
        message = f"<its message raised {type(broken).__name__}>"
    inner: Any = getattr(error, "exceptions", ())
    if isinstance(inner, (list, tuple)) and inner:
        message += f" [{'; '.join(describe(each) for each in inner if isinstance(each, BaseException))}]"
    message += _fields_of(error)
    if len(message) > _MESSAGE_LIMIT:
        message = message[: _MESSAGE_LIMIT - 3] + "..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _fields_of(error: BaseException) -> str:
    """Return the fields that there are, where an attribute was asked for that a row or named tuple does not have."""
    if not isinstance(error, AttributeError) or not isinstance(error.obj, tuple):
        return ""
    fields: object = getattr(type(error.obj), "_fields", None)
    if not fields or not isinstance(fields, tuple):
        return ""
    names = ", ".join(map(str, fields))
    return f"; its fields are {names if len(names) <= _FIELDS_LIMIT else names[: _FIELDS_LIMIT - 3] + '...'}"


def causes_of(error: BaseException) -> list[BaseException]:
    """Return an error and all that Python shows with it; each once, also where one is its own cause.

    These are the error that it was raised from, or that was being handled meanwhile, and the errors that it groups.
    """
    found: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        each = pending.pop()
        if isinstance(each, BaseException) and not any(each is other for other in found):
            found.append(each)
            inner = getattr(each, "exceptions", ())
            pending += inner if isinstance(inner, (list, tuple)) else ()
            pending.append(each.__cause__ if each.__suppress_context__ else each.__context__)
    return found


def no_time_zone(what: str) -> str:
    """Return the message for dates and naive datetimes that are no points in time, as no session has a time zone."""
    return (
        f"{what} has no time zone, and there is no Spark session, whose time zone it would be in: give it one, such as"
        " tzinfo=timezone.utc, or set one with env.set_time_zone('Europe/Berlin'), or with the time_zone of a harness"
    )


def failed(error: BaseException) -> str:
    """Return the words for what an error did to a call: Ctrl-C interrupts it, and is no failure."""
    return "was interrupted" if isinstance(error, KeyboardInterrupt) else "failed"


def raise_from_user_code(error: BaseException, what: str, **place: object) -> NoReturn:
    """Raise what user code raised as an error that says so: :class:`OperatorError`, with the cause chained.

    pillarbox's own errors stay what they are, and learn where they happened. ``KeyboardInterrupt`` stays one, too, with
    the error message as its own: it may be the user's Ctrl-C, which must not be caught by an ``except Exception``.

    Args:
        what: what failed (:func:`failed`): the message up to the cause.
        place: where: see :meth:`PillarboxError.at`.
    """
    if isinstance(error, PillarboxError):
        error.at(**place)
        raise error
    if isinstance(error, KeyboardInterrupt) and isinstance(error.__cause__, KeyboardInterrupt):
        raise error  # an operator further on has said it
    if isinstance(error, KeyboardInterrupt):
        raise KeyboardInterrupt(what) from error
    outcome = OperatorError(f"{what}: {describe(error)}")
    outcome.at(**place)
    raise outcome from error
