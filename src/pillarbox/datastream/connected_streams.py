"""Two streams that share the state of one operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pillarbox._generics import T1, T2, Generic, U
from pillarbox.datastream.data_stream import DataStream
from pillarbox.datastream.keyed_stream import KeyedStream
from pillarbox.errors import ProgramError, shorten
from pillarbox.graph import KeyByTransformation
from pillarbox.operators.functions import KeyedCoProcessFunction, KeySelector, check_plain
from pillarbox.operators.keyed_co_process import KeyedCoProcessOperator
from pillarbox.state.key_note import are_other_types
from pillarbox.types import SchemaLike

__all__ = ["ConnectedStreams"]


class ConnectedStreams(Generic[T1, T2]):
    """Two streams, of records of types ``T1`` and ``T2``, for an operator that handles both.

    PyFlink's class of this name, made by ``DataStream.connect``. Both streams are keyed, before they are connected or
    by :meth:`key_by`: records with the same key meet in the same subtask, and in the same state.
    """

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def key_by(
        self,
        first_key: Callable[[T1], Any] | KeySelector[T1, Any] | str | Sequence[str],
        second_key: Callable[[T2], Any] | KeySelector[T2, Any] | str | Sequence[str],
    ) -> ConnectedStreams[T1, T2]:
        """Partition both streams by key: each by a function, a ``KeySelector``, or the names of columns.

        Args:
            first_key: the key of the records of the first stream.
            second_key: the key of those of the second; equal keys of both share their state.

        Raises:
            ProgramError: a column is not there, or its values cannot be keys.

        Example:
            >>> class Both(KeyedCoProcessFunction):
            ...     def process_element1(self, name, ctx):
            ...         yield ctx.get_current_key(), name
            ...
            ...     def process_element2(self, amount, ctx):
            ...         yield ctx.get_current_key(), amount
            >>> names, amounts = env.from_collection(["ann"]), env.from_collection([3])
            >>> keyed = names.connect(amounts).key_by(len, lambda amount: amount)
            >>> sorted(keyed.process(Both()).execute_and_collect(), key=str)
            [(3, 'ann'), (3, 3)]
        """
        return ConnectedStreams(self._first.key_by(first_key), self._second.key_by(second_key))

    def process(
        self,
        func: KeyedCoProcessFunction[Any, T1, T2, U],
        output_type: SchemaLike | None = None,
        *,
        processing_time: bool | None = None,
    ) -> DataStream[U]:
        """Handle the records of both streams, with keyed state, timers and side outputs.

        Event time is the minimum of both streams': timers wait for the slower one.

        Args:
            func: its ``process_element1`` gets the records of the first stream, ``process_element2`` those of the
                second.
            output_type: the columns of the results, for ``to_dataframe()``.
            processing_time: as in ``KeyedStream.process``.

        Raises:
            ProgramError: ``func`` is no such function, a stream has no key, or the keys are of different types.

        Example:
            >>> class Balance(KeyedCoProcessFunction[str, int, int, int]):
            ...     def open(self, runtime_context):
            ...         self.balance = runtime_context.get_state(ValueStateDescriptor[int]("balance"))
            ...
            ...     def process_element1(self, paid_in, ctx):
            ...         self.balance.update((self.balance.value() or 0) + paid_in)
            ...         yield self.balance.value()
            ...
            ...     def process_element2(self, paid_out, ctx):
            ...         self.balance.update((self.balance.value() or 0) - paid_out)
            ...         yield self.balance.value()
            >>> paid_in = env.from_collection([50, 20]).key_by(lambda amount: "ann")
            >>> paid_out = env.from_collection([30]).key_by(lambda amount: "ann")
            >>> paid_in.connect(paid_out).process(Balance()).execute_and_collect()
            [50, 70, 40]
        """
        if not isinstance(func, KeyedCoProcessFunction):
            hint = f"an instance: {func.__name__}()" if isinstance(func, type) else "a KeyedCoProcessFunction"
            raise ProgramError(f"process() of connected streams got {shorten(func)}: give it {hint}")
        for method in ("process_element1", "process_element2", "on_timer"):
            check_plain(func, method, asked_by="process()", many=True)
        first, second = self._first, self._second
        if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
            which = "first" if not isinstance(first, KeyedStream) else "second"
            raise ProgramError(
                f"process() of connected streams: the {which} one has no key, so it is not known which of its records"
                " belong together with those of the other: connect(...).key_by(first_key, second_key)"
            )
        _check_key_types(first, second)
        keyings = (first._keying, second._keying)
        make = partial(KeyedCoProcessOperator, function=func, keyings=keyings)
        return first._process(func, make, output_type, processing_time, [second._step])


def _check_key_types(first: KeyedStream[Any, Any], second: KeyedStream[Any, Any]) -> None:
    """Refuse keys that can never be equal, as far as their types are known."""
    steps = [stream._step for stream in (first, second)]
    one, other = (step.key_types if isinstance(step, KeyByTransformation) else None for step in steps)
    if one is not None and other is not None and (len(one) != len(other) or are_other_types(one, other)):
        raise ProgramError(
            f"process() of connected streams: the keys of the first are {', '.join(one).upper()}, those of the second"
            f" {', '.join(other).upper()}: they are never equal, so no records would meet; key both by the same type"
        )
