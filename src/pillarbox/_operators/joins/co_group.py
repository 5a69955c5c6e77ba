"""``join`` and ``co_group``, which combine two streams' records with equal keys in the same window.

A window's elements are (stream index, record) pairs. Source: Flink's ``CoGroupedStreams`` and ``JoinedStreams``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

from pillarbox._elements.records import Records
from pillarbox._operators.frame.collector import USUAL_RESULTS, check_results
from pillarbox._operators.frame.inputs import OperatorInput
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.frame.operator import OperatorContext
from pillarbox._operators.windowing.api.functions import WindowFunction
from pillarbox._operators.windowing.operator import WindowOperator
from pillarbox._operators.windowing.window_program import WindowProgram


class CoGroupWindowOperator(WindowOperator):
    """The operator of windows that contain the records of two streams."""

    def __init__(self, context: OperatorContext, keyings: tuple[Keying, Keying], program: WindowProgram) -> None:
        super().__init__(context, keyings[0], program)
        self._inputs = [
            OperatorInput(partial(self._process_stream, number, keying), keying)
            for number, keying in enumerate(keyings)
        ]

    def _process_stream(self, number: int, keying: Keying, records: Records) -> None:
        numbered = Records(list(zip(repeat(number), records.values)), records.timestamps)
        self.process_run(numbered, keying.keys_of(records))


class CoGroups(WindowFunction[Any, Any, Any, Any]):
    """Calls ``f(firsts, seconds)`` with a window's records, separated by stream."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def apply(self, key: Any, window: Any, inputs: Iterable[tuple[int, Any]]) -> Iterable[Any]:
        results = self._function(*_by_stream(inputs))
        return () if results is None else results


class CoGroupPairs(WindowFunction[Any, Any, Any, Any]):
    """Calls ``f(first, second)`` with each pair of records in a window, and emits the result."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def apply(self, key: Any, window: Any, inputs: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        firsts, seconds = _by_stream(inputs)
        for first in firsts:
            for second in seconds:
                yield self._function(first, second)


class CoGroupFlatPairs(CoGroupPairs):
    """Like :class:`CoGroupPairs`, but emits any number of results per pair."""

    def apply(self, key: Any, window: Any, inputs: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        for results in super().apply(key, window, inputs):
            if results is None:
                continue
            if type(results) not in USUAL_RESULTS:
                check_results(results)
            yield from results


def _by_stream(inputs: Iterable[tuple[int, Any]]) -> tuple[list[Any], list[Any]]:
    both: tuple[list[Any], list[Any]] = ([], [])
    for number, record in inputs:
        both[number].append(record)
    return both
