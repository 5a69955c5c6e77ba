"""Values read without the user's classes, and without running anything of theirs.

An unpickler needs the classes and functions that a pickle names. A reader of a checkpoint may not have them, and
should not have to trust the checkpoint. So a name that is not plain data's becomes a class that stands for it: it calls
nothing, and notes how the pickle makes its objects, so that the same pickle can be written again.
"""

from __future__ import annotations

import io
import pickle
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from copyreg import __newobj__, __newobj_ex__  # type: ignore[attr-defined]
from functools import partial
from typing import Any

from pillarbox._state.types.plain_types import PlainKey
from pillarbox._unpickle import Allowed, loads_allowed

_ATOMS = frozenset({type(None), bool, int, str, bytes})
_UUID = ("uuid", "UUID")


class _Name(type):
    """What a pickle names: a class, or a function. To call it is to note the call, unless it is plain data's.

    Attributes:
        where: module and name.
        plain: what it stands for, where that is known to be harmless.
    """

    where: tuple[str, str]
    plain: Any

    def __call__(cls, *args: Any) -> Any:
        if cls.plain is not None:
            try:
                return cls.plain(*(arg.plain or arg if type(arg) is _Name else arg for arg in args))
            except Exception:
                pass  # such as a time in a zone of a class that is not plain
        return _called(cls, args)


def name_of_class(where: tuple[str, str], base: type[Opaque] | None = None, plain: Any = None) -> type[Opaque]:
    """Return what stands for the class with this module and name: :class:`Opaque`, or a kind of it."""
    made: Any = _Name(where[1], (base or Opaque,), {"where": where, "plain": plain})
    return made  # type: ignore[no-any-return]


def _called(function: Any, args: tuple[Any, ...]) -> Opaque:
    """Return what stands for the result of a call."""
    kind: Any = function if isinstance(function, _Name) else Distinct if isinstance(function, Distinct) else Opaque
    made: Opaque = object.__new__(kind)
    made._start(function, args)
    return made


class Opaque(metaclass=_Name):
    """An object whose class is not at hand: the steps in which a pickle makes it. Equal ones have equal steps."""

    where: tuple[str, str] = ("", "")
    plain: Any = None

    _new: Any
    _args: Any
    _state: Any
    _items: list[Any]
    _pairs: list[tuple[Any, Any]]

    def __new__(cls, *args: Any, **named: Any) -> Opaque:
        """Note that a pickle asks for an object without a call of its class."""
        made = object.__new__(cls)
        made._start(__newobj_ex__ if named else __newobj__, (cls, args, named) if named else (cls, *args))
        return made

    def _start(self, new: Any, args: Any) -> None:
        self._new, self._args, self._state, self._items, self._pairs = new, args, None, [], []

    @property
    def args(self) -> tuple[Any, ...]:
        """What it is made with, without its class."""
        if self._new is __newobj_ex__:
            return (*self._args[1], *self._args[2].values())
        args: tuple[Any, ...] = self._args[1:] if self._new is __newobj__ else self._args
        return args

    @property
    def parts(self) -> list[Any]:
        """The values that it is made of, in whichever of the ways in which pickles have them."""
        # (Some have a dictionary of their attributes, and one of their slots.)
        states = self._state if type(self._state) is tuple else (self._state,)
        of_state = [part for each in states for part in (each.values() if isinstance(each, dict) else _as_list(each))]
        args = [part for each in self.args for part in (each if isinstance(each, (list, tuple)) else (each,))]
        return [*args, *of_state, *self._items, *(value for _, value in self._pairs)]

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def append(self, item: Any) -> None:
        """Note that it gets an item, as a list does."""
        self._items.append(item)

    def extend(self, items: Any) -> None:
        """Note that it gets items."""
        self._items += items

    def __setitem__(self, key: Any, value: Any) -> None:
        self._pairs.append((key, value))

    def __call__(self, *args: Any) -> Opaque:
        return _called(self, args)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise pickle.PicklingError("only pickled() can write it")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and pickled(self) == pickled(other)

    def __hash__(self) -> int:
        return hash(_content(self, ()))

    def __repr__(self) -> str:
        return f"<{'.'.join(type(self).where)}>"


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


class Distinct(Opaque):
    """An object that equals itself alone, so that it can be a key without a look at what it holds."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


def _content(value: Any, outer: tuple[int, ...]) -> Any:
    """Return something with a hash, which is equal for values whose pickles are equal.

    Args:
        outer: the identities of the objects that contain the value, since objects may contain themselves.
    """
    kind = type(value)
    if kind in _ATOMS:
        return "-1" if value == -1 else value  # for Python, -1 and -2 have one hash
    if kind is _Name:
        return value.where
    if id(value) in outer:
        return len(outer) - outer.index(id(value))
    content = partial(_content, outer=(*outer, id(value)))
    if isinstance(kind, _Name):
        more = (each for each in (value._items, value._pairs) if each)
        return (
            kind.where,
            content(value._new),
            *map(content, value._args),
            content(value._state),
            *map(content, more),
        )
    if isinstance(value, (list, tuple)):
        return tuple(map(content, value))
    if kind is dict:
        return tuple((content(key), content(each)) for key, each in value.items())
    if kind is set or kind is frozenset:
        return frozenset(map(content, value))
    if kind is float:
        return value if value == value else None  # each NaN has a hash of its own
    try:
        hash(value)
    except TypeError:
        return kind
    return value


class AnyNames(Allowed):
    """What pickles get for the names in them: for any name that is not plain data's, a class that stands for it.

    Args:
        base: the kind of these classes.
        plain: the names that stand for what they name; None: the names of plain data.
        made: classes that stand for some of the names.
    """

    def __init__(
        self,
        base: type[Opaque] | None = None,
        plain: Allowed | None = None,
        made: Mapping[tuple[str, str], type[Opaque]] | None = None,
    ) -> None:
        super().__init__({**PlainKey().allowed, _UUID: lambda: uuid.UUID} if plain is None else plain)
        self._base = base
        self._made: dict[tuple[str, str], Any] = dict(made or {})

    @property
    def classes(self) -> set[str]:
        """The classes and functions that were named so far, but for those of plain data and of pickling itself."""
        return {
            f"{module}:{name}"
            for module, name in self._made
            if (module, name) not in self and module not in ("builtins", "copyreg")
        }

    def get(self, where: Any, default: Any = None) -> Callable[[], Any]:
        """Return what makes the object for a name."""
        return lambda: self._name(where)

    def _name(self, where: tuple[str, str]) -> Any:
        if where not in self._made:
            plain = self[where]() if where in self else None
            # (The pickle of a UUID makes one and sets its number, where the other pickles are calls.)
            self._made[where] = plain if plain is uuid.UUID else name_of_class(where, self._base, plain)
        return self._made[where]


def _steps(value: Opaque) -> tuple[Any, ...]:
    """Return how an object is made, as ``__reduce__`` does."""
    items, pairs = iter(value._items) if value._items else None, iter(value._pairs) if value._pairs else None
    return value._new, value._args, value._state, items, pairs


class _NewName(Exception):
    """A name comes in a value that the pickler has not been told of: it is the argument."""


class _Pickler(pickle.Pickler):
    """Knows the names in a value as something that it has written before."""

    def reducer_override(self, value: Any) -> Any:
        """Return the steps in which an object is made."""
        kind = type(value)
        if kind is _Name:
            raise _NewName(value)
        if not isinstance(kind, _Name):
            return NotImplemented
        return _steps(value)


def pickled(value: Any) -> bytes:
    """Return a value as a pickle, from which whoever has the classes in it reads what was written.

    Missing names are written first, each into a place of the memo of whoever reads it. They are found as
    they come: a value has few of them, and mostly at its beginning.

    Raises:
        Exception: something in it cannot be pickled.
    """
    try:
        return pickle.dumps(value, 5)
    except Exception:
        pass
    names: list[Any] = []
    while True:
        written = io.BytesIO()
        pickler = _Pickler(written, 5)
        pickler.memo = {id(name): (place, name) for place, name in enumerate(names)}
        try:
            pickler.dump(value)
        except _NewName as found:
            names.append(found.args[0])
            continue
        lead = [pickle.PROTO, b"\x05"]
        for name in names:
            lead += [*map(_text, name.where), pickle.STACK_GLOBAL, pickle.MEMOIZE, pickle.POP]
        return b"".join([*lead, written.getbuffer()[2:]])


def _text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return pickle.BINUNICODE + struct.pack("<I", len(encoded)) + encoded


# -- what is in a value --


def loads_inert(payload: bytes | memoryview, classes: Mapping[tuple[str, str], type[Opaque]] | None = None) -> Any:
    """Unpickle with a :class:`Distinct` for each name, also of plain data; ``classes`` are those for some of them."""
    return loads_allowed(payload, AnyNames(Distinct, {}, classes))


def _inside(value: Any) -> Iterator[Any]:
    """Return a value and all that is in it, as far as it is opaque, or may hold something: each once."""
    seen: dict[int, Any] = {}
    level = [value]
    while level:
        each = level.pop()
        if id(each) in seen or not isinstance(each, (Opaque, _Name, dict, list, tuple, set, frozenset)):
            continue
        seen[id(each)] = each
        yield each
        if isinstance(each, Opaque):
            level += (each.args, each._new, each._state, each._items, each._pairs)
        elif isinstance(each, dict):
            level += each
            level += each.values()
        elif not isinstance(each, _Name):
            level += each


def opaques_in(value: Any) -> Iterator[Opaque | type[Opaque]]:
    """Return the opaque objects wherever inside a value, and the names that are in it as they are."""
    found: Iterator[Any] = (each for each in _inside(value) if isinstance(each, (Opaque, _Name)))
    return found


def equal_keys(content: Any, fields: Mapping[tuple[str, str], Sequence[str]]) -> Opaque | None:
    """Return an object in a key that equals another key of its dictionary or set by these fields; None: there is none.

    Args:
        fields: by the names of dataclasses and named tuples, the fields by which their objects are compared.
    """
    for of in _inside(content):
        if not isinstance(of, (dict, set, frozenset)):
            continue
        forms: set[Any] = set()
        for key in of:
            form = _form(key, fields) if isinstance(key, (Opaque, tuple, frozenset)) else None
            if form is not None and form in forms:
                return next(each for each in opaques_in(key) if isinstance(each, Opaque) and each.where in fields)
            forms.add(form)
    return None


def _form(value: Any, fields: Mapping[tuple[str, str], Sequence[str]]) -> Any:
    """Return something that is equal for keys that are equal by these fields."""
    if isinstance(value, Opaque):
        names = fields.get(value.where)
        if names is not None and isinstance(value._state, dict):
            return value.where, tuple(_form(value._state.get(name), fields) for name in names)
        return id(value) if names is None else (value.where, _form(value.args, fields))
    if isinstance(value, (tuple, frozenset)):
        return type(value), type(value)(_form(each, fields) for each in value)
    return type(value), value
