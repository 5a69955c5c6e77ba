"""Broadcast streams, and streams connected to them, as in PyFlink."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pillarbox._datastream.checks.code_search import event_time_use, uses_processing_time
from pillarbox._datastream.checks.given_functions import check_instance
from pillarbox._datastream.checks.missing import unknown
from pillarbox._datastream.streams.data_stream import DataStream
from pillarbox._datastream.streams.keyed_stream import KeyedStream
from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import T1, T2, Generic, U
from pillarbox._graph.transformations import PartitionTransformation
from pillarbox._operators.async_keyed.factory import BROADCAST, keyed_process, refuse_keywords
from pillarbox._operators.async_keyed.options import KeyedAsyncKeywords
from pillarbox._operators.connected.broadcast import BroadcastProcessOperator
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.basic import Function
from pillarbox._operators.functions.broadcast import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from pillarbox._operators.functions.two_streams import CoProcessFunction, KeyedCoProcessFunction
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._types.schema import SchemaLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PROCESS = "process() with a broadcast stream"


class BroadcastStream(Generic[T1]):
    """A stream of type ``T1`` that sends every record to each subtask, and declares broadcast state for the records.

    Created by ``DataStream.broadcast(descriptor, ...)``, for ``DataStream.connect``.
    """

    def __init__(self, stream: DataStream[T1], descriptors: tuple[MapStateDescriptor[Any, Any], ...]) -> None:
        self._stream = stream
        self._descriptors = descriptors

    if not TYPE_CHECKING:

        def __getattr__(self, name):
            advice = (
                f"a broadcast stream has no {name}(): connect another stream with it, as in"
                " stream.connect(broadcast).process(...)"
            )
            raise unknown(self, name, advice if not name.startswith("_") and hasattr(DataStream, name) else None)


class BroadcastConnectedStream(Generic[T1, T2]):
    """A stream of type ``T1``, keyed or not, connected to a broadcast stream of type ``T2``."""

    def __init__(self, stream: DataStream[T1], broadcast: BroadcastStream[T2]) -> None:
        self._stream = stream
        self._broadcast = broadcast

    def process(
        self,
        func: BroadcastProcessFunction[T1, T2, U] | KeyedBroadcastProcessFunction[Any, T1, T2, U],
        output_type: SchemaLike | None = None,
        *,
        processing_time: bool | None = None,
        on_error: OnError = "fail",
        **options: Unpack[KeyedAsyncKeywords],
    ) -> DataStream[U]:
        """Process both streams. The broadcast stream fills the broadcast state, which the other stream reads.

        Event time is the minimum of both streams' event times, so it stops if one stream has no watermarks. If the
        non-broadcast stream is not partitioned, it is rebalanced. Options are as in :meth:`KeyedStream.process`. With
        ``async def``, a broadcast record is processed after all earlier records and before all later records.

        Args:
            func: a ``KeyedBroadcastProcessFunction`` if the first stream is keyed, else a ``BroadcastProcessFunction``.
            on_error: as in :meth:`DataStream.process`. If a broadcast record fails, each subtask emits a dead letter.

        Example:
            >>> WORDS = MapStateDescriptor[str, bool]("words")
            >>> class Listed(BroadcastProcessFunction[str, str, str]):
            ...     def process_element(self, word, ctx):
            ...         if word in ctx.get_broadcast_state(WORDS):
            ...             yield word
            ...
            ...     def process_broadcast_element(self, word, ctx):
            ...         ctx.get_broadcast_state(WORDS).put(word, True)
            ...         yield f"{word} is listed"
            >>> words, listed = env.from_collection(["to"]), env.from_collection(["be"])
            >>> words.connect(listed.broadcast(WORDS)).process(Listed()).execute_and_collect()
            ['be is listed']
        """
        keyed = isinstance(self._stream, KeyedStream)
        expected: type[Function] = KeyedBroadcastProcessFunction if keyed else BroadcastProcessFunction
        other: type[Function] = BroadcastProcessFunction if keyed else KeyedBroadcastProcessFunction
        if isinstance(func, other):
            key, instead = ("a key", "") if keyed else ("no key", ", or put key_by(...) before connect()")
            raise ProgramError(
                f"{_PROCESS} got {shorten(func)}, but the stream has {key}: pass a {expected.__name__}{instead}"
            )
        if isinstance(func, (CoProcessFunction, KeyedCoProcessFunction)):
            raise ProgramError(
                f"{_PROCESS} got {type(func).__name__}, which takes no broadcast stream: pass a {expected.__name__},"
                " or drop broadcast(...)"
            )
        methods = ("process_element", "process_broadcast_element", *(("on_timer",) if keyed else ()))
        check_instance(func, expected, _PROCESS, methods, many=True, may_await=keyed)
        stream = self._stream
        descriptors = self._broadcast._descriptors
        if isinstance(stream, KeyedStream):
            factory = keyed_process(
                BROADCAST, func, on_error, options, _PROCESS, keying=stream._keying, descriptors=descriptors
            )
        else:
            refuse_keywords(options, func, _PROCESS)
            make = partial(BroadcastProcessOperator, function=func, descriptors=descriptors)
            factory = guarded(OperatorFactory(make, keyed=True), on_error, _PROCESS)
            if not isinstance(stream._step, PartitionTransformation):
                stream = stream.rebalance()
        timed = keyed and (uses_processing_time(func) if processing_time is None else processing_time)
        return stream._apply(
            "process",
            func,
            factory,
            output_type,
            uses_processing_time=timed,
            event_time=event_time_use(func),
            more_inputs=[self._broadcast._stream._step],
        )
