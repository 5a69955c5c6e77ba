"""Searches the code of a user's function, and of functions that it calls, for a name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pillarbox._errors import ProgramError, shorten
from pillarbox._graph.transformations import EventTimeUse
from pillarbox._operators.functions.basic import Function

_LIBRARIES = {"cloudpickle", "numpy", "pandas", "pillarbox", "pillarbox_tools", "pyarrow", "pyspark"}
_FOREIGN = (sys.stdlib_module_names | _LIBRARIES) - {"__main__"}
# A search that reaches more objects has reached a library, or data.
_MOST = 10_000
_MOST_ELEMENTS = 100


def uses_processing_time(function: object) -> bool:
    """Return whether a function sets processing-time timers, according to its declaration or a search of its code."""
    declared = function.uses_processing_time if isinstance(function, Function) else None
    if declared is None:
        return mentions(function, "register_processing_time_timer")
    if not isinstance(declared, bool):
        raise ProgramError(
            f"process(): {type(function).__name__}.uses_processing_time must be True or False, not {shorten(declared)}"
        )
    return declared


def event_time_use(function: object) -> EventTimeUse:
    return EventTimeUse.TIMERS if mentions(function, "register_event_time_timer") else EventTimeUse.NONE


def mentions(function: object, name: str) -> bool:
    """Return whether a function's code, or code that it calls, contains ``name`` as an attribute or string."""
    pending: list[Any] = [function]
    seen: dict[int, Any] = {}  # keeps the objects alive, so that their ids stay unique
    while pending and len(seen) < _MOST:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen[id(thing)] = thing
        if isinstance(thing, CodeType):
            if name in thing.co_names or name in thing.co_consts:
                return True
            pending += (constant for constant in thing.co_consts if isinstance(constant, CodeType))
        else:
            pending += _reached(thing)
    return False


def _reached(thing: Any) -> Iterable[Any]:
    if isinstance(thing, FunctionType):
        return () if _is_foreign(thing) else _reached_by_function(thing)
    if isinstance(thing, MethodType):
        return (thing.__func__, thing.__self__)
    if isinstance(thing, partial):
        return (thing.func, *thing.args, *thing.keywords.values())
    if isinstance(thing, (staticmethod, classmethod)):
        return (thing.__func__,)
    if isinstance(thing, property):
        return (thing.fget, thing.fset)
    if isinstance(thing, type):
        return [member for kind in thing.__mro__ if not _is_foreign(kind) for member in vars(kind).values()]
    if isinstance(thing, (list, tuple, set, frozenset)):
        return list(thing)[:_MOST_ELEMENTS]
    if isinstance(thing, dict):
        return list(thing.values())[:_MOST_ELEMENTS]
    held = getattr(thing, "__dict__", {})
    if isinstance(thing, ModuleType) or _is_foreign(type(thing)):
        return (held["__wrapped__"],) if "__wrapped__" in held else ()
    return (type(thing), *held.values())


def _is_foreign(definition: Any) -> bool:
    return str(getattr(definition, "__module__", "")).partition(".")[0] in _FOREIGN


def _reached_by_function(function: FunctionType) -> Iterator[Any]:
    yield function.__code__
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    yield function.__dict__.get("__wrapped__")
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            pass
    names = set(_names(function.__code__))
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] not in _FOREIGN:
                # For a module, the members that the code may access as `module.name`.
                yield from (vars(value)[member] for member in names & vars(value).keys())
        else:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
