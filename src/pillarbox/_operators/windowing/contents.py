"""The contents of a window, kept and passed to its function: all elements, one folded value, or evicted ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pillarbox._errors import shorten
from pillarbox._operators.windowing.api.evictors import Evictor, TimestampedValue
from pillarbox._state.descriptors import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
)
from pillarbox._state.heap.states import RECORD_IS_NONE
from pillarbox._state.state_descriptor import StateDescriptor

_NAME = CONTENTS = "window-contents"
# Gets the elements of a window that fires.
Call = Callable[[tuple[Any, ...]], None]


@dataclass(frozen=True)
class Fold:
    """How elements become one value, by way of an accumulator.

    Attributes:
        descriptor: the state in which the elements are folded as they come.
        first: returns the accumulator of one element.
        add: returns an accumulator with another element; it may be the same accumulator.
        merge: returns one accumulator of two, and may change both; None: they cannot be merged.
        result: returns the result of an accumulator.
        name: what is folded, where it is a field of the records.
    """

    descriptor: StateDescriptor
    first: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None
    result: Callable[[Any], Any]
    name: str | None = None

    def of(self, values: Iterable[Any]) -> Any:
        """Return the result of some elements, of which there is at least one."""
        rest = iter(values)
        accumulator = self.first(next(rest))
        for value in rest:
            accumulator = self.add(accumulator, value)
        return self.result(accumulator)


def reducing(function: Callable[[Any, Any], Any], name: str | None = None) -> Fold:
    """Return the fold of elements two by two: what is folded so far is the accumulator.

    Args:
        name: what is folded, where it is a field of the records.
    """
    return Fold(ReducingStateDescriptor(_NAME, function), _first_record, function, function, _itself, name)


def aggregating(function: AggregateFunction[Any, Any, Any], accumulator_type: Any = None) -> Fold:
    """Return the fold of elements by a user's function.

    Args:
        accumulator_type: the type of accumulators, if it is declared.
    """

    def first(value: Any) -> Any:
        return function.add(value, function.create_accumulator())

    def add(accumulator: Any, value: Any) -> Any:
        return function.add(value, accumulator)

    merges = type(function).merge is not AggregateFunction.merge
    descriptor = AggregatingStateDescriptor(_NAME, function, accumulator_type)
    return Fold(descriptor, first, add, function.merge if merges else None, function.get_result)


def _first_record(value: Any) -> Any:
    if value is None:
        raise ValueError(RECORD_IS_NONE)
    return value


def _itself(value: Any) -> Any:
    return value


class Folded:
    """Elements are folded as they come: a window keeps one value. It is part of the program; the state is handed in.

    Attributes:
        descriptor: the state that a window keeps.
    """

    def __init__(self, fold: Fold) -> None:
        self.fold = fold
        self.descriptor: StateDescriptor = fold.descriptor

    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        """Fold an element in."""
        state.fold(value)

    def kept(self, state: Any) -> Sequence[Any]:
        """Return the accumulator."""
        return (state.accumulator(),)

    def fire(self, state: Any, window: Any, context: Evictor.EvictorContext, call: Call) -> None:
        """Call the function with the folded value."""
        value = state.get()
        if value is not None:
            call((value,))


class AllElements:
    """A window keeps all of its elements, in the order in which they came.

    Args:
        fold: what the function gets in their place, if that is one value.
        evictor: takes elements out of the window; then their timestamps are kept, too.

    It has the attributes and methods of :class:`Folded`.
    """

    def __init__(self, fold: Fold | None = None, evictor: Evictor | None = None) -> None:
        self.descriptor: StateDescriptor = ListStateDescriptor(_NAME)
        self.fold = fold
        self.evictor = evictor

    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        """Append an element."""
        # In a tuple of its own: an element may be None, which list states refuse.
        state.add((value,) if self.evictor is None else (value, timestamp))

    def kept(self, state: Any) -> Sequence[Any]:
        """Return the elements."""
        return tuple(element[0] for element in state.get())

    def fire(self, state: Any, window: Any, context: Evictor.EvictorContext, call: Call) -> None:
        """Call the function with the elements that the evictor leaves."""
        kept = state.get()
        if not kept:
            return
        if self.evictor is None:
            self._call([element[0] for element in kept], call)
            return
        # (Those that came when the program had no evictor have no timestamp.)
        elements = [TimestampedValue(value, time[0] if time else None) for value, *time in kept]
        self._evict("evict_before", elements, window, context)
        self._call([element.value for element in elements], call)
        self._evict("evict_after", elements, window, context)
        if len(elements) < len(kept):
            state.update([tuple(element) for element in elements])

    def _evict(self, method: str, elements: list[TimestampedValue], window: Any, context: Any) -> None:
        result = getattr(self.evictor, method)(elements, window, context)
        if result is not None or not all(isinstance(element, TimestampedValue) for element in elements):
            name = type(self.evictor).__name__
            raise TypeError(
                f"{name}.{method}() takes elements out of the list that it is given, and returns nothing; it"
                + (f" returned {shorten(result)}" if result is not None else " left something else in the list")
            )

    def _call(self, values: list[Any], call: Call) -> None:
        if self.fold is None:
            call(tuple(values))
        elif values:
            call((self.fold.of(values),))
