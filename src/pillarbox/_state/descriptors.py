"""State descriptors and states as a user sees them, with PyFlink's names.

A state belongs to the current key. It is declared in ``open()`` through the runtime context.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Protocol

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import Acc, Generic, In, K, Out, T, U, V
from pillarbox._state.state_descriptor import StateDescriptor

if TYPE_CHECKING:
    from pillarbox._types.type_information import TypeInformation


class ValueStateDescriptor(StateDescriptor, Generic[V]):
    """Declares one value (of type ``V``) per key.

    Args:
        name: unique among the states of a function; the state is stored under it.
        value_type_info: the value's type, as in PyFlink; it may be left out.
        default: ``value()`` returns it where there is no value. It is not stored, so it may change between two starts.
        default_factory: the same for a default that can be changed, such as a list: it is called without arguments
            each time, so that no two keys share what it returns. As with the fields of dataclasses, what was changed
            has to be stored with ``update()``.

    Raises:
        ProgramError: ``default`` can be changed, or both are given.

    Example:
        >>> class Count(MapFunction[str, int]):
        ...     def open(self, runtime_context):
        ...         self.count = runtime_context.get_state(ValueStateDescriptor("count", int, default=0))
        ...
        ...     def map(self, word):
        ...         self.count.update(self.count.value() + 1)
        ...         return self.count.value()
        >>> words = env.from_collection(["to", "be", "to"]).key_by(lambda word: word)
        >>> words.map(Count()).execute_and_collect()
        [1, 1, 2]
    """

    kind = "value"

    def __init__(
        self,
        name: str,
        value_type_info: TypeInformation[V] | type[V] | None = None,
        *,
        default: V | None = None,
        default_factory: Callable[[], V] | None = None,
    ) -> None:
        super().__init__(name, value_type_info)
        self.value_type_info = value_type_info
        if default_factory is not None and (default is not None or not callable(default_factory)):
            both = "both default and" if default is not None else f"{shorten(default_factory)} as"
            raise ProgramError(
                f"the state {name!r} has {both} default_factory: give it one of them, a factory being a function"
                " without arguments"
            )
        if not _is_hashable(default):
            raise ProgramError(
                f"the state {name!r} has a default that can be changed, {shorten(default)}, which all keys would share:"
                " give a function that makes one, as in default_factory=list"
            )
        self.default: V | None = default
        self.default_factory: Callable[[], V] | None = default_factory

    @property
    def has_default(self) -> bool:
        """Whether ``value()`` returns something where there is no value."""
        return self.default is not None or self.default_factory is not None

    def make_default(self) -> V | None:
        """Return the default for a missing value."""
        return self.default if self.default_factory is None else self.default_factory()


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


class ListStateDescriptor(StateDescriptor, Generic[V]):
    """Declares a list of elements (of type ``V``) per key.

    Args:
        name: unique among the states of a function; the state is stored under it.
        elem_type_info: the elements' type, as in PyFlink; it may be left out.
    """

    kind = "list"

    def __init__(self, name: str, elem_type_info: TypeInformation[V] | type[V] | None = None) -> None:
        super().__init__(name, elem_type_info)
        self.elem_type_info = elem_type_info


class MapStateDescriptor(StateDescriptor, Generic[K, V]):
    """Declares a map from ``K`` to ``V`` per key.

    Args:
        name: unique among the states of a function; the state is stored under it.
        key_type_info: the type of the map's keys, as in PyFlink; it may be left out.
        value_type_info: the type of its values; it may be left out.
    """

    kind = "map"
    _in_brackets = (0, 1)

    def __init__(
        self,
        name: str,
        key_type_info: TypeInformation[K] | type[K] | None = None,
        value_type_info: TypeInformation[V] | type[V] | None = None,
    ) -> None:
        super().__init__(name, key_type_info, value_type_info)
        self.key_type_info = key_type_info
        self.value_type_info = value_type_info


class ReducingStateDescriptor(StateDescriptor, Generic[V]):
    """Declares one value (of type ``V``) per key, into which added values are folded.

    Args:
        name: unique among the states of a function; the state is stored under it.
        reduce_function: ``f(folded, added)``, or a ``ReduceFunction``.
        type_info: the value's type, as in PyFlink; it may be left out.
    """

    kind = "reducing"

    def __init__(
        self,
        name: str,
        reduce_function: Callable[[V, V], V] | Reduces[V],
        type_info: TypeInformation[V] | type[V] | None = None,
    ) -> None:
        super().__init__(name, type_info)
        function: Any = reduce_function
        self.reduce_function: Callable[[V, V], V] = getattr(function, "reduce", function)
        if (isinstance(function, type) and hasattr(function, "reduce")) or not callable(self.reduce_function):
            raise ProgramError(
                f"the state {name!r}: reduce_function is a function f(folded, added), or an instance of a"
                f" ReduceFunction, not {shorten(function)}; the type of the values comes after it"
            )
        self.type_info = type_info


class Reduces(Protocol[T]):
    """A ``ReduceFunction``, as a state knows it."""

    def reduce(self, value1: T, value2: T, /) -> T:
        """Return both values folded into one."""


class AggregateFunction(ABC, Generic[In, Acc, Out]):
    """Folds values (``In``) into an accumulator (``Acc``), from which a result (``Out``) is computed.

    Example:
        >>> class Mean(AggregateFunction[float, tuple[float, int], float]):
        ...     def create_accumulator(self):
        ...         return 0.0, 0
        ...
        ...     def add(self, value, accumulator):
        ...         total, count = accumulator
        ...         return total + value, count + 1
        ...
        ...     def get_result(self, accumulator):
        ...         total, count = accumulator
        ...         return total / count
        >>> class MeanSoFar(MapFunction[float, float]):
        ...     def open(self, runtime_context):
        ...         self.mean = runtime_context.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))
        ...
        ...     def map(self, number):
        ...         self.mean.add(number)
        ...         return self.mean.get()
        >>> numbers = env.from_collection([1, 2, 6]).key_by(lambda number: "all")
        >>> numbers.map(MeanSoFar()).execute_and_collect()
        [1.0, 1.5, 3.0]
    """

    @abstractmethod
    def create_accumulator(self) -> Acc:
        """Return a new, empty accumulator."""

    @abstractmethod
    def add(self, value: In, accumulator: Acc, /) -> Acc:
        """Return the accumulator with ``value`` added."""

    @abstractmethod
    def get_result(self, accumulator: Acc, /) -> Out:
        """Return the result of an accumulator."""

    def merge(self, accumulator_a: Acc, accumulator_b: Acc, /) -> Acc:
        """Return both accumulators merged into one; merging windows ask for it.

        Raises:
            NotImplementedError: the function does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} does not merge accumulators: define merge()")


class AggregatingStateDescriptor(StateDescriptor, Generic[T, Acc, U]):
    """Declares one accumulator per key.

    Args:
        name: unique among the states of a function; the state is stored under it.
        agg_function: folds values into the accumulator.
        state_type_info: the accumulator's type, as in PyFlink; it may be left out.
    """

    kind = "aggregating"
    _in_brackets = (1,)

    def __init__(
        self,
        name: str,
        agg_function: AggregateFunction[T, Acc, U],
        state_type_info: TypeInformation[Acc] | type[Acc] | None = None,
    ) -> None:
        super().__init__(name, state_type_info)
        if not isinstance(agg_function, AggregateFunction):
            raise ProgramError(
                f"the state {name!r}: agg_function is an instance of an AggregateFunction, not {shorten(agg_function)}"
            )
        self.agg_function = agg_function
        self.state_type_info = state_type_info


class ValueState(ABC, Generic[V]):
    """One value (of type ``V``) of the current key; ``RuntimeContext.get_state`` returns it.

    Example:
        >>> class Count(MapFunction[str, int]):
        ...     def open(self, runtime_context):
        ...         self.count = runtime_context.get_state(ValueStateDescriptor[int]("count"))
        ...
        ...     def map(self, word):
        ...         count = (self.count.value() or 0) + 1
        ...         self.count.update(count)
        ...         return count
        >>> words = env.from_collection(["to", "be", "to"]).key_by(lambda word: word)
        >>> words.map(Count()).execute_and_collect()
        [1, 1, 2]
    """

    @abstractmethod
    def value(self) -> V | None:
        """Return the value; where there is none, the descriptor's default, which is None unless it says another."""

    @abstractmethod
    def update(self, value: V | None) -> None:
        """Set the value; None clears the state. A mutable value that was changed in place must be updated, too.

        Args:
            value: anything that can be pickled. A value that cannot be is an ``OperatorError`` where the epoch ends.
        """

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""


class ListState(ABC, Generic[V]):
    """A list (of elements of type ``V``) of the current key; ``RuntimeContext.get_list_state`` returns it.

    Iterating over the state iterates over its elements.

    Example:
        >>> class LastThree(MapFunction[int, list[int]]):
        ...     def open(self, runtime_context):
        ...         self.recent = runtime_context.get_list_state(ListStateDescriptor[int]("recent"))
        ...
        ...     def map(self, number):
        ...         self.recent.add(number)
        ...         self.recent.update(list(self.recent)[-3:])
        ...         return list(self.recent)
        >>> numbers = env.from_collection([1, 2, 3, 4]).key_by(lambda number: "all")
        >>> numbers.map(LastThree()).execute_and_collect()
        [[1], [1, 2], [1, 2, 3], [2, 3, 4]]
    """

    @abstractmethod
    def get(self) -> Iterable[V]:
        """Return the elements, oldest first, as they are now: a tuple, so that no change to it gets lost."""

    @abstractmethod
    def add(self, value: V) -> None:
        """Append an element.

        Raises:
            ProgramError: it is None, which Flink's list states refuse as well; so do ``add_all`` and ``update``.
        """

    @abstractmethod
    def add_all(self, values: Iterable[V]) -> None:
        """Append elements; None among them is refused."""

    @abstractmethod
    def update(self, values: Iterable[V]) -> None:
        """Replace all elements; None among them is refused."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""

    def __iter__(self) -> Iterator[V]:
        return iter(self.get())


class MapState(ABC, Generic[K, V]):
    """A map of the current key.

    It has a dict's order, also after a restart. Of a large map, an epoch writes the entries that it puts.
    """

    @abstractmethod
    def get(self, key: K) -> V | None:
        """Return the value at ``key``, or None. A mutable value that was changed in place must be put again."""

    @abstractmethod
    def put(self, key: K, value: V) -> None:
        """Set the value at ``key``."""

    @abstractmethod
    def put_all(self, dict_value: Mapping[K, V]) -> None:
        """Set all values of a mapping."""

    @abstractmethod
    def remove(self, key: K) -> None:
        """Remove ``key``, if it exists."""

    @abstractmethod
    def contains(self, key: K) -> bool:
        """Return whether ``key`` is present."""

    @abstractmethod
    def items(self) -> ItemsView[K, V]:
        """Return the entries; iterate over a copy when the state is changed meanwhile."""

    @abstractmethod
    def keys(self) -> KeysView[K]:
        """Return the keys."""

    @abstractmethod
    def values(self) -> ValuesView[V]:
        """Return the values."""

    @abstractmethod
    def is_empty(self) -> bool:
        """Return whether there is no entry."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""

    def __getitem__(self, key: K) -> V:
        if not self.contains(key):
            raise KeyError(key)
        return self.get(key)  # type: ignore[return-value]

    def __setitem__(self, key: K, value: V) -> None:
        self.put(key, value)

    def __delitem__(self, key: K) -> None:
        self.remove(key)

    def __contains__(self, key: K) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())


class ReducingState(ABC, Generic[V]):
    """A folded value (of type ``V``) of the current key; ``RuntimeContext.get_reducing_state`` returns it.

    Example:
        >>> class Highest(MapFunction[int, int]):
        ...     def open(self, runtime_context):
        ...         self.highest = runtime_context.get_reducing_state(ReducingStateDescriptor[int]("highest", max))
        ...
        ...     def map(self, number):
        ...         self.highest.add(number)
        ...         return self.highest.get()
        >>> numbers = env.from_collection([3, 8, 5]).key_by(lambda number: "all")
        >>> numbers.map(Highest()).execute_and_collect()
        [3, 8, 8]
    """

    @abstractmethod
    def get(self) -> V | None:
        """Return the folded value, or None."""

    @abstractmethod
    def add(self, value: V) -> None:
        """Fold a value in; None clears the state, as in Flink."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""


class AggregatingState(ABC, Generic[In, Out]):
    """An accumulator of the current key: ``In`` goes in, ``Out`` is the result.

    ``RuntimeContext.get_aggregating_state`` returns it; see :class:`AggregateFunction`.
    """

    @abstractmethod
    def get(self) -> Out | None:
        """Return the result of the accumulator, or None when nothing was added."""

    @abstractmethod
    def add(self, value: In) -> None:
        """Add a value to the accumulator; None clears the state, as in Flink."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the state of the current key."""
