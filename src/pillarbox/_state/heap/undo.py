"""Steps to undo changes of keyed state and timers: for operators that continue when their function raises.

It is noted step by step, so it costs what is done, whatever a key has besides. Only the mailbox thread may touch it.

An operator that processes one element at a time uses :meth:`Undo.begin` and :meth:`Undo.restore`. An operator with
several elements in progress has :class:`ElementNotes` for each.
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
        # Orders that notes of rewound elements refer to.
        self._kept: dict[int, _Order] = {}

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
        self._restore_orders()

    def _restore_orders(self) -> None:
        orders = {id(order): order for order in self._disturbed}
        self._disturbed.clear()
        for order in orders.values():
            order.restore()

    # -- several elements at a time --

    def enter(self, notes: ElementNotes) -> None:
        """Note the following changes for an element."""
        self._steps, self._copied, self._active = notes.steps, notes.copied, True

    def leave(self) -> None:
        """Note nothing until the next :meth:`enter`."""
        self._active = False

    def undo(self, notes: ElementNotes) -> None:
        """Undo an element's changes."""
        self.enter(notes)
        self._active = False
        self.restore()

    def rewind(self, notes: ElementNotes) -> list[Step]:
        """Undo an element's changes, but keep its notes; return the steps that repeat the changes."""
        again: list[Step] = []
        for number, (step, arguments) in reversed([*enumerate(notes.steps)]):
            again.append(_INVERSES[step](*arguments))
            step(*arguments)
            if step is _put_back_live:
                # The log will have the rewound content: once more undone, nothing differs from it.
                notes.steps[number] = step, (*arguments[:3], False, False)
            elif step is _into_place or step is _forget_place:
                self._kept[id(arguments[0].entries)] = arguments[0]
        self._restore_orders()
        again.reverse()
        return _with_marks(again)

    def repeat(self, again: list[Step]) -> None:
        """Repeat changes that were rewound."""
        for step, arguments in again:
            step(*arguments)

    # -- ends --

    def end(self) -> None:
        """Note no more: what comes is for good."""
        self.begin()
        self._active = False

    def forget_maps(self) -> None:
        """Forget the order of maps: an epoch ends, and other code changes them; or all keys are dropped."""
        self._orders, self._kept = self._kept, {}

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
                self._steps.append((_forget_place, (order, key)))

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
                self._steps.append((_into_place, (order, place, self._disturbed)))

    def _note(self, entries: dict[Any, Any], key: Any, value: Any) -> None:
        if isinstance(entries, LiveMap):
            noted = key in entries.changed, key in entries.removed
            self._steps.append((_put_back_live, (entries, key, value, *noted)))
        else:
            self._steps.append((_put_back, (entries, key, value)))

    # -- timers --

    def timer_added(self, timers: Any, row: Row, timestamp: int) -> None:
        """Note a timer that was registered."""
        if self._active:
            self._steps.append((take_away_timer, (timers, row, timestamp)))

    def timer_removed(self, timers: Any, row: Row, timestamp: int) -> None:
        """Note a timer that was deleted."""
        if self._active:
            self._steps.append((put_back_timer, (timers, row, timestamp)))


class ElementNotes:
    """The steps that undo the changes of one element."""

    __slots__ = ("copied", "steps")

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.copied: dict[Any, Any] = {}

    def rows(self) -> list[Row]:
        """Return the rows of keys that the element has changed."""
        rows: dict[int, Row] = {}
        for step, arguments in self.steps:
            row = None
            if step is setitem and type(arguments[1]) is int:
                row = arguments[0]
            elif step is take_away_timer or step is put_back_timer:
                row = arguments[1]
            if row is not None:
                rows[id(row)] = row
        return list(rows.values())


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


def _into_place(order: _Order, entry: tuple[int, Any], disturbed: list[_Order]) -> None:
    order.places[entry[1]] = entry
    disturbed.append(order)


def _forget_place(order: _Order, key: Any) -> None:
    order.places.pop(key, None)


def take_away_timer(timers: Any, row: Row, timestamp: int) -> None:
    """Remove a timer from a row."""
    timers.take_away(row, timestamp)


def put_back_timer(timers: Any, row: Row, timestamp: int) -> None:
    """Add a timer to a row."""
    timers.put_back(row, timestamp)


def _repeat_item(holder: Any, index: Any, _: Any) -> Step:
    return setitem, (holder, index, list(holder) if type(index) is slice else holder[index])


def _repeat_put(entries: dict[Any, Any], key: Any, _: Any) -> Step:
    return _put_back, (entries, key, entries.get(key, _MISSING))


def _repeat_put_live(entries: LiveMap, key: Any, *_: Any) -> Step:
    return _put_back_live, (entries, key, entries.get(key, _MISSING), False, False)


def _with_marks(again: list[Step]) -> list[Step]:
    """Add the marks of large maps to steps that repeat changes: which keys they set, and which they remove."""
    removed: set[tuple[int, Any]] = set()
    marked = []
    for step, arguments in again:
        if step is _put_back_live:
            entries, key, value, *_ = arguments
            name = id(entries), key
            if value is _MISSING:
                removed.add(name)
            arguments = entries, key, value, value is not _MISSING, name in removed  # noqa: PLW2901
        marked.append((step, arguments))
    return marked


# For each undoing step that is about to be made, the step that undoes it.
_INVERSES: dict[Callable[..., Any], Callable[..., Step]] = {
    setitem: _repeat_item,
    delitem: lambda elements, part: (list.extend, (elements, elements[part])),
    dict.update: lambda entries, changed: (dict.update, (entries, {key: entries[key] for key in changed})),
    _put_back: _repeat_put,
    _put_back_live: _repeat_put_live,
    _into_place: lambda order, entry, _: (_forget_place, (order, entry[1])),
    _forget_place: lambda order, key: (setitem, (order.places, key, order.places[key])),
    take_away_timer: lambda *timer: (put_back_timer, timer),
    put_back_timer: lambda *timer: (take_away_timer, timer),
}
