"""Two streams that share an operator and its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox._datastream.checks.code_search import event_time_use, uses_processing_time
from pillarbox._datastream.checks.given_functions import check_instance
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.streams.keyed_stream import KeyedStream
from pillarbox._errors import ProgramError
from pillarbox._generics import T1, T2, Generic, U
from pillarbox._graph.transformations import KeyByTransformation, PartitionTransformation
from pillarbox._operators.async_keyed.factory import TWO_INPUTS, keyed_process, refuse_keywords
from pillarbox._operators.async_keyed.options import KeyedAsyncKeywords
from pillarbox._operators.connected.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    Keyings,
)
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.basic import KeySelector
from pillarbox._operators.functions.broadcast import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from pillarbox._operators.functions.two_streams import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from pillarbox._state.keys.key_note import are_other_types
from pillarbox._types.schema import SchemaLike
from pillarbox._types.type_information import TypeInformation

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PROCESS = "process() of connected streams"


class ConnectedStreams(Generic[T1, T2]):
    """Two streams, of types ``T1`` and ``T2``, that one operator processes. As in PyFlink.

    If both streams are keyed, before ``connect`` or with :meth:`key_by`, records with the same key share a subtask and
    keyed state. A stream with no key and no explicit partitioning is rebalanced. Functions have a method for each
    stream, such as ``map1`` and ``map2``.

    ``output_type`` and ``on_error`` are as in :class:`DataStream`. Invalid arguments raise ``ProgramError``.
    """

    def __init__(self, first: DataStream[T1], second: DataStream[T2]) -> None:
        self._first = first
        self._second = second

    def key_by(
        self,
        key_selector1: Callable[[T1], Any] | KeySelector[T1, Any] | str | Sequence[str],
        key_selector2: Callable[[T2], Any] | KeySelector[T2, Any] | str | Sequence[str],
        key_type: TypeInformation[Any] | None = None,
    ) -> ConnectedStreams[T1, T2]:
        """Partition both streams by key. A selector is a function, a ``KeySelector``, or column names.

        Args:
            key_type: a type from ``Types``, as in :meth:`DataStream.key_by`.

        Example:
            >>> class Both(KeyedCoProcessFunction):
            ...     def process_element1(self, name, ctx):
            ...         yield ctx.get_current_key(), name
            ...
            ...     def process_element2(self, amount, ctx):
            ...         yield ctx.get_current_key(), amount
            >>> keyed = env.from_collection(["ann"]).connect(env.from_collection([3])).key_by(len, int)
            >>> sorted(keyed.process(Both()).execute_and_collect(), key=str)
            [(3, 'ann'), (3, 3)]
        """
        return ConnectedStreams(
            self._first.key_by(key_selector1, key_type=key_type),
            self._second.key_by(key_selector2, key_type=key_type),
        )

    def map(
        self,
        func: CoMapFunction[T1, T2, U],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[U]:
        """Map each record of both streams to at most one result. As in PyFlink, None results are dropped.

        Example:
            >>> class AsText(CoMapFunction[int, str, str]):
            ...     def map1(self, number):
            ...         return f"number {number}"
            ...
            ...     def map2(self, text):
            ...         return text
            >>> numbers, texts = env.from_collection([1]), env.from_collection(["two"])
            >>> sorted(numbers.connect(texts).map(AsText()).execute_and_collect())
            ['number 1', 'two']
        """
        check_instance(func, CoMapFunction, "map() of connected streams", ("map1", "map2"), many=False)
        return self._apply_function("map", CoMapOperator, func, output_type, on_error)

    def flat_map(
        self,
        func: CoFlatMapFunction[T1, T2, U],
        output_type: SchemaLike | None = None,
        *,
        on_error: OnError = "fail",
    ) -> DataStream[U]:
        """Map each record of both streams to any number of results.

        Example:
            >>> class Words(CoFlatMapFunction[str, int, str]):
            ...     def flat_map1(self, line):
            ...         yield from line.split()
            ...
            ...     def flat_map2(self, number):
            ...         yield str(number)
            >>> lines, numbers = env.from_collection(["to be"]), env.from_collection([2])
            >>> sorted(lines.connect(numbers).flat_map(Words()).execute_and_collect())
            ['2', 'be', 'to']
        """
        methods = ("flat_map1", "flat_map2")
        check_instance(func, CoFlatMapFunction, "flat_map() of connected streams", methods, many=True)
        return self._apply_function("flat_map", CoFlatMapOperator, func, output_type, on_error)

    def process(
        self,
        func: KeyedCoProcessFunction[Any, T1, T2, U] | CoProcessFunction[T1, T2, U],
        output_type: SchemaLike | None = None,
        *,
        processing_time: bool | None = None,
        on_error: OnError = "fail",
        **options: Unpack[KeyedAsyncKeywords],
    ) -> DataStream[U]:
        """Process both streams, with side outputs. If both streams are keyed, the function has keyed state and timers.

        Event time is the minimum of both streams' event times, so timers wait for the slower stream. Options are as in
        :meth:`KeyedStream.process`.

        Args:
            func: a ``KeyedCoProcessFunction`` for keyed streams, or a ``CoProcessFunction`` (without state or timers).

        Example:
            >>> class Balance(KeyedCoProcessFunction[str, int, int, int]):
            ...     def open(self, runtime_context):
            ...         self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, default=0))
            ...
            ...     def process_element1(self, paid_in, ctx):
            ...         self.balance.update(self.balance.value() + paid_in)
            ...
            ...     def process_element2(self, paid_out, ctx):
            ...         self.balance.update(self.balance.value() - paid_out)
            ...         yield self.balance.value()
            >>> paid_in, paid_out = env.from_collection([50, 20]), env.from_collection([30])
            >>> paid_in.connect(paid_out).key_by(bool, bool).process(Balance()).execute_and_collect()
            [40]
        """
        methods = ("process_element1", "process_element2")
        if isinstance(func, CoProcessFunction):
            refuse_keywords(options, func, _PROCESS)
            check_instance(func, CoProcessFunction, _PROCESS, methods, many=True)
            factory = guarded(OperatorFactory(partial(CoProcessOperator, function=func)), on_error, _PROCESS)
            return self._apply("process", func, factory, output_type)
        if isinstance(func, (BroadcastProcessFunction, KeyedBroadcastProcessFunction)):
            raise ProgramError(
                f"{_PROCESS} got {type(func).__name__}, which needs a broadcast stream, as in"
                " connect(rules.broadcast(MapStateDescriptor(...)))"
            )
        check_instance(func, KeyedCoProcessFunction, _PROCESS, (*methods, "on_timer"), many=True, may_await=True)
        for stream, which in ((self._first, "first"), (self._second, "second")):
            if not isinstance(stream, KeyedStream):
                raise ProgramError(
                    f"{_PROCESS}: the {which} stream has no key, so its records cannot be matched with the other"
                    " stream's: call connect(...).key_by(first_key, second_key), or pass a CoProcessFunction, which"
                    " needs no keys (and has no keyed state)"
                )
        first, second = self._keyings("process")
        assert first is not None and second is not None
        return self._apply(
            "process",
            func,
            keyed_process(TWO_INPUTS, func, on_error, options, _PROCESS, keyings=(first, second)),
            output_type,
            uses_processing_time=uses_processing_time(func) if processing_time is None else processing_time,
        )

    def _apply_function(
        self, kind: str, operator: type[CoFlatMapOperator], func: Any, output_type: Any, on_error: OnError
    ) -> DataStream[Any]:
        keyings = self._keyings(kind)
        factory = OperatorFactory(partial(operator, function=func, keyings=keyings), keyed=keyings[0] is not None)
        factory = guarded(factory, on_error, f"{kind}() of connected streams")
        return self._apply(kind, func, factory, output_type)

    def _keyings(self, method: str) -> Keyings:
        first, second = self._first, self._second
        if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
            return None, None
        check_key_types(first, second, f"{method}() of connected streams")
        return first._keying, second._keying

    def _apply(
        self, kind: str, func: Any, factory: OperatorFactory, output_type: Any, *, uses_processing_time: bool = False
    ) -> DataStream[Any]:
        first, second = (
            stream if isinstance(stream._step, PartitionTransformation) else stream.rebalance()
            for stream in (self._first, self._second)
        )
        return first._apply(
            kind,
            func,
            factory,
            output_type,
            uses_processing_time=uses_processing_time,
            event_time=event_time_use(func),
            more_inputs=[second._step],
        )


def check_key_types(first: KeyedStream[Any, Any], second: KeyedStream[Any, Any], method: str) -> None:
    steps = [stream._step for stream in (first, second)]
    types1, types2 = (step.key_types if isinstance(step, KeyByTransformation) else None for step in steps)
    if types1 is not None and types2 is not None and (len(types1) != len(types2) or are_other_types(types1, types2)):
        raise ProgramError(
            f"{method}: the first keys are {', '.join(types1).upper()}, the second keys"
            f" {', '.join(types2).upper()}, so they are never equal: key both by the same type"
        )
