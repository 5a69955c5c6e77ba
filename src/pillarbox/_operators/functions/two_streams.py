"""Functions for two connected streams, as in PyFlink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from pillarbox._generics import Generic, In1, In2, Key, KeyOut, Out
from pillarbox._operators.functions.basic import Function, KeyedProcessFunction, ProcessFunction, Results, SideOutput


class CoMapFunction(Function, ABC, Generic[In1, In2, Out]):
    """Maps each record of two streams to at most one result. If both streams are keyed, they share keyed state.

    Example:
        >>> class AsText(CoMapFunction[int, str, str]):
        ...     def map1(self, number):
        ...         return f"number {number}"
        ...
        ...     def map2(self, text):
        ...         return text or None
        >>> with harness_for(AsText()) as harness:
        ...     harness.push1(1)
        ...     harness.push2("")
        ...     harness.get_output()
        ['number 1']
    """

    @abstractmethod
    def map1(self, value: In1, /) -> Out | None:
        """Return the result for a record of the first stream, or None."""

    @abstractmethod
    def map2(self, value: In2, /) -> Out | None:
        """Return the result for a record of the second stream, or None."""


class CoFlatMapFunction(Function, ABC, Generic[In1, In2, Out]):
    """Maps each record of two streams to any number of results. If both streams are keyed, they share keyed state.

    Example:
        >>> class Blocked(CoFlatMapFunction[str, str, str]):
        ...     def open(self, runtime_context):
        ...         self.blocked = runtime_context.get_state(ValueStateDescriptor[bool]("blocked"))
        ...
        ...     def flat_map1(self, word):
        ...         self.blocked.update(True)
        ...
        ...     def flat_map2(self, word):
        ...         if not self.blocked.value():
        ...             yield word
        >>> with harness_for(Blocked(), key_by=(str, str)) as harness:
        ...     harness.push1("not")
        ...     harness.push2("to")
        ...     harness.push2("not")
        ...     harness.get_output()
        ['to']
    """

    @abstractmethod
    def flat_map1(self, value: In1, /) -> Iterable[Out] | None:
        """Return or ``yield`` the results for a record of the first stream, or return None."""

    @abstractmethod
    def flat_map2(self, value: In2, /) -> Iterable[Out] | None:
        """Return or ``yield`` the results for a record of the second stream, or return None."""


class CoProcessFunction(Function, ABC, Generic[In1, In2, Out]):
    """Processes the records of two streams, with side outputs. Has no key, state or timers.

    Each subtask has its own instance. Attributes are not checkpointed.

    Example:
        >>> class Both(CoProcessFunction[str, int, tuple[str, int]]):
        ...     def process_element1(self, name, ctx):
        ...         yield name, ctx.timestamp()
        ...
        ...     def process_element2(self, amount, ctx):
        ...         yield "amount", amount
        >>> with harness_for(Both()) as harness:
        ...     harness.push1("ann", timestamp=1_000)
        ...     harness.push2(30)
        ...     harness.get_output()
        [('ann', 1000), ('amount', 30)]
    """

    Context: TypeAlias = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: In1, ctx: ProcessFunction.Context, /) -> Iterable[Out | SideOutput] | None:
        """Process a record of the first stream, as in ``ProcessFunction.process_element``."""

    @abstractmethod
    def process_element2(self, value: In2, ctx: ProcessFunction.Context, /) -> Iterable[Out | SideOutput] | None:
        """Process a record of the second stream, as in ``ProcessFunction.process_element``."""


class KeyedCoProcessFunction(Function, ABC, Generic[Key, In1, In2, Out]):
    """Processes the records of two keyed streams, which share keyed state and timers.

    Example:
        >>> class Join(KeyedCoProcessFunction[str, Row, Row, tuple[str, int]]):
        ...     def open(self, runtime_context):
        ...         self.name = runtime_context.get_state(ValueStateDescriptor[str]("name"))
        ...
        ...     def process_element1(self, customer, ctx):
        ...         self.name.update(customer.name)
        ...
        ...     def process_element2(self, order, ctx):
        ...         yield self.name.value() or "unknown", order.total
        >>> with harness_for(Join(), key_by=("id", "customer")) as harness:
        ...     harness.push1(row(id="c1", name="Ann"))
        ...     harness.push2(row(customer="c1", total=30))
        ...     harness.get_output()
        [('Ann', 30)]
    """

    if TYPE_CHECKING:
        # Some type checkers reject an alias of a generic class.
        class Context(KeyedProcessFunction.Context[KeyOut], Generic[KeyOut]):
            """The context of the current record and its key."""

        class OnTimerContext(Context[KeyOut], KeyedProcessFunction.OnTimerContext[KeyOut], Generic[KeyOut]):
            """The context of the current timer and its key."""

    else:
        Context = KeyedProcessFunction.Context
        OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: In1, ctx: Context[Key], /) -> Results[Out]:
        """Process a record of the first stream, as in ``KeyedProcessFunction.process_element``."""

    @abstractmethod
    def process_element2(self, value: In2, ctx: Context[Key], /) -> Results[Out]:
        """Process a record of the second stream, as in ``KeyedProcessFunction.process_element``."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext[Key], /) -> Results[Out]:
        """Process a timer that either method has set, as in ``KeyedProcessFunction.on_timer``."""
        return None
