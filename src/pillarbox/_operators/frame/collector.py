"""The output of operators: a collector of runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from traceback import walk_tb
from types import GeneratorType
from typing import Any

from pillarbox._copies import FIXED, TUPLES
from pillarbox._elements import ArrowRecords, Records
from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.frame.operator import Input, OperatorContext
from pillarbox._operators.functions.basic import OutputTag
from pillarbox._state.types.sizes import size_of

# A collector hands on what it holds at this size, so that one run's fan-out never gathers in memory.
RUN_LIMIT = 8192
# Large results are handed on earlier, at about this many bytes: as seen at the first look, after so many results, or
# when there are four times as many as at the look before.
_RUN_BYTES = 8 * 1024 * 1024
FIRST_LOOK = 64
# A look is at so many of the results.
_SAMPLE = 4


def hand_on(output: Input, values: list[Any], timestamps: Sequence[int | None] | None) -> None:
    """Hand on a run of results. An error that comes out of this is not the function's that has emitted them."""
    output.process_records(Records(values, timestamps))


def hand_on_columns(output: Input, batch: Any) -> None:
    """Hand on a run of results that are an Arrow batch, as :func:`hand_on`."""
    output.process_records(ArrowRecords(batch))


def is_from_further_on(error: BaseException) -> bool:
    """Return whether an error comes from where results were handed on to."""
    return any(
        frame.f_code in (hand_on.__code__, hand_on_columns.__code__) for frame, _ in walk_tb(error.__traceback__)
    )


def next_look(values: list[Any], limit: int = 2**63) -> int:
    """Return how many results there have to be when a run's size is looked at again; 0: it is to be handed on.

    Args:
        limit: how many results are handed on, however small they are.
    """
    if len(values) >= limit:
        return 0
    sample = values[:: len(values) // _SAMPLE]
    try:
        is_large = sum(map(size_of, sample)) * len(values) >= _RUN_BYTES * len(sample)
    except Exception:  # of a class of the user's, such as a kind of dict: nothing depends on it
        is_large = False
    return 0 if is_large else min(4 * len(values), limit)


# The usual results of functions that emit any number of values.
USUAL_RESULTS = frozenset({GeneratorType, list, tuple})


def check_results(results: Any) -> None:
    """Refuse what is one value and not the values to emit.

    Raises:
        TypeError: it is a string, bytes, a mapping, a row, a coroutine, or nothing that can be iterated over.
    """
    if inspect.iscoroutine(results):
        results.close()  # it would complain that nobody waited for it
        raise TypeError(
            f"the function returned {shorten(results)}: nobody would wait for it; use map_async() or AsyncDataStream"
            " for what has to wait"
        )
    kind = type(results)
    if isinstance(results, (str, bytes, bytearray, Mapping)) or hasattr(kind, "_fields") or not _can_be_iterated(kind):
        raise TypeError(
            f"the function returned {shorten(results)}, which is one value, not the values to emit: yield it, or return"
            " a list of values"
        )


def _not_a_pair(results: Any) -> str:
    return (
        f"the function emitted {shorten(results)}: to a side output goes a tag and one value: yield tag, value, or"
        " return a list [(tag, value)], or call ctx.output(tag, value)"
    )


def _can_be_iterated(kind: type) -> bool:
    return hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")


_TO_SIDE = object()


class _SideRun:
    """What has been emitted to a side output, and how much of it there is when its size is looked at."""

    __slots__ = ("look", "timestamps", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self.look = FIRST_LOOK


class Collector:
    """Gathers the results of an operator's function into runs, for the main output and the side outputs.

    The records belong to the consumers: they are copied here, before the function can change them.
    """

    __slots__ = ("_context", "_copied", "_emitted", "_look", "_side", "timestamps", "values")

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._emitted = context.copier.emitted
        self._copied = context.copier.copied
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        # How many results there are when their size is looked at.
        self._look = FIRST_LOOK
        self._side: dict[str, _SideRun] = {}

    def collect(self, results: Iterable[Any], timestamp: int | None) -> None:
        """Take the results of one call, all with one timestamp; ``(OutputTag, value)`` goes to a side output.

        Raises:
            TypeError: it is one value, such as a string, and not the values to emit: see :func:`check_results`; a tag
                comes without a value, or with several.
            ProgramError: a value cannot be copied.
        """
        values = self.values
        timestamps = self.timestamps
        if type(results) not in USUAL_RESULTS:
            check_results(results)
        left = self._look - len(values)
        for result in results:
            kind = type(result)
            if kind in TUPLES:
                # In line, as in map.py: most records are tuples of values that cannot change.
                for field in result:
                    if type(field) not in FIXED:
                        result = self._unfixed_tuple(result, timestamp)  # noqa: PLW2901
                        break
                if result is _TO_SIDE:
                    continue
            elif kind not in FIXED:
                if kind is OutputTag:
                    raise TypeError(_not_a_pair(results))
                result = self._emitted(result)  # noqa: PLW2901
            values.append(result)
            timestamps.append(timestamp)
            left -= 1
            if not left:
                self._look = next_look(values, RUN_LIMIT)
                if not self._look:
                    self.flush()
                values, timestamps = self.values, self.timestamps
                left = self._look - len(values)

    def _unfixed_tuple(self, result: tuple[Any, ...], timestamp: int | None) -> Any:
        """Return the record to emit, or ``_TO_SIDE`` if it was one for a side output."""
        if type(result[0]) is not OutputTag or type(result) is not tuple:
            return self._emitted(result)
        if len(result) != 2:
            raise TypeError(_not_a_pair(result))
        self.collect_side(result[0], result[1], timestamp)
        return _TO_SIDE

    def collect_side(self, tag: OutputTag, value: Any, timestamp: int | None) -> None:
        """Take one value for a side output; without consumers it is dropped.

        Raises:
            ProgramError: the tag is none.
        """
        if type(tag) is not OutputTag and not isinstance(tag, OutputTag):
            raise ProgramError(
                f"operator {self._context.name!r}: a side output is named by an OutputTag, not by {shorten(tag)}:"
                " make one, tag = OutputTag('...'), and use it in ctx.output(tag, value) and get_side_output(tag)"
            )
        if tag.tag_id not in self._context.side_outputs:
            return
        run = self._side.get(tag.tag_id)
        if run is None:
            run = self._side[tag.tag_id] = _SideRun()
        run.values.append(self._copied(value))
        run.timestamps.append(timestamp)
        if len(run.values) >= run.look:
            run.look = next_look(run.values, RUN_LIMIT)
            if not run.look:
                del self._side[tag.tag_id]
                hand_on(self._context.side_outputs[tag.tag_id], run.values, run.timestamps)

    def flush(self) -> None:
        """Hand everything on."""
        if self.values:
            values, timestamps = self.values, self.timestamps
            self.values, self.timestamps = [], []
            self._look = FIRST_LOOK
            hand_on(self._context.output, values, timestamps)
        if self._side:
            side, self._side = self._side, {}
            for tag_id, run in side.items():
                hand_on(self._context.side_outputs[tag_id], run.values, run.timestamps)
