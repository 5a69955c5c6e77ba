"""The stored contents of a window: either all elements or one accumulator."""

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
Call = Callable[[tuple[Any, ...]], None]


@dataclass(frozen=True)
class ContentsFold:
    """Folds elements into an accumulator, and computes a result from it.

    Attributes:
        first: creates an accumulator from the first element.
        add: adds an element to an accumulator, possibly in place.
        merge: merges two accumulators, possibly in place. None if they cannot be merged.
    """

    descriptor: StateDescriptor
    first: Callable[[Any], Any]
    add: Callable[[Any, Any], Any]
    merge: Callable[[Any, Any], Any] | None
    result: Callable[[Any], Any]
    name: str | None = None

    def of(self, values: Iterable[Any]) -> Any:
        rest = iter(values)
        accumulator = self.first(next(rest))
        for value in rest:
            accumulator = self.add(accumulator, value)
        return self.result(accumulator)


def reducing(function: Callable[[Any, Any], Any], name: str | None = None) -> ContentsFold:
    return ContentsFold(ReducingStateDescriptor(_NAME, function), _first_record, function, function, _itself, name)


def aggregating(function: AggregateFunction[Any, Any, Any], accumulator_type: Any = None) -> ContentsFold:
    def first(value: Any) -> Any:
        return function.add(value, function.create_accumulator())

    def add(accumulator: Any, value: Any) -> Any:
        return function.add(value, accumulator)

    merges = type(function).merge is not AggregateFunction.merge
    descriptor = AggregatingStateDescriptor(_NAME, function, accumulator_type)
    return ContentsFold(descriptor, first, add, function.merge if merges else None, function.get_result)


def _first_record(value: Any) -> Any:
    if value is None:
        raise ValueError(RECORD_IS_NONE)
    return value


def _itself(value: Any) -> Any:
    return value


class FoldedContents:
    """Accesses a window's stored accumulator. Methods receive the state, because one object serves all windows."""

    def __init__(self, fold: ContentsFold) -> None:
        self.fold = fold
        self.descriptor: StateDescriptor = fold.descriptor

    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        state.fold(value)

    def elements(self, state: Any) -> Sequence[Any]:
        return (state.accumulator(),)

    def fire(self, state: Any, window: Any, context: Evictor.EvictorContext, call: Call) -> None:
        value = state.get()
        if value is not None:
            call((value,))


class ListContents:
    """Accesses a window's elements, which are stored in arrival order."""

    def __init__(self, fold: ContentsFold | None = None, evictor: Evictor | None = None) -> None:
        self.descriptor: StateDescriptor = ListStateDescriptor(_NAME)
        self.fold = fold
        self.evictor = evictor

    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        # In a tuple, because list states refuse None.
        state.add((value,) if self.evictor is None else (value, timestamp))

    def elements(self, state: Any) -> Sequence[Any]:
        return tuple(element[0] for element in state.get())

    def fire(self, state: Any, window: Any, context: Evictor.EvictorContext, call: Call) -> None:
        stored = state.get()
        if not stored:
            return
        if self.evictor is None:
            self._call([element[0] for element in stored], call)
            return
        # Elements stored by a program without an evictor have no timestamp.
        elements = [TimestampedValue(value, time[0] if time else None) for value, *time in stored]
        self._evict("evict_before", elements, window, context)
        self._call([element.value for element in elements], call)
        self._evict("evict_after", elements, window, context)
        if len(elements) < len(stored):
            state.update([tuple(element) for element in elements])

    def _evict(self, method: str, elements: list[TimestampedValue], window: Any, context: Any) -> None:
        result = getattr(self.evictor, method)(elements, window, context)
        if result is not None or not all(isinstance(element, TimestampedValue) for element in elements):
            name = type(self.evictor).__name__
            raise TypeError(
                f"{name}.{method}() must remove elements from its list argument and return None, but it"
                + (f" returned {shorten(result)}" if result is not None else " left other objects in the list")
            )

    def _call(self, values: list[Any], call: Call) -> None:
        if self.fold is None:
            call(tuple(values))
        elif values:
            call((self.fold.of(values),))
