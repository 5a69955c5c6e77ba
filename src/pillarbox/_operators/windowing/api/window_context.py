# SPDX-License-Identifier: Apache-2.0
"""A window function's access to its window, clocks and states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pillarbox._generics import Generic, V, WindowOut
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.descriptors import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)


class KeyedStateStore(ABC):
    """A window function's access to its states."""

    @abstractmethod
    def get_state(self, descriptor: ValueStateDescriptor[V], /) -> ValueState[V]:
        """Return a value state."""

    @abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[V], /) -> ListState[V]:
        """Return a list state."""

    @abstractmethod
    def get_map_state(self, descriptor: MapStateDescriptor[Any, V], /) -> MapState[Any, V]:
        """Return a map state."""

    @abstractmethod
    def get_reducing_state(self, descriptor: ReducingStateDescriptor[V], /) -> ReducingState[V]:
        """Return a reducing state."""

    @abstractmethod
    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Any, Any, V], /) -> AggregatingState[Any, V]:
        """Return an aggregating state."""


class WindowContext(ABC, Generic[WindowOut]):
    """A window function's access to its window and to clocks. All times are Unix times in ms."""

    @abstractmethod
    def window(self) -> WindowOut:
        """Return the window."""

    @abstractmethod
    def current_processing_time(self) -> int:
        """Return the wall-clock time."""

    @abstractmethod
    def current_watermark(self) -> int:
        """Return the operator's watermark, initially -2**63."""

    @abstractmethod
    def window_state(self) -> KeyedStateStore:
        """Return the store for states of this key and window. They remain until ``clear`` removes them.

        Raises:
            ProgramError: the windows may merge.
        """

    @abstractmethod
    def global_state(self) -> KeyedStateStore:
        """Return the store for states that all windows of this key share. They are never removed automatically."""

    @abstractmethod
    def output(self, tag: OutputTag[V], value: V, /) -> None:
        """Emit a value to a side output, with the window's largest timestamp."""
