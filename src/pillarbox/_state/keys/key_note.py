"""The description of a key next to its state, so that a program with another key does not go unnoticed.

Keys themselves do not tell: where a program keys by something else, old and new keys would mix in one state, in
silence. So the state log, and the description of a program next to a checkpoint, hold a note of how keys are made.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from types import CodeType
from typing import Any, TypedDict

from pillarbox._types.scalars import SCALARS, scalar_of_spark

# The key function of window_all(). Checkpoints contain its name.
WINDOW_ALL = "pillarbox._datastream.streams.data_stream._one_key"


class KeyNote(TypedDict, total=False):
    """How a keyed operator gets its keys; plain data, since checkpoints hold it.

    Attributes:
        columns: the columns that are the key, or
        function: the qualified name of the function that makes it, with
        code: a digest of its code, after the Python version that compiled it.
        types: the key's Spark types, as far as they are known: one for each column, or that of a function's result.
        inputs: instead of all these, the notes of each input of an operator with several.
    """

    columns: list[str]
    function: str
    code: str
    types: list[str]
    inputs: list[KeyNote]


def declared_key(notes: Iterable[KeyNote | None]) -> tuple[Sequence[str], Sequence[str]]:
    """Return the types and the columns of a key as far as they are the same in all of its notes, and for all inputs."""
    every = [one for note in notes for one in (note or {}).get("inputs", [note or KeyNote()])]
    types = {tuple(one.get("types") or ()) for one in every}
    columns = {tuple(one.get("columns") or ()) for one in every}
    return tuple(types.pop() if len(types) == 1 else ()), tuple(columns.pop() if len(columns) == 1 else ())


def note_of_inputs(notes: Sequence[KeyNote]) -> KeyNote | None:
    """Return the note of an operator's key from those of its keyed inputs; None: it has none."""
    if len(notes) > 1:
        return KeyNote(inputs=[*notes])
    return notes[0] if notes else None


def key_change(then: KeyNote | None, now: KeyNote | None) -> tuple[bool, str] | None:
    """Compare the description of a key in a checkpoint with that of a program.

    Returns:
        None where nothing speaks for another key; else whether it is surely another one, and a message's rest:
        "the key was ..., and is ...".
    """
    if not then or not now:
        return None
    if "inputs" in then or "inputs" in now:
        return _change_of_inputs(then.get("inputs", [then]), now.get("inputs", [now]))
    said = f"the key was {_format_key(then)}, and is {_format_key(now)}"
    if are_other_types(then.get("types"), now.get("types")):
        return True, said
    if (then.get("function") == WINDOW_ALL) != (now.get("function") == WINDOW_ALL):
        return True, said
    columns, new_columns = then.get("columns"), now.get("columns")
    if columns is not None and new_columns is not None:
        return (True, said) if list(columns) != list(new_columns) else None
    if columns is not None or new_columns is not None:
        return False, said
    return (False, said) if _other_code(then, now) else None


def _change_of_inputs(then: list[KeyNote], now: list[KeyNote]) -> tuple[bool, str] | None:
    if len(then) != len(now):
        return True, f"the number of its keyed inputs was {len(then)}, and is {len(now)}"
    changes = [change for old, new in zip(then, now) if (change := key_change(old, new)) is not None]
    return max(changes, key=itemgetter(0), default=None)  # what is surely another key before what may be


def are_other_types(then: list[str] | None, now: list[str] | None) -> bool:
    """Return whether keys of these types surely differ, where both are known: one type for each column."""
    if then is None or now is None or len(then) != len(now):
        return False
    for old, new in zip(then, now):
        one, other = family_of(old), family_of(new)
        if one and other and one != other:
            return True
    return False


def family_of(said: str) -> str:
    """Return the family of a type of keys by what Spark calls it; "": it has none.

    Types of several families have different keys. Numbers are one: keys that are equal in Python are one key.
    """
    scalar = scalar_of_spark(said)
    return "" if scalar is None else scalar.family


def classes_of_keys(declared: KeyNote | None, undeclared: KeyNote | None) -> tuple[type, ...]:
    """Return the classes of keys of the declared type, if only one of two notes declares a type; otherwise ()."""
    types = (declared or {}).get("types") or []
    if len(types) != 1 or undeclared is None or undeclared.get("types") or "inputs" in undeclared:
        return ()
    # (Rows of a key that is a tuple are those of several columns.)
    family = family_of(types[0])
    return tuple({each.classes[0]: None for each in SCALARS.values() if family and each.family == family})


def _other_code(then: KeyNote, now: KeyNote) -> bool:
    old, new = then.get("code", ""), now.get("code", "")
    if old and new and old.partition(":")[0] == new.partition(":")[0]:
        return old != new
    # Another Python compiles the same function to other code: only the name is left to go by.
    return then.get("function") != now.get("function")


def _format_key(note: KeyNote) -> str:
    columns, types = note.get("columns"), note.get("types") or []
    if note.get("function") == WINDOW_ALL:
        return "the same for all records (window_all)"
    if columns is not None:
        named = [f"{column} {kind.upper()}" for column, kind in zip(columns, types)] or columns
        return ("the column " if len(columns) == 1 else "the columns ") + ", ".join(named)
    return f"made by {note.get('function')}" + (f" ({types[0].upper()})" if types else "")


def function_note(function: Callable[..., Any]) -> KeyNote:
    """Return the description of a function that makes keys: its name, and a digest of its code where it has some."""
    name, code = _name_and_code(function)
    note = KeyNote(function=name)
    if code is not None:
        note["code"] = f"{sys.version_info[0]}.{sys.version_info[1]}:{code}"
    return note


def _name_and_code(function: Any) -> tuple[str, str | None]:
    if isinstance(function, partial):
        name, code = _name_and_code(function.func)
        bound = [_plain(value) for value in (*function.args, *sorted(function.keywords.items()))]
        return name, None if code is None else _digest([code, *bound])
    method = getattr(function, "__func__", function)
    if not hasattr(method, "__code__") and hasattr(type(function).__call__, "__code__"):
        method = type(function).__call__  # an object that is called
    if hasattr(method, "__code__"):
        name = f"{method.__module__}.{method.__qualname__}"
        cells = [_plain(cell.cell_contents) for cell in method.__closure__ or () if _is_filled(cell)]
        return name, _digest([*_parts(method.__code__), *cells, *map(_plain, method.__defaults__ or ())])
    said = repr(function)
    if " at 0x" in said:
        said = (
            f"{getattr(function, '__module__', None)}.{getattr(function, '__qualname__', type(function).__qualname__)}"
        )
    return said, None  # such as operator.itemgetter(0), which says all by its name


def _is_filled(cell: Any) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _parts(code: CodeType) -> Iterable[str]:
    yield code.co_code.hex()
    yield from code.co_names
    for constant in code.co_consts:
        yield from _parts(constant) if isinstance(constant, CodeType) else [_plain(constant)]


def _plain(value: Any) -> str:
    """Return a value as text that is the same in every process; of objects only the type."""
    if isinstance(value, (frozenset, set)):
        return f"set {sorted(map(_plain, value))}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} {[_plain(part) for part in value]}"
    if value is None or value is ... or isinstance(value, (str, bytes, int, float, complex)):
        return repr(value)
    if hasattr(value, "__code__"):
        return _digest(_parts(value.__code__))
    return type(value).__qualname__


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
