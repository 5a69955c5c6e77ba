"""Dead letters: records whose function raised, emitted to a side output."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeGuard, TypeVar

from pillarbox._elements.records import Records
from pillarbox._errors import (
    SHOWN,
    BudgetExceededError,
    CircuitOpenError,
    OperatorError,
    PillarboxError,
    ProgramError,
    describe,
    place_of_task,
    shorten,
)
from pillarbox._operators.frame.operator import Input, OperatorContext
from pillarbox._operators.functions.contexts import TimeDomain
from pillarbox._operators.functions.metric_group import DEAD_LETTERS, Counter
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._tracebacks import formatted
from pillarbox._unpickle import make

_log = logging.getLogger("pillarbox")

T = TypeVar("T")

OnError = Literal["fail"] | OutputTag[Any]
"""``"fail"`` fails the task on an error; a tag sends a :class:`DeadLetter` to that side output."""


@dataclass(frozen=True)
class DeadLetter:
    """A record or timer that a function failed to process, emitted to the side output of ``on_error=OutputTag(...)``.

    The function's changes to keyed state, timers and output are undone.

    Attributes:
        value: the record before the call. For a window function, the window's elements. For a timer, None.
        key: the key of the record or timer, or None on a non-keyed stream.
        timestamp: the time of the record or timer (Unix time in ms), or None.
        error: the type and message of the error.
        traceback: the traceback of the error and its causes, with only the frames of user code.
        timer: the timer's clock, or None for a record.

    Example:
        >>> BAD = OutputTag[DeadLetter]("bad")
        >>> letters = env.from_collection(["1", "two"]).map(int, on_error=BAD).get_side_output(BAD)
        >>> [(letter.value, letter.error) for letter in letters.execute_and_collect()]
        [('two', "ValueError: invalid literal for int() with base 10: 'two'")]
    """

    value: Any
    key: Any
    timestamp: int | None
    operator: str
    error: str
    traceback: str
    timer: TimeDomain | None = None

    COLUMNS: ClassVar[str] = (
        "value STRING, key STRING, timestamp LONG, operator STRING, error STRING, traceback STRING, timer STRING"
    )

    def as_text(self) -> tuple[str, str | None, int | None, str, str, str, str | None]:
        """Return the values of :attr:`COLUMNS`. Value and key are a ``repr()``, cut to 10,000 characters.

        Example:
            >>> DeadLetter({"id": 3}, "k", None, "parse", "ValueError: bad", "").as_text()
            ("{'id': 3}", "'k'", None, 'parse', 'ValueError: bad', '', None)
        """
        key = None if self.key is None else shorten(self.key, SHOWN)
        timer = None if self.timer is None else self.timer.value
        return (shorten(self.value, SHOWN), key, self.timestamp, self.operator, self.error, self.traceback, timer)

    def __reduce__(self) -> Any:
        fields = (self.value, self.key, self.timestamp, self.operator, self.error, self.traceback, self.timer)
        return make, ("DeadLetter", *fields)


class DeadLetters:
    """Writes and counts an operator's dead letters.

    Args:
        has_key: whether letters contain the key. False if pillarbox, not the program, has keyed the stream.
    """

    def __init__(
        self, context: OperatorContext, tag: OutputTag[Any], outputs: Mapping[str, Input], *, has_key: bool = True
    ) -> None:
        self._context = context
        self._has_key = has_key
        self._tag_id = tag.tag_id
        self._outputs = outputs
        self._count = context.metrics.get(DEAD_LETTERS, Counter)
        self._warned = tag.tag_id in context.read_elsewhere

    def write(self, cause: Exception, value: Any, key: Any, stamp: int | None, timer: TimeDomain | None = None) -> None:
        self.emit(self.letter(cause, value, key, stamp, timer), type(cause).__name__)

    def letter(
        self, cause: BaseException, value: Any, key: Any, stamp: int | None, timer: TimeDomain | None
    ) -> DeadLetter | None:
        if self._tag_id not in self._outputs:
            return None
        key = key if self._has_key else None
        return DeadLetter(value, key, stamp, self._context.name, describe(cause), formatted(cause), timer)

    def emit(self, letter: DeadLetter | None, cause: str) -> None:
        self._count.inc()
        if letter is not None and self._tag_id in self._outputs:
            emitted = None if letter.timer is TimeDomain.PROCESSING_TIME else letter.timestamp
            self._outputs[self._tag_id].process_records(Records([letter], [emitted]))
        elif not self._warned:
            self._warned = True
            _log.warning(
                "the function raised %s, and its record was dropped, because the side output %r is not among the"
                " program's outputs: add get_side_output(...) to them. Further dropped records are only counted %s",
                cause,
                self._tag_id,
                place_of_task(self._context.name, self._context.subtask, self._context.epoch),
            )


def cause_of(error: PillarboxError) -> Exception:
    """Return the error for a dead letter: the exception that user code raised, or an error about the record.

    Raises ``error`` if it is about the program or environment.
    """
    if not isinstance(error, OperatorError):
        return error
    cause = error.__cause__
    if not concerns_record(cause):
        raise error
    return cause


def concerns_record(error: BaseException | None, others: tuple[type[Exception], ...] = ()) -> TypeGuard[Exception]:
    """Return whether an error is about the record, and not about the program or environment.

    An exception group is about the record if all its errors are. ``others`` are further errors about records.
    """
    if isinstance(error, others):
        return True
    grouped: Any = getattr(error, "exceptions", ())
    return (
        isinstance(error, Exception)
        and not isinstance(error, (PillarboxError, MemoryError))
        and not (isinstance(grouped, tuple) and not all(concerns_record(part, others) for part in grouped))
    )


def concerns_request(error: BaseException) -> bool:
    """Return whether an error of a coroutine is about its record.

    Unlike :func:`concerns_record`, True if a budget refused the call, or if user code canceled the coroutine.
    """
    return concerns_record(error, (BudgetExceededError, CircuitOpenError)) or isinstance(error, asyncio.CancelledError)


def sort_out(
    records: Records,
    check: Callable[[Records], T],
    errors: tuple[type[PillarboxError], ...],
    letters: DeadLetters,
    *,
    in_halves: bool,
) -> Iterator[tuple[range, T]]:
    """Split records at bad records. Yield (positions, result of ``check``) for each good part, in order.

    Args:
        check: raises one of ``errors`` if a record is bad.
        in_halves: whether to check records together and bisect them after an error (for columns), or each record alone
            (for user functions).
    """
    pending = [range(len(records))] if in_halves else [range(at, at + 1) for at in reversed(range(len(records)))]
    while pending:
        part = pending.pop()
        try:
            result = check(records.slice(part.start, part.stop))
        except errors as error:
            if len(part) == 1:
                stamp = None if records.timestamps is None else records.timestamps[part.start]
                letters.write(cause_of(error), records.values[part.start], None, stamp)
            else:
                middle = len(part) // 2
                pending += (part[middle:], part[:middle])
        else:
            yield part, result


def check_on_error(on_error: Any, method: str) -> None:
    if on_error != "fail" and not isinstance(on_error, OutputTag):
        raise ProgramError(
            f'{method}: on_error= must be "fail" or the OutputTag for dead letters, not {shorten(on_error)}'
        )
