"""The functions of two connected streams, with PyFlink's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from pillarbox._generics import Generic, In1, In2, Key, KeyOut, Out
from pillarbox._operators.functions.basic import Function, KeyedProcessFunction, ProcessFunction, SideOutput


class CoMapFunction(Function, ABC, Generic[In1, In2, Out]):
    """Turns each record of two streams into at most one other; where both have keys, they share keyed state.

    Example:
        >>> class AsText(CoMapFunction[int, str, str]):
        ...     def map1(self, number):
        ...         return f"number {number}"
        ...
        ...     def map2(self, text):
        ...         return text or None
        >>> with harness_for(AsText()) as harness:
        ...     harness.push1(1)
        ...     harness.push2("two")
        ...     harness.push2("")
        ...     harness.get_output()
        ['number 1', 'two']
    """

    @abstractmethod
    def map1(self, value: In1, /) -> Out | None:
        """Return the record to emit for one of the first stream; None: there is none."""

    @abstractmethod
    def map2(self, value: In2, /) -> Out | None:
        """Return the record to emit for one of the second stream; None: there is none."""


class CoFlatMapFunction(Function, ABC, Generic[In1, In2, Out]):
    """Turns each record of two streams into any number of others; where both have keys, they share keyed state.

    Example:
        >>> class Blocked(CoFlatMapFunction[str, str, str]):
        ...     '''Drops the words that the first stream has blocked.'''
        ...
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
        """Return (or ``yield``) the records to emit for one of the first stream; None stands for none."""

    @abstractmethod
    def flat_map2(self, value: In2, /) -> Iterable[Out] | None:
        """Return (or ``yield``) the records to emit for one of the second stream; None stands for none."""


class CoProcessFunction(Function, ABC, Generic[In1, In2, Out]):
    """Handles the records of two streams, also with side outputs; without key, state or timers.

    Its own attributes belong to its subtask, and are in no checkpoint.

    Example:
        >>> class Both(CoProcessFunction[str, int, tuple[str, int]]):
        ...     def process_element1(self, name, ctx):
        ...         yield name, ctx.timestamp()
        ...
        ...     def process_element2(self, amount, ctx):
        ...         yield "amount", amount
        >>> with harness_for(Both()) as harness:
        ...     harness.push1("ann", timestamp=1_000)
        ...     harness.push2(30, timestamp=2_000)
        ...     harness.get_output()
        [('ann', 1000), ('amount', 30)]
    """

    Context: TypeAlias = ProcessFunction.Context

    @abstractmethod
    def process_element1(self, value: In1, ctx: ProcessFunction.Context, /) -> Iterable[Out | SideOutput] | None:
        """Handle a record of the first stream; as ``ProcessFunction.process_element``."""

    @abstractmethod
    def process_element2(self, value: In2, ctx: ProcessFunction.Context, /) -> Iterable[Out | SideOutput] | None:
        """Handle a record of the second stream; as ``ProcessFunction.process_element``."""


class KeyedCoProcessFunction(Function, ABC, Generic[Key, In1, In2, Out]):
    """Handles the records of two keyed streams, with keyed state and timers that both share.

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
        ...     harness.push2(row(customer="c2", total=5))
        ...     harness.get_output()
        [('Ann', 30), ('unknown', 5)]
    """

    if TYPE_CHECKING:
        # An alias of a class with parameters is no type to some checkers.
        class Context(KeyedProcessFunction.Context[KeyOut], Generic[KeyOut]):
            """The record at hand, and its key."""

        class OnTimerContext(Context[KeyOut], KeyedProcessFunction.OnTimerContext[KeyOut], Generic[KeyOut]):
            """The timer at hand, and its key."""

    else:
        Context = KeyedProcessFunction.Context
        OnTimerContext = KeyedProcessFunction.OnTimerContext

    @abstractmethod
    def process_element1(self, value: In1, ctx: Context[Key], /) -> Iterable[Out | SideOutput] | None:
        """Handle a record of the first stream; as ``KeyedProcessFunction.process_element``."""

    @abstractmethod
    def process_element2(self, value: In2, ctx: Context[Key], /) -> Iterable[Out | SideOutput] | None:
        """Handle a record of the second stream; as ``KeyedProcessFunction.process_element``."""

    def on_timer(self, timestamp: int, ctx: OnTimerContext[Key], /) -> Iterable[Out | SideOutput] | None:
        """Handle a timer, whichever stream's record set it; as ``KeyedProcessFunction.on_timer``."""
        return None
