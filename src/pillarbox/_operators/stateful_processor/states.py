"""Spark's interfaces to pillarbox's state. Mailbox thread only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import StructType

from pillarbox._operators.stateful_processor.value_codec import ValueCodec, row_maker, struct_codec
from pillarbox._state.descriptors import ListState, MapState, ValueState


class ProcessorValueState:
    """Implements Spark's ``ValueState``."""

    __slots__ = ("clear", "exists", "get", "update")

    def __init__(self, name: str, state: ValueState[Any], schema: StructType) -> None:
        encode, decode = struct_codec(schema)
        value, update = state.value, state.update
        self.get: Callable[[], tuple[Any, ...] | None] = value
        if decode is not tuple:
            self.get = lambda: None if (stored := value()) is None else decode(stored)
        self.exists: Callable[[], bool] = lambda: value() is not None
        self.update: Callable[[Any], None] = lambda newValue: update(encode(newValue))
        self.clear: Callable[[], None] = state.clear


class ProcessorListState:
    """Implements Spark's ``ListState``."""

    __slots__ = ("_codec", "_name", "_state")

    def __init__(self, name: str, state: ListState[Any], schema: StructType) -> None:
        self._name, self._state, self._codec = name, state, struct_codec(schema)

    def exists(self) -> bool:
        return bool(self._state.get())

    def get(self) -> Iterator[tuple[Any, ...]]:
        return iter(_decoded(self._codec, self._state.get()))

    def put(self, newState: Iterable[Any]) -> None:
        self._state.update(self._encoded(newState))

    def appendValue(self, newState: Any) -> None:
        self._state.add(self._codec.encode(newState))

    def appendList(self, newState: Iterable[Any]) -> None:
        self._state.add_all(self._encoded(newState))

    def clear(self) -> None:
        self._state.clear()

    def _encoded(self, values: Iterable[Any]) -> list[Any]:
        encoded = list(map(self._codec.encode, values))
        if not encoded:
            raise PySparkRuntimeError(
                "Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal value provided to the"
                f" State Store Cannot write empty list values to State Store for StateName {self._name}. SQLSTATE:"
                " 42601"
            )
        return encoded


class ProcessorMapState:
    """Implements Spark's ``MapState``, in insertion order."""

    __slots__ = ("_key", "_row", "_state", "_value")

    def __init__(self, name: str, state: MapState[Any, Any], key: StructType, value: StructType) -> None:
        self._state, self._key, self._value = state, struct_codec(key, hashable=True), struct_codec(value)
        self._row = row_maker(tuple(value.names))

    def exists(self) -> bool:
        return not self._state.is_empty()

    def getValue(self, key: Any) -> tuple[Any, ...] | None:
        stored = self._state.get(self._key.encode(key))
        return None if stored is None else self._row(self._value.decode(stored))

    def containsKey(self, key: Any) -> bool:
        return self._state.contains(self._key.encode(key))

    def updateValue(self, key: Any, value: Any) -> None:
        self._state.put(self._key.encode(key), self._value.encode(value))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        return iter(list(zip(self.keys(), self.values())))

    def keys(self) -> Iterator[tuple[Any, ...]]:
        return iter(_decoded(self._key, self._state.keys()))

    def values(self) -> Iterator[tuple[Any, ...]]:
        return iter(_decoded(self._value, self._state.values()))

    def removeKey(self, key: Any) -> None:
        self._state.remove(self._key.encode(key))

    def clear(self) -> None:
        self._state.clear()


def _decoded(codec: ValueCodec, stored: Iterable[Any]) -> list[Any]:
    return list(stored) if codec.decode is tuple else list(map(codec.decode, stored))


class UnusableState:
    """A state whose methods raise, because it is on the driver or was deleted with ``deleteIfExists``."""

    def __init__(self, error: Callable[[str], Exception]) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> Any:
            raise self._error(name)

        return refuse
