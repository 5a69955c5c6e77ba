"""An operator around one user function, with or without key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from traceback import walk_tb
from typing import Any, TypeVar

from pillarbox._elements import Records
from pillarbox._errors import ProgramError
from pillarbox._operators.frame.collector import Collector, is_from_further_on
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

_NO_TIMESTAMP = ", which has no timestamp (assign_timestamps_and_watermarks(...) gives it one)"


def keyed_context(context: OperatorContext) -> KeyedContext:
    """Return the keyed state and timers of an operator that cannot do without.

    Raises:
        ProgramError: its task has none.
    """
    if context.keyed is None:
        raise ProgramError(
            f"operator {context.name!r} works under keys, and there is no keyed state where it runs: put key_by(...)"
            " directly before it; in a test, give it a keyed harness"
        )
    return context.keyed


class FunctionOperator(StreamOperator):
    """An operator around one user function: a :class:`Function`, or any callable.

    Args:
        function: the user's; None where the operator has none.
        method: the method of a :class:`Function` that handles a record.
        keying: the keys under which the function is called; None: it has none, and no keyed state.

    Attributes:
        own_states: the names of the keyed states that the operator has itself, which the function may not use.

    Raises:
        ProgramError: there is a key, and no keyed state.
    """

    own_states: Collection[str] = ()

    def __init__(self, context: OperatorContext, function: Any, method: str, keying: Keying | None = None) -> None:
        super().__init__(context)
        self.function = function
        self.keying = keying
        self.keyed: KeyedContext | None = None if keying is None else keyed_context(context)
        self._method = method
        self._collector: Collector = Collector(context)  # of operators that gather what their function emits

    def open(self) -> None:
        """Open the user's function."""
        if isinstance(self.function, Function):
            context = RuntimeContext(self.context, self.keyed, self.own_states)
            opening = with_context(self.context, "open()", self.function.open, context)
            if inspect.iscoroutine(opening):
                opening.close()
                raise ProgramError(
                    f"operator {self.name!r}: open() is an async def, which only functions of map_async() and"
                    " AsyncDataStream may have"
                )

    def initialize_function(self, *, is_restored: bool) -> None:
        """Let the function take its states of the operator itself.

        Raises:
            ProgramError: there is no place for them.
        """
        if isinstance(self.function, CheckpointedFunction):
            store = self.context.operator_state
            if store is None:
                raise ProgramError(no_operator_state(self.name))
            context = FunctionInitializationContext(store, is_restored=is_restored)
            with_context(self.context, "initialize_state()", self.function.initialize_state, context)

    def snapshot_function(self, checkpoint_id: int) -> None:
        """Let the function bring its states of the operator itself up to date."""
        if isinstance(self.function, CheckpointedFunction):
            context = FunctionSnapshotContext(checkpoint_id)
            with_context(self.context, "snapshot_state()", self.function.snapshot_state, context)

    def close(self) -> None:
        """Close the user's function. No record is handled any more, so there is no current key."""
        if self.keyed is not None:
            self.keyed.backend.leave_key()
        if isinstance(self.function, Function):
            with_context(self.context, "close()", self.function.close)

    @property
    def has_close(self) -> bool:
        """Whether the function has a ``close()``."""
        return has_close(self.function)

    def flush(self) -> None:
        """Hand on what the function has emitted, as far as it is collected."""
        self._collector.flush()

    @property
    def call(self) -> Callable[..., Any]:
        """The callable that handles a record."""
        # By its type, not by what it has: a class or callable of another kind may well have a method of this name.
        call: Any = self.function
        if isinstance(call, Function):
            call = getattr(call, self._method, call)
        return call  # type: ignore[no-any-return]

    def each(self, records: Records, keying: Keying | None, *, timeless: bool = False) -> Pass:
        """Return a pass over a run's values. Where there are keys, taking a value makes its key the current one.

        Args:
            keying: how the records get their keys; None: they have none.
            timeless: whether user code that asks for the timestamps of the values gets None.
        """
        values = records.values
        pending = iter(values)
        # A function that declared no state does without: it cannot tell.
        if keying is None or self.keyed is None or not self.keyed.backend.is_declared:
            return Pass(self, values, pending, pending, timeless=timeless)
        return Pass(self, values, pending, under_keys(self.keyed.backend, keying.keys_of(records), pending))


class Pass:
    """A pass of user code over values.

    Used as ``with operator.each(records, operator.keying) as values: for value in values: ...``; an error in the block
    is raised as one that names operator, key and record.

    Args:
        values: all of them.
        pending: the iterator over them, from which the position is known at which the pass stopped.
        taken: what the block iterates over.
        timeless: whether user code that asks for the timestamps of the values gets None.
    """

    __slots__ = ("_operator", "_pending", "_taken", "_timeless", "_values")

    def __init__(
        self,
        operator: FunctionOperator,
        values: Sequence[Any],
        pending: Iterator[Any],
        taken: Iterator[Any],
        *,
        timeless: bool = False,
    ) -> None:
        self._operator = operator
        self._values = values
        self._pending = pending
        self._taken = taken
        self._timeless = timeless

    def __enter__(self) -> Iterator[Any]:
        return self._taken

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or is_from_further_on(error):
            return
        operator = self._operator
        place: dict[str, Any] = {"operator": operator.name, "subtask": operator.context.subtask}
        if operator.keyed is not None:
            place["key"] = operator.keyed.backend.key
        hint = _NO_TIMESTAMP if self._timeless and _misses_a_timestamp(error) else ""
        raise_at_record(error, f"operator {operator.name!r}", self._values, self._pending, hint, **place)


def _misses_a_timestamp(error: BaseException) -> bool:
    """Return whether an error is as that of ``ctx.timestamp() + 60_000``, where Python only says ``NoneType``."""
    if not isinstance(error, TypeError) or "NoneType" not in str(error):
        return False
    *_, (frame, _) = walk_tb(error.__traceback__)
    return "timestamp" in frame.f_code.co_names


def under_keys(backend: KeyedStateBackend, keys: Iterable[Any], pending: Iterator[T]) -> Iterator[T]:
    """Return ``pending``; taking an element makes the key in its place the current one."""
    set_current_key = backend.set_current_key
    for value, key in zip(pending, keys):
        set_current_key(key)
        yield value
