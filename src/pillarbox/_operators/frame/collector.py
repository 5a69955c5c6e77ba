"""Collects an operator's results into batches of records."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from traceback import walk_tb
from types import GeneratorType
from typing import Any

from pillarbox._copies import FIXED, TUPLES
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._errors import ProgramError, shorten
from pillarbox._operators.frame.operator import Input, OperatorContext
from pillarbox._operators.functions.output_tag import OutputTag
from pillarbox._state.types.sizes import size_of

# Maximum results in an emitted batch, so that a record with many results does not fill memory.
RUN_LIMIT = 8192
# Size in bytes of an emitted batch, measured at FIRST_LOOK results and whenever their number has quadrupled.
_RUN_BYTES = 8 * 1024 * 1024
FIRST_LOOK = 64
_SAMPLE = 4


def emit_run(output: Input, values: list[Any], timestamps: Sequence[int | None] | None) -> None:
    """Emit results. In a traceback, this frame shows that a downstream operator raised the error."""
    output.process_records(Records(values, timestamps))


def emit_columns(output: Input, batch: Any) -> None:
    output.process_records(ArrowRecords(batch))


def is_from_downstream(error: BaseException) -> bool:
    emitting = (emit_run.__code__, emit_columns.__code__)
    return any(frame.f_code in emitting for frame, _ in walk_tb(error.__traceback__))


def next_look(values: list[Any], limit: int = 2**63) -> int:
    """Return at how many results to check the batch's size next, or 0 to emit the batch now."""
    if len(values) >= limit:
        return 0
    sample = values[:: len(values) // _SAMPLE]
    try:
        is_large = sum(map(size_of, sample)) * len(values) >= _RUN_BYTES * len(sample)
    except Exception:
        is_large = False
    return 0 if is_large else min(4 * len(values), limit)


USUAL_RESULTS = frozenset({GeneratorType, list, tuple})


def check_results(results: Any) -> None:
    if inspect.iscoroutine(results):
        results.close()
        raise TypeError(
            f"the function returned {shorten(results)}, which is never awaited: use map_async() or AsyncDataStream"
        )
    kind = type(results)
    if isinstance(results, (str, bytes, bytearray, Mapping)) or hasattr(kind, "_fields") or not _can_be_iterated(kind):
        raise TypeError(
            f"the function returned {shorten(results)}, a single value instead of an iterable: yield it,"
            " or return a list"
        )


def check_tag(operator: str, tag: Any) -> None:
    if type(tag) is not OutputTag and not isinstance(tag, OutputTag):
        raise ProgramError(
            f"operator {operator!r}: a side output needs an OutputTag, not {shorten(tag)}: create tag"
            " = OutputTag('...') and use it in ctx.output(tag, value) and get_side_output(tag)"
        )


def not_a_pair(results: Any) -> str:
    return (
        f"the function emitted {shorten(results)}, but a side output takes a tag and one value: yield tag, value,"
        " return a list [(tag, value)], or call ctx.output(tag, value)"
    )


def _can_be_iterated(kind: type) -> bool:
    return hasattr(kind, "__iter__") or hasattr(kind, "__getitem__")


_TO_SIDE = object()


class _SideRun:
    __slots__ = ("look", "timestamps", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self.look = FIRST_LOOK


class Collector:
    """Collects a function's results for the main output and the side outputs.

    Values are copied immediately, because consumers may keep them and the function may change them.
    """

    __slots__ = ("_context", "_copied", "_emitted", "_look", "_side", "timestamps", "values")

    def __init__(self, context: OperatorContext) -> None:
        self._context = context
        self._emitted = context.copier.emitted
        self._copied = context.copier.copied
        self.values: list[Any] = []
        self.timestamps: list[int | None] = []
        self._look = FIRST_LOOK
        self._side: dict[str, _SideRun] = {}

    def collect(self, results: Iterable[Any], timestamp: int | None) -> None:
        """Collect a call's results, all with the same timestamp. ``(OutputTag, value)`` is for a side output."""
        values = self.values
        timestamps = self.timestamps
        if type(results) not in USUAL_RESULTS:
            check_results(results)
        left = self._look - len(values)
        for result in results:
            kind = type(result)
            if kind in TUPLES:
                # Inlined as in map.py, because most records are tuples of immutable values.
                for field in result:
                    if type(field) not in FIXED:
                        result = self._unfixed_tuple(result, timestamp)  # noqa: PLW2901
                        break
                if result is _TO_SIDE:
                    continue
            elif kind not in FIXED:
                if kind is OutputTag:
                    raise TypeError(not_a_pair(results))
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
        if type(result[0]) is not OutputTag or type(result) is not tuple:
            return self._emitted(result)
        if len(result) != 2:
            raise TypeError(not_a_pair(result))
        self.collect_side(result[0], result[1], timestamp)
        return _TO_SIDE

    def collect_side(self, tag: OutputTag, value: Any, timestamp: int | None) -> None:
        """Collect a value for a side output, or drop it if the output has no consumer."""
        check_tag(self._context.name, tag)
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
                emit_run(self._context.side_outputs[tag.tag_id], run.values, run.timestamps)

    def flush(self) -> None:
        if self.values:
            values, timestamps = self.values, self.timestamps
            self.values, self.timestamps = [], []
            self._look = FIRST_LOOK
            emit_run(self._context.output, values, timestamps)
        if self._side:
            side, self._side = self._side, {}
            for tag_id, run in side.items():
                emit_run(self._context.side_outputs[tag_id], run.values, run.timestamps)
