"""Operators with two inputs.

An operator's event time is the minimum of its inputs' event times. Source: Flink's ``CoStreamMap``,
``CoStreamFlatMap``, ``CoProcessOperator`` and ``KeyedCoProcessOperator``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from pillarbox._operators.frame.inputs import OperatorInput, TwoInputs
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._operators.stateless.flat_map import FlatMapOperator
from pillarbox._operators.stateless.process import ProcessOperator

Keyings = tuple[Keying, Keying] | tuple[None, None]


def _inputs(process_run: Callable[..., None], keyings: Keyings, *methods: Callable[..., Any]) -> list[OperatorInput]:
    return [
        OperatorInput(partial(process_run, keying=keying, call=method), keying)
        for keying, method in zip(keyings, methods, strict=True)
    ]


class CoFlatMapOperator(TwoInputs, FlatMapOperator):
    """Applies ``flat_map1`` and ``flat_map2``."""

    def __init__(self, context: OperatorContext, function: Any, keyings: Keyings = (None, None)) -> None:
        super().__init__(context, function, keyings[0])
        self._inputs = _inputs(self.process_run, keyings, *self._methods(function))

    def _methods(self, function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return function.flat_map1, function.flat_map2


class CoMapOperator(CoFlatMapOperator):
    """Applies ``map1`` and ``map2``. Drops None results, as PyFlink does."""

    def _methods(self, function: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return _at_most_one(function.map1), _at_most_one(function.map2)


def _at_most_one(method: Callable[[Any], Any]) -> Callable[[Any], tuple[Any] | None]:
    def results(value: Any) -> tuple[Any] | None:
        result = method(value)
        return None if result is None else (result,)

    return results


class CoProcessOperator(TwoInputs, ProcessOperator):
    """Applies ``process_element1`` and ``process_element2``, without keys."""

    def __init__(self, context: OperatorContext, function: Any) -> None:
        super().__init__(context, function)
        methods = function.process_element1, function.process_element2
        self._inputs = _inputs(self.process_run, (None, None), *methods)


class KeyedCoProcessOperator(TwoInputs, KeyedProcessOperator):
    """Applies ``process_element1`` and ``process_element2`` with keyed state, and ``on_timer``."""

    def __init__(self, context: OperatorContext, function: Any, keyings: tuple[Keying, Keying]) -> None:
        super().__init__(context, function, keyings[0])
        self._inputs = _inputs(self.process_run, keyings, function.process_element1, function.process_element2)
