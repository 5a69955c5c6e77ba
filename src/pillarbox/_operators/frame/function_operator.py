"""Base class of operators that call one user function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from traceback import walk_tb
from typing import Any, TypeVar

from pillarbox._elements.records import Records
from pillarbox._errors import ProgramError
from pillarbox._operators.frame.collector import Collector, is_from_downstream
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import KeyedContext, OperatorContext, StreamOperator
from pillarbox._operators.frame.user_code import raise_at_record, with_context
from pillarbox._operators.functions.basic import Function, has_close
from pillarbox._operators.functions.checkpointed import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    no_operator_state,
)
from pillarbox._operators.functions.contexts import RuntimeContext
from pillarbox._state.heap.backend import KeyedStateBackend

T = TypeVar("T")

_NO_TIMESTAMP = ", which has no timestamp (call assign_timestamps_and_watermarks(...) first)"


def keyed_context(context: OperatorContext) -> KeyedContext:
    if context.keyed is None:
        raise ProgramError(
            f"operator {context.name!r} needs keyed state, but its input has no keys: call key_by(...) directly"
            " before the operator; in a test, use a keyed harness"
        )
    return context.keyed


class FunctionOperator(StreamOperator):
    """An operator that calls one user function: a :class:`Function`, or any callable."""

    own_states: Collection[str] = ()

    def __init__(self, context: OperatorContext, function: Any, method: str, keying: Keying | None = None) -> None:
        super().__init__(context)
        self.function = function
        self.keying = keying
        self.keyed: KeyedContext | None = None if keying is None else keyed_context(context)
        self._method = method
        self._collector: Collector = Collector(context)

    def open(self) -> None:
        if isinstance(self.function, Function):
            context = RuntimeContext(self.context, self.keyed, self.own_states)
            opening = with_context(self.context, "open()", self.function.open, context)
            if inspect.iscoroutine(opening):
                opening.close()
                raise ProgramError(
                    f"operator {self.name!r}: open() is an async def, which only functions for map_async(),"
                    " AsyncDataStream and process() on a keyed stream may have"
                )

    def initialize_function(self, *, is_restored: bool) -> None:
        if isinstance(self.function, CheckpointedFunction):
            store = self.context.operator_state
            if store is None:
                raise ProgramError(no_operator_state(self.name))
            context = FunctionInitializationContext(store, is_restored=is_restored)
            with_context(self.context, "initialize_state()", self.function.initialize_state, context)

    def snapshot_function(self, checkpoint_id: int) -> None:
        if isinstance(self.function, CheckpointedFunction):
            context = FunctionSnapshotContext(checkpoint_id)
            with_context(self.context, "snapshot_state()", self.function.snapshot_state, context)

    def close(self) -> None:
        if self.keyed is not None:
            self.keyed.backend.leave_key()
        if isinstance(self.function, Function):
            with_context(self.context, "close()", self.function.close)

    @property
    def has_close(self) -> bool:
        return has_close(self.function)

    def flush(self) -> None:
        self._collector.flush()

    @property
    def call(self) -> Callable[..., Any]:
        # Checks the type rather than the attribute, because any callable may have a method with this name.
        call: Any = self.function
        if isinstance(call, Function):
            call = getattr(call, self._method, call)
        return call  # type: ignore[no-any-return]

    def each(self, records: Records, keying: Keying | None, *, timeless: bool = False) -> FunctionPass:
        """Return an iteration over a batch's values. With ``keying``, each value's key becomes the current key."""
        values = records.values
        pending = iter(values)
        if keying is None or self.keyed is None or not self.keyed.backend.is_declared:
            return FunctionPass(self, values, pending, pending, timeless=timeless)
        return FunctionPass(self, values, pending, under_keys(self.keyed.backend, keying.keys_of(records), pending))


class FunctionPass:
    """An iteration over records for user code. As a context manager, adds the operator, key and record to errors.

    Args:
        pending: an iterator over ``values``, whose position is the current record.
    """

    __slots__ = ("_operator", "_pending", "_taken", "_timeless", "_values")

    def __init__(
        self,
        operator: FunctionOperator,
        values: Sequence[Any],
        pending: Iterator[Any],
        iterator: Iterator[Any],
        *,
        timeless: bool = False,
    ) -> None:
        self._operator = operator
        self._values = values
        self._pending = pending
        self._taken = iterator
        self._timeless = timeless

    def __enter__(self) -> Iterator[Any]:
        return self._taken

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or is_from_downstream(error):
            return
        operator = self._operator
        details: dict[str, Any] = {"operator": operator.name, "subtask": operator.context.subtask}
        if operator.keyed is not None:
            details["key"] = operator.keyed.backend.key
        hint = _NO_TIMESTAMP if self._timeless and _misses_a_timestamp(error) else ""
        raise_at_record(error, f"operator {operator.name!r}", self._values, self._pending, hint, **details)


def _misses_a_timestamp(error: BaseException) -> bool:
    """Return whether a missing timestamp probably caused the error."""
    if not isinstance(error, TypeError) or "NoneType" not in str(error):
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return "timestamp" in frame.f_code.co_names


def under_keys(backend: KeyedStateBackend, keys: Iterable[Any], pending: Iterator[T]) -> Iterator[T]:
    set_current_key = backend.set_current_key
    for value, key in zip(pending, keys):
        set_current_key(key)
        yield value
