"""Creates the test harness for a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, overload

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.async_io.api.function import AsyncFunction
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.async_keyed.factory import BROADCAST, ONE_INPUT, TWO_INPUTS, keyed_process
from pillarbox._operators.async_keyed.options import KeyedAsyncKeywords
from pillarbox._operators.connected.broadcast import BroadcastProcessOperator
from pillarbox._operators.connected.two_inputs import (
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
)
from pillarbox._operators.dead_letters.dead_letter import OnError
from pillarbox._operators.dead_letters.guarded import guarded
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorFactory
from pillarbox._operators.functions.basic import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
)
from pillarbox._operators.functions.broadcast import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from pillarbox._operators.functions.two_streams import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from pillarbox._operators.keyed.reduce import ReduceOperator
from pillarbox._operators.stateless.filter import FilterOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.map import MapOperator
from pillarbox._operators.stateless.process import ProcessOperator
from pillarbox._state.descriptors import MapStateDescriptor
from pillarbox._task.vertex import ChainNode
from pillarbox._types.type_information import TypeInformation
from pillarbox.testing._keyed_operator_harness import (
    KeyedOneInputStreamOperatorTestHarness,
    KeyedTwoInputStreamOperatorTestHarness,
)
from pillarbox.testing._operator_harness import (
    OneInputStreamOperatorTestHarness,
    TwoInputStreamOperatorTestHarness,
)

Key = Callable[[Any], Any] | KeySelector | str | Sequence[str]

_EITHER: dict[type[Function], type[MapOperator | FlatMapOperator | FilterOperator]] = {
    MapFunction: MapOperator,
    FlatMapFunction: FlatMapOperator,
    FilterFunction: FilterOperator,
}
_TWO_INPUTS: dict[type[Function], type[CoFlatMapOperator]] = {
    CoMapFunction: CoMapOperator,
    CoFlatMapFunction: CoFlatMapOperator,
}
_CALLER = "harness_for()"


class ProcessFunctionTestHarnesses:
    """Creates test harnesses for process functions, as in Flink. ``options`` are passed to the harness class."""

    @staticmethod
    def for_process_function(function: ProcessFunction, **options: Any) -> OneInputStreamOperatorTestHarness:
        """Return a harness for a function on a non-keyed stream."""
        factory = OperatorFactory(partial(ProcessOperator, function=function))
        return OneInputStreamOperatorTestHarness(ChainNode("process", "process", factory), **options)

    @staticmethod
    def for_keyed_process_function(
        function: KeyedProcessFunction, key_by: Key, *, key_type: TypeInformation[Any] | None = None, **options: Any
    ) -> KeyedOneInputStreamOperatorTestHarness:
        """Return a harness for a function on a keyed stream. ``key_by`` is as in ``DataStream.key_by``."""
        factory = keyed_process(
            ONE_INPUT, function, "fail", {}, "process()", keying=Keying(key_by, "process", key_type)
        )
        return KeyedOneInputStreamOperatorTestHarness(ChainNode("process", "process", factory), **options)

    @staticmethod
    def for_keyed_co_process_function(
        function: KeyedCoProcessFunction, first_key: Key, second_key: Key, **options: Any
    ) -> KeyedTwoInputStreamOperatorTestHarness:
        """Return a harness for a function on two connected keyed streams, with keys as in ``DataStream.key_by``."""
        keyings = (Keying(first_key, "process"), Keying(second_key, "process"))
        factory = keyed_process(TWO_INPUTS, function, "fail", {}, "for_keyed_co_process_function()", keyings=keyings)
        return KeyedTwoInputStreamOperatorTestHarness(ChainNode("process", "process", factory), **options)


@overload
def harness_for(
    function: KeyedCoProcessFunction, key_by: tuple[Key, Key], **options: Any
) -> KeyedTwoInputStreamOperatorTestHarness: ...


@overload
def harness_for(
    function: CoMapFunction | CoFlatMapFunction | CoProcessFunction,
    key_by: tuple[Key, Key] | None = None,
    **options: Any,
) -> TwoInputStreamOperatorTestHarness: ...


@overload
def harness_for(
    function: BroadcastProcessFunction | KeyedBroadcastProcessFunction,
    key_by: Key | None = None,
    *,
    broadcast: Sequence[MapStateDescriptor],
    **options: Any,
) -> KeyedTwoInputStreamOperatorTestHarness: ...


@overload
def harness_for(
    function: KeyedProcessFunction | ReduceFunction,
    key_by: Key,
    *,
    key_type: TypeInformation[Any] | None = None,
    **options: Any,
) -> KeyedOneInputStreamOperatorTestHarness: ...


@overload
def harness_for(function: Function, key_by: Key | None = None, **options: Any) -> OneInputStreamOperatorTestHarness: ...


def harness_for(
    function: Function,
    key_by: Any = None,
    *,
    key_type: TypeInformation[Any] | None = None,
    broadcast: Sequence[MapStateDescriptor] = (),
    on_error: OnError = "fail",
    **options: Any,
) -> OneInputStreamOperatorTestHarness | KeyedOneInputStreamOperatorTestHarness:
    """Return an open harness for a function: a keyed harness if ``key_by`` is set.

    Args:
        function: a map, flat map, filter, process or async function, or a function of two streams. With ``key_by``, it
            can also be a keyed process or reduce function, and map, flat map and filter functions can use keyed state.
            Results of async functions are in input order, and requests time out after 5 seconds (on the harness's
            clock).
        key_by: a function or column names, as in ``DataStream.key_by``. For a function of two streams, a tuple of two
            keys.
        key_type: the declared key type, for functions of one stream.
        broadcast: descriptors of broadcast state, if the second stream is a broadcast stream.
        options: arguments of :class:`OneInputStreamOperatorTestHarness` and, for a keyed function with ``async def``,
            of ``process``. Such a function's event loop uses the harness's clock, so
            ``advance_processing_time(60_000)`` ends ``asyncio.sleep(60)``.
    """
    name = type(function).__name__
    if isinstance(broadcast, MapStateDescriptor):
        raise ProgramError("harness_for(): broadcast= must be a list of descriptors, such as broadcast=[RULES]")
    if isinstance(function, (KeyedCoProcessFunction, CoProcessFunction, *_TWO_INPUTS)):
        return _two_inputs(function, name, key_by, on_error, options)
    if isinstance(function, (BroadcastProcessFunction, KeyedBroadcastProcessFunction)):
        return _with_broadcast(function, name, key_by, tuple(broadcast), on_error, options)
    keying = None if key_by is None else Keying(key_by, name, key_type)
    if isinstance(function, (KeyedProcessFunction, ReduceFunction)):
        if keying is None:
            raise ProgramError(f"{name} runs on a keyed stream: pass key_by=... to harness_for(...)")
        if isinstance(function, KeyedProcessFunction):
            factory = keyed_process(ONE_INPUT, function, on_error, _take_keywords(options), _CALLER, keying=keying)
            node = ChainNode(name, name, factory)
        else:
            factory = OperatorFactory(partial(ReduceOperator, function=function, keying=keying), keyed=True)
            node = _node(name, factory, on_error)
        return KeyedOneInputStreamOperatorTestHarness(node, **options)
    for kind, either in _EITHER.items():
        if isinstance(function, kind):
            factory = OperatorFactory(partial(either, function=function, keying=keying), keyed=keying is not None)
            harness = OneInputStreamOperatorTestHarness if keying is None else KeyedOneInputStreamOperatorTestHarness
            return harness(_node(name, factory, on_error), **options)
    if isinstance(function, ProcessFunction):
        factory = OperatorFactory(partial(ProcessOperator, function=function))
        return OneInputStreamOperatorTestHarness(_node(name, factory, on_error, keying), **options)
    if isinstance(function, AsyncFunction) and on_error == "fail":
        factory = AsyncWaitOperator.factory(function, AsyncOptions("harness_for"))
        return OneInputStreamOperatorTestHarness(ChainNode(name, name, factory), **options)
    if isinstance(function, type) and issubclass(function, Function):
        raise ProgramError(f"harness_for() got the class {function.__name__}: pass an instance: {function.__name__}()")
    raise ProgramError(
        f"harness_for() got {shorten(function)}: pass an instance of a function class such as MapFunction"
        " or KeyedProcessFunction. For functions of windows and joins, batch requests and triggers, use a"
        " ProgramTestHarness; plain functions can be called directly, too"
    )


def _node(name: str, factory: OperatorFactory, on_error: OnError, keying: Keying | None = None) -> ChainNode:
    return ChainNode(name, name, guarded(factory, on_error, _CALLER, keying=keying))


def _take_keywords(options: dict[str, Any]) -> KeyedAsyncKeywords:
    keywords: Any = {name: options.pop(name) for name in KeyedAsyncKeywords.__annotations__ if name in options}
    return keywords  # type: ignore[no-any-return]


def _two_inputs(
    function: Function, name: str, key_by: Any, on_error: OnError, options: dict[str, Any]
) -> TwoInputStreamOperatorTestHarness:
    pair = isinstance(key_by, tuple) and len(key_by) == 2
    if not pair and (key_by is not None or isinstance(function, KeyedCoProcessFunction)):
        raise ProgramError(f"{name} runs on two streams: pass key_by=(first_key, second_key) to harness_for(...)")
    if isinstance(function, CoProcessFunction):
        factory = OperatorFactory(partial(CoProcessOperator, function=function))
        return TwoInputStreamOperatorTestHarness(_node(name, factory, on_error), **options)
    if isinstance(function, KeyedCoProcessFunction):
        pair_of_keys = Keying(key_by[0], name), Keying(key_by[1], name)
        factory = keyed_process(TWO_INPUTS, function, on_error, _take_keywords(options), _CALLER, keyings=pair_of_keys)
        return KeyedTwoInputStreamOperatorTestHarness(ChainNode(name, name, factory), **options)
    keyings = (Keying(key_by[0], name), Keying(key_by[1], name)) if pair else (None, None)
    operator: Any = next(operator for kind, operator in _TWO_INPUTS.items() if isinstance(function, kind))
    factory = OperatorFactory(partial(operator, function=function, keyings=keyings), keyed=pair)
    harness = KeyedTwoInputStreamOperatorTestHarness if pair else TwoInputStreamOperatorTestHarness
    return harness(_node(name, factory, on_error), **options)


def _with_broadcast(
    function: Function,
    name: str,
    key_by: Any,
    descriptors: tuple[MapStateDescriptor, ...],
    on_error: OnError,
    options: dict[str, Any],
) -> KeyedTwoInputStreamOperatorTestHarness:
    if isinstance(function, BroadcastProcessFunction):
        make = partial(BroadcastProcessOperator, function=function, descriptors=descriptors)
        node = _node(name, OperatorFactory(make, keyed=True), on_error)
    elif key_by is None:
        raise ProgramError(f"{name} runs on a keyed stream: pass key_by=... to harness_for(...)")
    else:
        keywords, keying = _take_keywords(options), Keying(key_by, name)
        factory = keyed_process(
            BROADCAST, function, on_error, keywords, _CALLER, keying=keying, descriptors=descriptors
        )
        node = ChainNode(name, name, factory)
    return KeyedTwoInputStreamOperatorTestHarness(node, **options)
