"""Recognizes functions whose results need no copy, because the functions cannot keep references to them."""

from __future__ import annotations

import dis
from collections.abc import Mapping
from types import CodeType, FunctionType
from typing import Any

from pillarbox._copies import is_fixed

_BUILTINS = frozenset(
    [
        "abs",
        "all",
        "any",
        "ascii",
        "bin",
        "bool",
        "bytearray",
        "bytes",
        "chr",
        "complex",
        "dict",
        "divmod",
        "enumerate",
        "filter",
        "float",
        "format",
        "frozenset",
        "hash",
        "hex",
        "int",
        "isinstance",
        "iter",
        "len",
        "list",
        "map",
        "max",
        "min",
        "next",
        "oct",
        "ord",
        "pow",
        "print",
        "range",
        "repr",
        "reversed",
        "round",
        "set",
        "slice",
        "sorted",
        "str",
        "sum",
        "tuple",
        "zip",
        "ArithmeticError",
        "AttributeError",
        "Exception",
        "IndexError",
        "KeyError",
        "LookupError",
        "RuntimeError",
        "TypeError",
        "ValueError",
        "ZeroDivisionError",
    ]
)
_LOADS_A_NAME = ("LOAD_GLOBAL", "LOAD_NAME")
_REACHES_FURTHER = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "LOAD_BUILD_CLASS", "LOAD_FROM_DICT_OR_GLOBALS")


def is_pure(function: Any) -> bool:
    """Return whether a function, given immutable arguments, certainly keeps no reference to its results.

    True for a plain function without a closure that uses only builtins and constants.
    """
    if type(function) is not FunctionType or function.__closure__:
        return False
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return all(map(_is_constant, defaults)) and _is_pure_code(function.__code__, function.__globals__)


def _is_pure_code(code: CodeType, names: Mapping[str, Any]) -> bool:
    for instruction in dis.get_instructions(code):
        operation, name = instruction.opname, instruction.argval
        if operation in _REACHES_FURTHER:
            return False
        if operation in _LOADS_A_NAME and not (_is_constant(names[name]) if name in names else name in _BUILTINS):
            return False
        # Attributes such as __class__ lead to objects that all calls share.
        if isinstance(name, str) and operation.endswith(("_ATTR", "_METHOD")) and name.startswith("__"):
            return False
    return all(_is_pure_code(inner, names) for inner in code.co_consts if isinstance(inner, CodeType))


def _is_constant(value: Any) -> bool:
    """Return whether a value refers only to immutable values. Functions and classes do not, as they have attributes."""
    return not isinstance(value, type) and not hasattr(value, "__dict__") and is_fixed(value)
