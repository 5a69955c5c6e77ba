"""Pickles read for their shape alone: no class or function that they name is imported, and nothing of them is run.

Each name becomes a class that stands for it, and each object an instance of that, with what the pickle makes the
object of. Such objects equal themselves alone, so they can be keys of dictionaries without a look at what they hold.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["StandIn", "equal_keys", "loads_inert", "stand_in_for", "stand_ins_in"]


class _Name(type):
    """The class of what stands for a name, of a class or of a function: to call one makes an object."""

    where: tuple[str, str]

    def __call__(cls, *args: Any, **named: Any) -> Any:
        made: Any = StandIn.__new__
        return made(cls, *args, **named)


class StandIn(metaclass=_Name):
    """Stands for an object.

    Attributes:
        where: module and name of its class, or of the function that makes it.
        args: what it is made with.
        state: what it takes for its attributes; None: it takes none.
        items: what it takes besides, as a list or a dictionary does.
    """

    where: tuple[str, str] = ("", "")
    args: tuple[Any, ...]
    state: Any
    items: list[Any]

    def __new__(cls, *args: Any, **named: Any) -> StandIn:
        """Take what the pickle makes it with."""
        made = object.__new__(cls)
        made.args, made.state, made.items = (*args, *named.values()), None, []
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items += (key, value)

    def __call__(self, *args: Any) -> StandIn:
        return StandIn(self, *args)

    def __repr__(self) -> str:
        return f"<{'.'.join(self.where)}>"

    def append(self, value: Any) -> None:
        """Take an item."""
        self.items.append(value)

    def extend(self, values: Any) -> None:
        """Take items."""
        self.items += values


def stand_in_for(module: str, name: str) -> type[StandIn]:
    """Return a class that stands for what has this name."""
    made: Any = _Name(name, (StandIn,), {"where": (module, name)})
    return made  # type: ignore[no-any-return]


class _InertUnpickler(pickle.Unpickler):
    def __init__(self, payload: bytes | memoryview, classes: Mapping[tuple[str, str], type[StandIn]]) -> None:
        super().__init__(io.BytesIO(payload))
        self._classes = dict(classes)

    def find_class(self, module: str, name: str) -> Any:
        where = (module, name)
        if where not in self._classes:
            self._classes[where] = stand_in_for(module, name)
        return self._classes[where]


def loads_inert(payload: bytes | memoryview, classes: Mapping[tuple[str, str], type[StandIn]] | None = None) -> Any:
    """Unpickle with a :class:`StandIn` for each name; ``classes`` are those for some of them."""
    return _InertUnpickler(payload, classes or {}).load()


def stand_ins_in(value: Any) -> Iterator[StandIn | type[StandIn]]:
    """Return the objects that others stand for wherever inside a value, and the names that are in it as they are."""
    seen: set[int] = set()
    level = [value]
    while level:
        each = level.pop()
        if id(each) in seen:
            continue
        if isinstance(each, StandIn):
            yield each
            inner: Any = [*each.args, each.state, *each.items]
        elif isinstance(each, type) and issubclass(each, StandIn):
            yield each
            continue
        elif isinstance(each, dict):
            inner = [*each, *each.values()]
        elif isinstance(each, (list, tuple, set, frozenset)):
            inner = each
        else:
            continue
        seen.add(id(each))
        level += inner


def equal_keys(content: Any, fields: Mapping[tuple[str, str], Sequence[str]]) -> StandIn | None:
    """Return an object in a key that equals another key of its dictionary or set by these fields; None: there is none.

    Args:
        fields: by the names of dataclasses and named tuples, the fields by which their objects are compared.
    """
    for of in _collections_in(content):
        forms: set[Any] = set()
        for key in of:
            form = _form(key, fields) if isinstance(key, (StandIn, tuple, frozenset)) else None
            if form is not None and form in forms:
                return next(each for each in stand_ins_in(key) if isinstance(each, StandIn) and each.where in fields)
            forms.add(form)
    return None


def _collections_in(value: Any) -> Iterator[Any]:
    """Return the dictionaries and sets inside a value."""
    seen: dict[int, Any] = {}
    level = [value]
    while level:
        each = level.pop()
        if id(each) in seen or not isinstance(each, (StandIn, dict, list, tuple, set, frozenset)):
            continue
        seen[id(each)] = each
        if isinstance(each, StandIn):
            level += (each.args, each.state, each.items)
        elif isinstance(each, dict):
            yield each
            level += each
            level += each.values()
        else:
            if isinstance(each, (set, frozenset)):
                yield each
            level += each


def _form(value: Any, fields: Mapping[tuple[str, str], Sequence[str]]) -> Any:
    """Return something that is equal for keys that are equal by these fields."""
    if isinstance(value, StandIn):
        names = fields.get(value.where)
        if names is not None and isinstance(value.state, dict):
            return value.where, tuple(_form(value.state.get(name), fields) for name in names)
        return id(value) if names is None else (value.where, _form(value.args, fields))
    if isinstance(value, (tuple, frozenset)):
        return type(value), type(value)(_form(each, fields) for each in value)
    return type(value), value
