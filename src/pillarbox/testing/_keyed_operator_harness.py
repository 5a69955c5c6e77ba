"""Harnesses for keyed operators, with access to state and timers. Names are as in Flink."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._operators.frame.keying import KeyingRouter
from pillarbox._state.keys.key_groups import DEFAULT_MAX_PARALLELISM
from pillarbox._time.internal_timer_service import InternalTimerService
from pillarbox.testing._operator_harness import (
    OneInputStreamOperatorTestHarness,
    TwoInputStreamOperatorTestHarness,
    keying_of,
)


class KeyedOneInputStreamOperatorTestHarness(OneInputStreamOperatorTestHarness):
    """Runs an operator on a keyed stream, with access to its keyed state and timers.

    ``push`` raises ``KeyTypeError`` for a key that a program could not assign to a subtask.
    """

    _keyed = True

    def _process(self, records: Records, index: int = 0) -> None:
        keying = keying_of(self.operator.inputs[index])
        if keying is not None:
            KeyingRouter(keying, 1, DEFAULT_MAX_PARALLELISM).subtasks_of(records)
        super()._process(records, index)

    def __enter__(self) -> KeyedOneInputStreamOperatorTestHarness:
        return self

    def num_keyed_state_entries(self) -> int:
        """Return the number of non-empty states of all keys and namespaces (such as windows)."""
        return sum(len(self._backend.contents(key, namespace)) for key, namespace in self._places())

    def get_keys(self) -> list[Any]:
        """Return the keys that have state or timers in any namespace (such as a window)."""
        # Until the next checkpoint, a record's key may have an empty row.
        return list(dict.fromkeys(key for key, namespace in self._places() if self._has_something(key, namespace)))

    def get_namespaces(self, key: Any) -> list[Any]:
        """Return a key's namespaces that have state or timers. Windows are returned as tuples of their fields."""
        return self._backend.namespaces.namespaces_of(key)

    def num_event_time_timers(self) -> int:
        return sum(service.num_event_time_timers() for service in self._services)

    def num_processing_time_timers(self) -> int:
        return sum(service.num_processing_time_timers() for service in self._services)

    @property
    def _services(self) -> Iterable[InternalTimerService]:
        return self._time_services.services()

    def state_of(self, key: Any, namespace: Any = None) -> dict[str, Any]:
        """Return a copy of a key's non-empty states by name (values, lists, dicts, reduced values or accumulators).

        ``namespace`` can be a window. By default, return state outside of windows.
        """
        return copy.deepcopy(self._backend.contents(key, namespace))

    def event_time_timers_of(self, key: Any, namespace: Any = None) -> list[int]:
        """Return the sorted timestamps of a key's event-time timers."""
        return self._timers_of(key, namespace, "/event")

    def processing_time_timers_of(self, key: Any, namespace: Any = None) -> list[int]:
        return self._timers_of(key, namespace, "/processing")

    def _timers_of(self, key: Any, namespace: Any, domain: str) -> list[int]:
        timestamps = self._backend.timestamps(key, namespace)
        return sorted(timestamp for name in timestamps if name.endswith(domain) for timestamp in timestamps[name])

    def _has_something(self, key: Any, namespace: Any) -> bool:
        return bool(self._backend.contents(key, namespace) or self._backend.timestamps(key, namespace))

    def _places(self) -> Iterator[tuple[Any, Any]]:
        for key in self._backend.get_keys():
            yield key, None
            for namespace in self._backend.namespaces.namespaces_of(key):
                yield key, namespace


class KeyedTwoInputStreamOperatorTestHarness(TwoInputStreamOperatorTestHarness, KeyedOneInputStreamOperatorTestHarness):
    """Runs an operator on two connected keyed streams."""

    def __enter__(self) -> KeyedTwoInputStreamOperatorTestHarness:
        return self
