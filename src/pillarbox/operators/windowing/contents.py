"""The contents of a window, kept and passed to its function: all elements, one folded value, or evicted ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from pillarbox.operators.windowing.evictors import Evictor, TimestampedValue
from pillarbox.state import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)

__all__ = ["AllElements", "Contents", "Fold", "Folded"]

_NAME = "window-contents"


class Contents(ABC):
    """How the elements of a window are kept. It is part of the program; the state is handed in.

    Attributes:
        descriptor: the state that a window keeps.
    """

    descriptor: StateDescriptor

    @abstractmethod
    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        """Add an element to the current window."""

    @abstractmethod
    def fire(
        self,
        state: Any,
        window: Any,
        evictor_context: Evictor.EvictorContext,
        call: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """Call the function of the current window with its elements, unless it is empty."""


class Fold(ABC):
    """How elements become one value."""

    @abstractmethod
    def of(self, values: Iterable[Any]) -> Any:
        """Return the result of some elements, of which there is at least one."""

    @abstractmethod
    def descriptor(self) -> StateDescriptor:
        """Return the state in which the elements are folded as they come."""


class Reduce(Fold):
    """Elements are folded two by two."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def of(self, values: Iterable[Any]) -> Any:
        """Return all elements folded into one."""
        rest = iter(values)
        result = next(rest)
        for value in rest:
            result = self.function(result, value)
        return result

    def descriptor(self) -> StateDescriptor:
        """Return a reducing state."""
        return ReducingStateDescriptor(_NAME, self.function)


class Aggregate(Fold):
    """Elements are added to an accumulator.

    Args:
        accumulator_type: the type of accumulators, if it is declared.
    """

    def __init__(self, function: AggregateFunction[Any, Any, Any], accumulator_type: Any = None) -> None:
        self.function = function
        self.accumulator_type = accumulator_type

    def of(self, values: Iterable[Any]) -> Any:
        """Return the result of an accumulator with all elements in it."""
        accumulator = self.function.create_accumulator()
        for value in values:
            accumulator = self.function.add(value, accumulator)
        return self.function.get_result(accumulator)

    def descriptor(self) -> StateDescriptor:
        """Return an aggregating state."""
        return AggregatingStateDescriptor(_NAME, self.function, self.accumulator_type)


class Folded(Contents):
    """Elements are folded as they come: a window keeps one value."""

    def __init__(self, fold: Fold) -> None:
        self.descriptor: StateDescriptor = fold.descriptor()

    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        """Fold an element in."""
        state.add(value)

    def fire(
        self,
        state: Any,
        window: Any,
        evictor_context: Evictor.EvictorContext,
        call: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """Call the function with the folded value."""
        value = state.get()
        if value is not None:
            call((value,))


class AllElements(Contents):
    """A window keeps all of its elements, in the order in which they came.

    Args:
        fold: what the function gets in their place, if that is one value.
        evictor: takes elements out of the window; then their timestamps are kept, too.
    """

    def __init__(self, fold: Fold | None = None, evictor: Evictor | None = None) -> None:
        self.descriptor: StateDescriptor = ListStateDescriptor(_NAME)
        self.fold = fold
        self.evictor = evictor

    def add(self, state: Any, value: Any, timestamp: int | None) -> None:
        """Append an element."""
        # In a tuple of its own: an element may be None, which list states refuse.
        state.add((value,) if self.evictor is None else (value, timestamp))

    def fire(
        self,
        state: Any,
        window: Any,
        evictor_context: Evictor.EvictorContext,
        call: Callable[[tuple[Any, ...]], None],
    ) -> None:
        """Call the function with the elements that the evictor leaves."""
        kept = state.get()
        if not kept:
            return
        if self.evictor is None:
            self._call([value for (value,) in kept], call)
            return
        elements = [TimestampedValue(value, timestamp) for value, timestamp in kept]
        self.evictor.evict_before(elements, window, evictor_context)
        self._call([element.value for element in elements], call)
        self.evictor.evict_after(elements, window, evictor_context)
        if len(elements) < len(kept):
            state.update([tuple(element) for element in elements])

    def _call(self, values: list[Any], call: Callable[[tuple[Any, ...]], None]) -> None:
        if self.fold is None:
            call(tuple(values))
        elif values:
            call((self.fold.of(values),))
