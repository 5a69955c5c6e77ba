"""Operators with two inputs: CoMap, CoFlatMap, CoProcess, and CoProcess under keys.

Each works as the operator with one input does, with a method of the function for each stream. Event time is the minimum
of both. Source of the behaviour: Flink's ``CoStreamMap``, ``CoStreamFlatMap``, ``CoProcessOperator`` and
``KeyedCoProcessOperator``; that a CoMap function may return None is PyFlink's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from pillarbox._elements import Records
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext, RecordInput, StreamOperator
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.process import ProcessOperator

__all__ = ["CoFlatMapOperator", "CoMapOperator", "CoProcessOperator", "KeyedCoProcessOperator", "Keyings"]

#: How the records of the first and of the second stream get their keys; None where the operator has no keyed state.
Keyings = tuple[Keying, Keying] | tuple[None, None]


class _RunOperator(Protocol):
    def process_run(self, records: Records, keying: Any, call: Callable[..., Any]) -> None: ...


class _FunctionInput:
    """One of the streams: its keys, and the method that handles its records."""

    def __init__(self, operator: _RunOperator, keying: Keying | None, method: Callable[..., Any]) -> None:
        self._operator = operator
        self.keying = keying
        self._method = method

    def process_records(self, records: Records) -> None:
        self._operator.process_run(records, self.keying, self._method)


class _TwoInputs(StreamOperator):
    """The part that has the inputs; the operator with one input, beside it, has the loop over a run."""

    _inputs: tuple[_FunctionInput, _FunctionInput]

    @property
    def inputs(self) -> Sequence[RecordInput]:
        """The inputs of the first and of the second stream."""
        return self._inputs

    def process_records(self, records: Records) -> None:
        """Refuse records that do not say of which stream they are."""
        raise AssertionError("an operator with two inputs takes records at its inputs")


class CoFlatMapOperator(_TwoInputs, FlatMapOperator):
    """Applies ``flat_map1`` to the records of the first stream, ``flat_map2`` to those of the second."""

    def __init__(self, context: OperatorContext, function: Any, keyings: Keyings = (None, None)) -> None:
        super().__init__(context, function, keyings[0])
        first, second = self._methods(function)
        self._inputs = _FunctionInput(self, keyings[0], first), _FunctionInput(self, keyings[1], second)

    def _methods(self, function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return function.flat_map1, function.flat_map2


class CoMapOperator(CoFlatMapOperator):
    """Applies ``map1`` to the records of the first stream, ``map2`` to those of the second; None is not emitted."""

    def _methods(self, function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return _at_most_one(function.map1), _at_most_one(function.map2)


def _at_most_one(method: Callable[[Any], Any]) -> Callable[[Any], tuple[Any] | None]:
    def results(value: Any) -> tuple[Any] | None:
        result = method(value)
        return None if result is None else (result,)

    return results


class CoProcessOperator(_TwoInputs, ProcessOperator):
    """Applies ``process_element1`` and ``process_element2``, without keys."""

    def __init__(self, context: OperatorContext, function: Any) -> None:
        super().__init__(context, function)
        self._inputs = (
            _FunctionInput(self, None, function.process_element1),
            _FunctionInput(self, None, function.process_element2),
        )


class KeyedCoProcessOperator(_TwoInputs, KeyedProcessOperator):
    """Applies ``process_element1`` and ``process_element2`` with the key's state at hand, and ``on_timer``."""

    def __init__(self, context: OperatorContext, function: Any, keyings: tuple[Keying, Keying]) -> None:
        super().__init__(context, function, keyings[0])
        self._inputs = (
            _FunctionInput(self, keyings[0], function.process_element1),
            _FunctionInput(self, keyings[1], function.process_element2),
        )
