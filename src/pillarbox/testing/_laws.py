"""Checks that an operator obeys general laws, like trio's ``check_one_way_stream``."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._elements.records import ArrowRecords, Records
from pillarbox._operators.functions.basic import Function
from pillarbox._rows import Row
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP
from pillarbox.testing._operator_harness import OneInputStreamOperatorTestHarness, StreamElement, StreamRecord

Open = Callable[..., OneInputStreamOperatorTestHarness]
T = TypeVar("T")


@dataclass(frozen=True)
class ProcessingTime:
    """A script step that sets the clock to ``timestamp`` (Unix time in ms)."""

    timestamp: int


Step = StreamRecord | tuple[int, StreamRecord] | Watermark | ProcessingTime


def check_operator(open_harness: Open, script: Sequence[Step], *, ordered: bool = True, examples: int = 10) -> None:
    """Check that an operator obeys these laws for an input.

    1. The output does not depend on how records are split into batches.
    2. Taking a snapshot at any point and resuming from it in another task does not change the output, even with two
       consecutive snapshots.
    3. Watermarks never decrease. No record is emitted behind the watermark, unless the input has late records.
    4. After its output raises an error, the operator emits nothing more, and closes without another error.
    5. Columnar input gives the same results as rows.
    6. After a snapshot, the task continues with the same function object, still open.

    For example, for a function with keyed state::

        check_operator(
            lambda **options: harness_for(Sessions(), key_by="card", **options),
            [StreamRecord(row(card="c1"), 0), Watermark(30_000), StreamRecord(row(card="c1"), 45_000)],
        )

    Args:
        open_harness: opens a harness for a new operator with a new function, and passes keyword arguments to it.
        script: the input: records, watermarks and clock steps, in order. For an operator with two inputs, a record is
            ``(0, record)`` or ``(1, record)``.
        ordered: whether the order of records between two watermarks matters.
        examples: the number of random splits and of random snapshot points to try (with a constant seed).

    Raises:
        AssertionError: a law is broken; the message names it and shows the difference.
    """
    __tracebackhide__ = True
    steps = list(script)
    _check_functions(open_harness)
    right = _run(open_harness, _runs(steps, [1] * len(steps)))
    rng = random.Random(20)
    _check_cuts(open_harness, steps, right, ordered, rng, examples)
    _check_snapshots(open_harness, steps, right, ordered, rng, examples)
    _check_watermarks(open_harness, steps, right)
    _check_closing(open_harness, steps, right, rng, examples)
    _check_columns(open_harness, steps, right, ordered)
    _check_epochs(open_harness, steps, right, ordered, rng, examples)


def _check_functions(open_harness: Open) -> None:
    __tracebackhide__ = True
    with open_harness() as first, open_harness() as second:
        function = getattr(first.operator, "function", None)
        if isinstance(function, Function) and function is getattr(second.operator, "function", None):
            raise ValueError(
                f"open_harness returned two harnesses with the same {type(function).__name__}: create a new one at"
                f" each call, as in lambda **options: harness_for({type(function).__name__}(...), **options)"
            )


def _check_cuts(
    open_harness: Open, steps: list[Step], right: list[StreamElement], ordered: bool, rng: random.Random, examples: int
) -> None:
    __tracebackhide__ = True
    ways = [[len(steps)], *([rng.randint(1, 4) for _ in steps] for _ in range(examples))]
    for sizes in ways:
        output = _run(open_harness, _runs(steps, sizes))
        _compare(
            output, right, ordered, f"law 1: the output depends on how records are cut into batches (here {sizes})"
        )


def _check_snapshots(
    open_harness: Open, steps: list[Step], right: list[StreamElement], ordered: bool, rng: random.Random, examples: int
) -> None:
    __tracebackhide__ = True
    points = range(len(steps) + 1)
    for point in points if len(points) <= examples else sorted(rng.sample(points, examples)):
        # In an earlier epoch, because a value's first snapshot would contain even an unnoticed change.
        earlier = rng.randrange(point + 1)
        with open_harness() as harness:
            for step in _runs(steps[:earlier], [1] * earlier):
                _play(harness, step)
            harness.snapshot()
            for step in _runs(steps[earlier:point], [1] * point):
                _play(harness, step)
            snapshot = harness.snapshot()
            output = harness.get_elements()
            time = harness.get_processing_time()
        with open_harness(snapshot=snapshot, processing_time=time) as harness:
            for step in _runs(steps[point:], [1] * len(steps)):
                _play(harness, step)
            harness.end_input()
            output += harness.get_elements()
        what = (
            f"law 2: resuming from a snapshot after step {point} of {len(steps)} (and one after step {earlier}) changes"
            " the output: a value is kept outside of state, or was changed in place without update()"
        )
        _compare(_records(output), _records(right), ordered, what)


def _check_watermarks(open_harness: Open, steps: list[Step], right: list[StreamElement]) -> None:
    __tracebackhide__ = True
    watermarks = [element.timestamp for element in right if isinstance(element, Watermark)]
    assert watermarks == sorted(watermarks), f"law 3: watermarks decrease: {watermarks}"
    first = next((position for position, _ in _late(steps)), None)
    if first is not None:
        right = _run(open_harness, _runs(steps[:first], [1] * first))
    late = [record for _, record in _late(right)]
    assert not late, f"law 3: records were emitted after a watermark that they should precede: {late[:5]}"


def _late(elements: Sequence[Any]) -> Iterator[tuple[int, StreamRecord]]:
    watermark = MIN_TIMESTAMP
    for position, element in enumerate(elements):
        if isinstance(element, Watermark):
            watermark = element.timestamp
            continue
        record = element if isinstance(element, StreamRecord) else element[1] if isinstance(element, tuple) else None
        if isinstance(record, StreamRecord) and record.timestamp is not None and record.timestamp <= watermark:
            yield position, record


class _DownstreamError(Exception):
    pass


def _check_closing(
    open_harness: Open, steps: list[Step], right: list[StreamElement], rng: random.Random, examples: int
) -> None:
    __tracebackhide__ = True
    count = len(_records(right))
    for number in sorted(rng.sample(range(count), min(count, examples))):
        harness = open_harness()
        try:
            harness.fail_output_at(number, _DownstreamError())
            for step in _runs(steps, [len(steps)]):
                _play(harness, step)
            harness.end_input()
        except Exception as error:
            if not _comes_from_downstream(error):
                harness.close()
                raise
        try:
            harness.close()
        except Exception as error:
            raise AssertionError(
                f"law 4: closing failed after the output failed at record {number}: {type(error).__name__}: {error}"
            ) from error


def _comes_from_downstream(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, _DownstreamError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_columns(open_harness: Open, steps: list[Step], right: list[StreamElement], ordered: bool) -> None:
    __tracebackhide__ = True
    values = [record.value for _, record in _numbered(steps)]
    if not values or not all(isinstance(value, Row) for value in values):
        return
    output = _run(open_harness, _runs(steps, [len(steps)], columnar=True))
    _compare(output, right, ordered, "law 5: the output differs if rows arrive as columns")


def _check_epochs(
    open_harness: Open, steps: list[Step], right: list[StreamElement], ordered: bool, rng: random.Random, examples: int
) -> None:
    __tracebackhide__ = True
    ways = [
        list(range(1, len(steps))),
        *(sorted(rng.sample(range(len(steps)), len(steps) // 2)) for _ in range(examples)),
    ]
    for points in ways:
        output = _run_epochs(open_harness, steps, points)
        what = (
            f"law 6: taking snapshots (after steps {points} of {len(steps)}) changes the task's output: preparing a"
            " snapshot must not remove anything that the task still needs"
        )
        _compare(_records(output), _records(right), ordered, what)


def _run_epochs(open_harness: Open, steps: list[Step], points: Sequence[int]) -> list[StreamElement]:
    with open_harness() as harness:
        for start, end in zip([0, *points], [*points, len(steps)]):
            for step in _runs(steps[start:end], [1] * (end - start)):
                _play(harness, step)
            if end < len(steps):
                harness.snapshot()
        harness.end_input()
        return harness.get_elements()


_Played = tuple[int, Records] | Watermark | ProcessingTime


def _numbered(steps: Sequence[Step]) -> Iterator[tuple[int, StreamRecord]]:
    for step in steps:
        if isinstance(step, StreamRecord):
            yield 0, step
        elif isinstance(step, tuple):
            yield step


def _runs(steps: Sequence[Step], sizes: Sequence[int], *, columnar: bool = False) -> list[_Played]:
    played: list[_Played] = []
    remaining = list(sizes)
    open_run: list[StreamRecord] = []
    room = index = 0

    def close() -> None:
        if open_run:
            played.append((index, _run_of(open_run, columnar)))
            open_run.clear()

    for step in steps:
        if isinstance(step, (Watermark, ProcessingTime)):
            close()
            played.append(step)
            continue
        number, record = (0, step) if isinstance(step, StreamRecord) else step
        fits = bool(open_run) and number == index and len(open_run) < room and _alike(open_run[0], record)
        if not fits:
            close()
            index, room = number, remaining.pop(0) if remaining else 1
        open_run.append(record)
    close()
    return played


def _alike(first: StreamRecord, second: StreamRecord) -> bool:
    return (first.timestamp is None) == (second.timestamp is None)


def _run_of(records: Sequence[StreamRecord], columnar: bool) -> Records:
    values = [record.value for record in records]
    stamps = None if records[0].timestamp is None else [record.timestamp for record in records]
    if not columnar:
        return Records(values, stamps)
    fields = values[0]._fields
    batch = pa.RecordBatch.from_arrays([pa.array([value[name] for value in values]) for name in fields], names=fields)
    return ArrowRecords(batch, None if stamps is None else pa.array(stamps, pa.int64()).to_numpy())


def _play(harness: OneInputStreamOperatorTestHarness, step: _Played) -> None:
    if isinstance(step, Watermark):
        harness.push_watermark(step.timestamp)
    elif isinstance(step, ProcessingTime):
        harness.set_processing_time(step.timestamp)
    else:
        harness.push_records(step[1], step[0])


def _run(open_harness: Open, steps: Sequence[_Played]) -> list[StreamElement]:
    with open_harness() as harness:
        for step in steps:
            _play(harness, step)
        harness.end_input()
        output = harness.get_elements()
    lost = harness.get_elements()[len(output) :]
    assert not lost, f"law 4: {lost[:5]} was emitted when the operator was closed, and is lost: emit it in finish()"
    return output


def _records(elements: Sequence[StreamElement]) -> list[StreamElement]:
    return [element for element in elements if isinstance(element, StreamRecord)]


def _without_status(elements: Sequence[StreamElement]) -> list[StreamElement]:
    return [element for element in elements if not isinstance(element, WatermarkStatus)]


def _compare(output: list[StreamElement], right: list[StreamElement], ordered: bool, what: str) -> None:
    __tracebackhide__ = True
    actual, expected = _without_status(output), _without_status(right)
    if not ordered:
        actual, expected = _sorted_between_watermarks(actual), _sorted_between_watermarks(expected)
    if actual != expected:
        position = next(
            (n for n, (a, b) in enumerate(zip(actual, expected)) if a != b), min(len(actual), len(expected))
        )
        raise AssertionError(
            f"{what}: element {position} is {_at(actual, position)}, but was {_at(expected, position)} with one"
            f" record per batch; the outputs are {actual[:20]} and {expected[:20]}"
        )


def _sorted_between_watermarks(elements: Sequence[StreamElement]) -> list[StreamElement]:
    result: list[StreamElement] = []
    group: list[StreamElement] = []
    for element in elements:
        if isinstance(element, Watermark):
            result += [*sorted(group, key=repr), element]
            group = []
        else:
            group.append(element)
    return result + sorted(group, key=repr)


def _at(elements: Sequence[T], position: int) -> T | str:
    return elements[position] if position < len(elements) else "nothing"
