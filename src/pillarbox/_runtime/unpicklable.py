"""Finds the variable or attribute that prevents a function from being pickled."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from pillarbox._operators.frame.captured import CapturedObject

_DEPTH = 24
# Maximum number of a container's elements that are checked.
_ELEMENTS = 1000


class UnpicklableObject(NamedTuple):
    """An object that cannot be pickled, and its variable, such as ``client.lock``."""

    name: str
    value: Any

    @property
    def is_of_spark(self) -> bool:
        return type(self.value).__module__.split(".")[0] in ("pyspark", "py4j")


def can_be_pickled(value: object) -> bool:
    try:
        CapturedObject(value)
    except Exception:
        return False
    return True


def culprit_in(value: object) -> UnpicklableObject | None:
    """Return the innermost named object in ``value`` that cannot be pickled, or None."""
    name, seen = "", {id(value)}
    for _ in range(_DEPTH):
        if UnpicklableObject(name, value).is_of_spark:
            break
        part = next(
            (
                candidate
                for candidate in _parts(value, name)
                if id(candidate.value) not in seen and _is_bad(candidate.value)
            ),
            None,
        )
        if part is None:
            break
        name, value = part
        seen.add(id(value))
    culprit = UnpicklableObject(name, value)
    return culprit if culprit.name and not isinstance(culprit.value, (FunctionType, type)) else None


def _is_bad(value: object) -> bool:
    return not isinstance(value, (str, bytes, int, float, ModuleType, BuiltinFunctionType)) and not can_be_pickled(
        value
    )


def _parts(value: Any, name: str) -> Iterator[UnpicklableObject]:
    if isinstance(value, FunctionType):
        yield from _variables(value)
    elif isinstance(value, MethodType):
        yield UnpicklableObject(name, value.__self__)
        yield UnpicklableObject(name, value.__func__)
    elif isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield UnpicklableObject(name, part)
    elif isinstance(value, Mapping):
        for key, part in [*value.items()][:_ELEMENTS]:
            yield UnpicklableObject(f"{name}[{key!r}]" if name else "", part)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in [*value][:_ELEMENTS]:
            yield UnpicklableObject(name, part)
    elif isinstance(value, type):
        for part in vars(value).values():
            yield UnpicklableObject(name, getattr(part, "__func__", part))
    else:
        yield from _attributes(value, name)
        if not _is_ours(type(value)):
            yield UnpicklableObject(name, type(value))


def _attributes(value: Any, name: str) -> Iterator[UnpicklableObject]:
    slots = [slot for kind in type(value).__mro__ for slot in _slots(kind)]
    for attribute in [*getattr(value, "__dict__", ()), *slots]:
        try:
            part = inspect.getattr_static(value, attribute) if attribute not in slots else getattr(value, attribute)
        except AttributeError:
            continue
        yield UnpicklableObject(name if _is_ours(type(value)) else f"{name or 'self'}.{attribute}", part)


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_ours(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "pillarbox"


def _variables(function: FunctionType) -> Iterator[UnpicklableObject]:
    ours = function.__module__ is not None and function.__module__.split(".")[0] == "pillarbox"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield UnpicklableObject("" if ours else name, cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for name in _global_names(function.__code__):
        if name in function.__globals__:
            yield UnpicklableObject("" if ours else name, function.__globals__[name])
    for part in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield UnpicklableObject("", part)


def _global_names(code: CodeType) -> Iterator[str]:
    yield from (
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)
