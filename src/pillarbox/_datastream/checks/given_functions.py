"""Checks user functions and types, and chooses default names of operators."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, get_origin

from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.async_io.api.function import AsyncBatchFunction, AsyncFunction
from pillarbox._operators.async_io.loop.host import is_generator_function
from pillarbox._operators.functions.basic import Function, check_call, check_interface_plain, check_plain
from pillarbox._operators.functions.checkpointed import CheckpointedFunction
from pillarbox._time.watermark_generators import WatermarkGenerator
from pillarbox._time.watermark_strategy import WatermarkStrategy
from pillarbox._types.type_information import TypeInformation


def name_of(kind: str, func: Any) -> str:
    name = getattr(func, "__name__", type(func).__name__) if func is not None else "<lambda>"
    return kind if name == "<lambda>" else f"{kind}: {name}"


def check_function(
    func: Any, interface: type, method: str, called: str | None = None, *, many: bool = False, may_await: bool = False
) -> None:
    """Raise ProgramError unless an object is a function or implements ``interface``, and returns results."""
    # Other classes, such as `str`, are functions.
    if not isinstance(func, interface) and (_is_function_class(func) or not callable(func)):
        raise _not_an_instance(func, f"{method}()", f"a function or {interface.__name__}")
    if isinstance(func, interface):
        check_parameters(func, interface, f"{method}()", may_await=may_await)
    else:
        _check_call(func, getattr(interface, called or method), f"{method}() got {shorten(func)}, which")
    if may_await:
        return
    check_plain(func, called or method, asked_by=f"{method}()", many=many)


def check_requests(func: Any) -> None:
    if isinstance(func, AsyncFunction):
        raise ProgramError(
            f"map_async() got {type(func).__name__}, an AsyncFunction: pass it to"
            " AsyncDataStream.ordered_wait() or unordered_wait(). map_async() takes a function that returns one"
            " result"
        )
    if isinstance(func, AsyncBatchFunction):
        raise ProgramError(
            f"map_async() got {type(func).__name__}, an AsyncBatchFunction: pass it to"
            " AsyncDataStream.ordered_wait_batch() or unordered_wait_batch()"
        )
    if not callable(func) or isinstance(func, type):
        raise ProgramError(f"map_async() got {shorten(func)}: pass a function, such as an async def")
    if is_generator_function(func):
        raise ProgramError(
            f"map_async() got {shorten(func)}, which yields: pass a function that returns one result. For"
            " several results, use AsyncDataStream with an AsyncFunction"
        )


def check_strategy(strategy: WatermarkStrategy) -> None:
    function = getattr(strategy.timestamp_assigner, "function", None)
    if function is not None:
        check_plain(function, "extract_timestamp", asked_by="with_timestamp_assigner()")
    factory: Any = strategy.generator_factory
    while isinstance(factory, partial):
        factory = factory.func
    if isinstance(factory, type):
        check_interface_plain(factory, WatermarkGenerator, asked_by="for_generator()")
    else:  # its generators are checked when a task creates them
        check_plain(factory, "", asked_by="for_generator()")


def check_type(what: str, declared: Any) -> None:
    if not (declared is None or isinstance(declared, (TypeInformation, type)) or get_origin(declared) is not None):
        raise ProgramError(
            f"{what} must be a type such as Types.LONG(), or a class, not {shorten(declared)}."
            " The columns of the results are declared with output_type="
        )


def check_instance(
    func: Any, interface: type[Function], where: str, called: Sequence[str], *, many: bool, may_await: bool = False
) -> None:
    """Raise unless an object implements a multi-method interface, and its methods return results."""
    if not isinstance(func, interface):
        raise _not_an_instance(func, where, f"a {interface.__name__}")
    check_parameters(func, interface, where, may_await=may_await)
    for name in () if may_await else called:
        check_plain(func, name, asked_by=where, many=many)


def check_parameters(function: Any, interface: type, where: str, *, may_await: bool = False) -> None:
    of_all = [base for base in (Function, CheckpointedFunction) if isinstance(function, base)]
    for name, _ in _methods(of_all):
        _check_runs(function, name, where, may_await or issubclass(interface, (AsyncFunction, AsyncBatchFunction)))
    for name, _ in () if issubclass(interface, Function) else _methods([interface]):
        check_plain(function, name, asked_by=where)
    for name, method in _methods([interface, *of_all]):
        of_java = name.title().replace("_", "")
        of_java = of_java[0].lower() + of_java[1:]
        if of_java != name and hasattr(type(function), of_java) and getattr(type(function), name) is method:
            raise ProgramError(
                f"{where} got {shorten(function)}, whose {of_java}() is never called: rename it to {name}()"
            )
        own = getattr(type(function), name)
        if own is not method and inspect.isfunction(own):
            what = f"{where} got {shorten(function)}, whose {name}()"
            _check_call(getattr(function, name), method, what)


def _check_runs(function: Any, name: str, where: str, may_await: bool) -> None:
    called = getattr(function, name)
    if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
        raise ProgramError(
            f"{where} got {shorten(function)}, whose {name}() yields, so it would never run: {name}() emits no results"
        )
    if inspect.iscoroutinefunction(called) and not may_await:
        raise ProgramError(
            f"{where} got {shorten(function)}, whose {name}() is an async def, which would never be awaited: write a"
            " plain def. Only functions for map_async(), AsyncDataStream and process() on a keyed stream may use"
            " async def"
        )


def _methods(interfaces: Sequence[type]) -> Iterator[tuple[str, Any]]:
    for interface in interfaces:
        for name, method in vars(interface).items():
            if inspect.isfunction(method) and not name.startswith("_"):
                yield name, method


def _check_call(func: Any, method: Any, what: str) -> None:
    _, *names = inspect.signature(method).parameters
    check_call(func, names, what)


def _is_function_class(func: Any) -> bool:
    return isinstance(func, type) and issubclass(func, Function)


def _not_an_instance(func: Any, where: str, expected: str) -> ProgramError:
    hint = f"an instance: {func.__name__}()" if _is_function_class(func) else expected
    return ProgramError(f"{where} got {shorten(func)}: pass {hint}")
