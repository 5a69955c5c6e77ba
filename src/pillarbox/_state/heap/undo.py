"""Steps to undo changes of keyed state and timers: for operators that continue when their function raises.

It is noted step by step, so it costs what is done, whatever a key has besides. Only the mailbox thread may touch it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from operator import delitem, setitem
from typing import Any

from pillarbox._copies import FIXED, are_fixed, copied, is_fixed
from pillarbox._state.chunks.large_collection import LiveMap
from pillarbox._state.slots import Row

_MISSING = object()

Step = tuple[Callable[..., Any], tuple[Any, ...]]


class Undo:
    """Steps that restore the earlier content before each change, and before each look at what may be changed in place.

    Each change is noted before it happens. A list or map that another one replaces stays as it is, so the
    reference to it is all that has to be noted.

    Args:
        unchanged: the names of states of which nothing is noted: they are the same when the function raises.
    """

    def __init__(self, unchanged: Collection[str] = ()) -> None:
        self.unchanged: frozenset[str] = frozenset(unchanged)
        self._active = False
        self._steps: list[Step] = []
        # Copies made so far, by id; the object is kept so that its id stays unique.
        self._copied: dict[Any, Any] = {}
        # By the id of a map; and those into which something was put back that was removed.
        self._orders: dict[int, _Order] = {}
        self._disturbed: list[_Order] = []

    def begin(self) -> None:
        """Begin to note, and forget what was noted before."""
        self._active = True
        if self._steps:
            self._steps.clear()
        if self._copied:
            self._copied.clear()

    def mark(self) -> int:
        """Return a mark, up to which what follows can be undone."""
        # What was copied before the mark is, at the mark, something else.
        self._copied.clear()
        return len(self._steps)

    def restore(self, mark: int = 0) -> None:
        """Undo what was done since the mark, or since all began."""
        steps = self._steps
        while len(steps) > mark:
            step, arguments = steps.pop()
            step(*arguments)
        self._copied.clear()
        disturbed, self._disturbed = self._disturbed, []
        for order in {id(order): order for order in disturbed}.values():
            order.restore()

    def end(self) -> None:
        """Note no more: what comes is for good."""
        self.begin()
        self._active = False

    def forget_maps(self) -> None:
        """Forget the order of maps: an epoch ends, and other code changes them; or all keys are dropped."""
        self._orders.clear()

    # -- rows, and values in them --

    def slot(self, row: Row, slot: int) -> None:
        """Note a slot that will hold another object."""
        if self._active:
            self._steps.append((setitem, (row, slot, row[slot])))

    def content(self, row: Row, slot: int) -> None:
        """Note a slot that will hold another object, or whose object may be changed in place."""
        if not self._active:
            return
        value = row[slot]
        if type(value) not in FIXED:
            name = id(row), slot
            if name in self._copied:
                return
            self._copied[name] = row
            value = copied(value)
        self._steps.append((setitem, (row, slot, value)))

    # -- lists --

    def length(self, elements: list[Any] | None) -> None:
        """Note a list to which elements will be appended."""
        if self._active and elements is not None:
            self._steps.append((delitem, (elements, slice(len(elements), None))))

    def elements(self, elements: list[Any] | None) -> None:
        """Note a list whose elements may be changed in place."""
        if self._active and elements is not None and id(elements) not in self._copied:
            self._copied[id(elements)] = elements
            if not are_fixed(elements):
                self._steps.append((setitem, (elements, slice(None), copied(elements))))

    # -- maps --

    def value(self, entries: dict[Any, Any] | None, key: Any) -> None:
        """Note a value that may be changed in place."""
        if not self._active or not entries:
            return
        value = entries.get(key)
        if type(value) in FIXED or id(entries) in self._copied or (name := (id(entries), key)) in self._copied:
            return
        self._copied[name] = entries
        self._note(entries, key, copied(value))

    def values(self, entries: dict[Any, Any] | None) -> None:
        """Note a map whose values may all be changed in place."""
        if self._active and entries and id(entries) not in self._copied:
            self._copied[id(entries)] = entries
            changing = {key: copied(value) for key, value in entries.items() if not is_fixed(value)}
            if changing:
                self._steps.append((dict.update, (entries, changing)))

    def put(self, entries: dict[Any, Any] | None, key: Any) -> None:
        """Note a key that will get a value."""
        if entries is None:
            return
        value = entries.get(key, _MISSING)
        if self._active:
            self._note(entries, key, value)
        order = self._orders.get(id(entries))
        if order is not None and value is _MISSING:
            order.places[key] = (order.following(), key)
            if self._active:
                self._steps.append((order.places.pop, (key, None)))

    def removal(self, entries: dict[Any, Any] | None, key: Any) -> None:
        """Note a key that will be removed, if it exists."""
        if entries is None or key not in entries:
            return
        order = self._orders.get(id(entries))
        if order is None and self._active:
            order = self._orders[id(entries)] = _Order(entries)
        if order is not None:
            place = order.places.pop(key)
            if self._active:
                self._note(entries, place[1], entries[key])
                self._steps.append((self._into_place, (order, place)))

    def _note(self, entries: dict[Any, Any], key: Any, value: Any) -> None:
        if isinstance(entries, LiveMap):
            noted = key in entries.changed, key in entries.removed
            self._steps.append((_put_back_live, (entries, key, value, *noted)))
        else:
            self._steps.append((_put_back, (entries, key, value)))

    def _into_place(self, order: _Order, place: tuple[int, Any]) -> None:
        order.places[place[1]] = place
        self._disturbed.append(order)

    # -- everything else --

    def step(self, step: Callable[..., Any], *arguments: Any) -> None:
        """Note how that is undone which has been done."""
        if self._active:
            self._steps.append((step, arguments))


class _Order:
    """The order of a map's keys, from when the first of them is removed: it could not be told from the map any more.

    Attributes:
        places: by key a number, which is greater for keys that come later, and the key as the map has it (an equal one
            may be of another type).
    """

    def __init__(self, entries: dict[Any, Any]) -> None:
        self.entries = entries
        self.places: dict[Any, tuple[int, Any]] = {key: (number, key) for number, key in enumerate(entries)}
        self._next = len(entries)

    def following(self) -> int:
        """Return the number of a key that comes after all others."""
        self._next += 1
        return self._next

    def restore(self) -> None:
        """Put the map in order again."""
        entries, places = self.entries, self.places
        content = sorted(entries.items(), key=lambda entry: places[entry[0]][0])
        dict.clear(entries)
        dict.update(entries, content)
        if isinstance(entries, LiveMap):
            # New ones are written in this order.
            entries.changed = dict.fromkeys(sorted(entries.changed, key=lambda key: places[key][0]))


def _put_back(entries: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _MISSING:
        dict.pop(entries, key, None)
    else:
        dict.__setitem__(entries, key, value)


def _put_back_live(entries: LiveMap, key: Any, value: Any, is_changed: bool, is_removed: bool) -> None:
    """Put it back also for the log: what it will write of the map is what it would have written."""
    _put_back(entries, key, value)
    for noted, is_there in ((entries.changed, is_changed), (entries.removed, is_removed)):
        if is_there:
            noted[key] = None
        else:
            noted.pop(key, None)
