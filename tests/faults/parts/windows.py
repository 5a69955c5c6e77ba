"""Windows for ``make chaos``: tumbling windows with late records, sliding windows, sessions, and windows that fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Any

from pillarbox import (
    AggregateFunction,
    DataStream,
    DeadLetter,
    EventTimeSessionWindows,
    OutputTag,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from tests.faults.parts.part import Model, OutputRow, Part
from tests.faults.programs.job import Event, Faults

__all__ = ["GAP", "LATENESS", "SIZE", "SLIDE", "TUMBLING", "WindowsModel"]

# Milliseconds. Records are up to 15 seconds behind event time: too late for some windows, late for others.
TUMBLING, LATENESS = 7_000, 8_000
SIZE, SLIDE = 12_000, 5_000
GAP, SESSION_LATENESS = 4_000, 6_000

LATE: OutputTag[Any] = OutputTag("late")


class WindowsModel(Model):
    def __init__(self, size: int, slide: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.slide = slide or size
        self.windows: defaultdict[tuple[int, int], list[Event]] = defaultdict(list)

    def starts(self, event: Event) -> Iterable[int]:
        return range(event.ts - event.ts % self.slide, event.ts - self.size, -self.slide)

    def record(self, event: Event) -> None:
        for start in self.starts(event):
            if start + self.size - 1 > self.watermark:
                self.windows[event.key, start].append(event)

    def advance(self, watermark: int) -> None:
        before = self.watermark
        super().advance(watermark)
        for (key, start), events in self.windows.items():
            if before < start + self.size - 1 <= watermark:
                self.fire(key, start, events)

    def fire(self, key: int, start: int, events: list[Event]) -> None:
        raise NotImplementedError


class CountAndSum(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, accumulator[1] + value.id

    def get_result(self, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator

    def merge(self, accumulator: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + other[0], accumulator[1] + other[1]


class Contents(ProcessWindowFunction):
    """Emits a window's contents as numbers or as one tuple. Each window (key and start) is a fault point."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults

    def process(
        self, key: int, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]
    ) -> Iterable[OutputRow]:
        window = context.window()
        self.faults.pass_by("window", (key, window.start))
        numbers = [number for element in elements for number in (element if type(element) is tuple else [element.id])]
        yield OutputRow(key, window.start, [window.end, *numbers])


def id_of(event: Any) -> OutputRow:
    return OutputRow(event.key, event.ts, event.id)


# -- folded windows --


def folded(assigner: Any, events: DataStream, faults: Faults) -> DataStream:
    return events.key_by("key").window(assigner).aggregate(CountAndSum(), Contents(faults))


class FoldedModel(WindowsModel):
    def fire(self, key: int, start: int, events: list[Event]) -> None:
        self.points["window"].append((key, start))
        self.say(key, start, [start + self.size, len(events), sum(event.id for event in events)])


TOTALS = Part("totals", partial(folded, TumblingEventTimeWindows.of(TUMBLING)), partial(FoldedModel, TUMBLING))
PANES = Part("sliding", partial(folded, SlidingEventTimeWindows.of(SIZE, SLIDE)), partial(FoldedModel, SIZE, SLIDE))


# -- windows that keep their elements, and late records --


def whole(events: DataStream, faults: Faults) -> DataStream:
    windows = events.key_by("key").window(TumblingEventTimeWindows.of(TUMBLING)).allowed_lateness(LATENESS)
    return windows.side_output_late_data(LATE).process(Contents(faults))


class WholeModel(WindowsModel):
    def record(self, event: Event) -> None:
        (start,) = self.starts(event)
        last = start + self.size - 1
        if last + LATENESS <= self.watermark:
            self.say(*id_of(event), side=LATE.tag_id)
            return
        self.windows[event.key, start].append(event)
        if last <= self.watermark:
            self.fire(event.key, start, self.windows[event.key, start])

    def fire(self, key: int, start: int, events: list[Event]) -> None:
        self.points["window"].append((key, start))
        self.say(key, start, [start + self.size, *(event.id for event in events)])


WHOLE = Part("tumbling", whole, partial(WholeModel, TUMBLING), sides={LATE: id_of})


# -- sessions --


def sessions(events: DataStream, faults: Faults) -> DataStream:
    windows = events.key_by("key").window(EventTimeSessionWindows.with_gap(GAP)).allowed_lateness(SESSION_LATENESS)
    return windows.aggregate(CountAndSum(), Contents(faults))


class SessionsModel(Model):
    def __init__(self) -> None:
        super().__init__()
        self._sessions: defaultdict[int, list[tuple[int, int, list[int]]]] = defaultdict(list)

    def record(self, event: Event) -> None:
        ids: list[int] = []
        start, end = event.ts, event.ts + GAP
        apart = []
        for session in self._sessions[event.key]:
            if session[0] <= end and session[1] >= start:
                start, end, ids = min(start, session[0]), max(end, session[1]), [*ids, *session[2]]
            else:
                apart.append(session)
        if end - 1 + SESSION_LATENESS <= self.watermark:
            return
        ids.append(event.id)
        self._sessions[event.key] = [*apart, (start, end, ids)]
        if end - 1 <= self.watermark:
            self._fire(event.key, start, end, ids)

    def advance(self, watermark: int) -> None:
        before = self.watermark
        super().advance(watermark)
        for key, sessions in self._sessions.items():
            for start, end, ids in sessions:
                if before < end - 1 <= watermark:
                    self._fire(key, start, end, ids)
            self._sessions[key] = [session for session in sessions if session[1] - 1 + SESSION_LATENESS > watermark]

    def _fire(self, key: int, start: int, end: int, ids: list[int]) -> None:
        self.points["window"].append((key, start))
        self.say(key, start, [end, len(ids), sum(ids)])


SESSIONS = Part("sessions", sessions, SessionsModel)


# -- windows that refuse records, and are refused --

SPOILT = OutputTag[DeadLetter]("spoilt")


def is_unfit(event: Any) -> bool:
    return bool(event.id % 13 == 4)


def is_spoilt(total: int) -> bool:
    return total % 3 == 1


class Picky(CountAndSum):
    def add(self, value: Any, accumulator: tuple[int, int]) -> tuple[int, int]:
        added = super().add(value, accumulator)
        if is_unfit(value):
            raise KeyError(value.id)
        return added


class Unspoilt(ProcessWindowFunction):
    def process(
        self, key: int, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]
    ) -> Iterable[OutputRow]:
        ((count, total),) = elements
        yield OutputRow(key, context.window().start, [count, total])
        if is_spoilt(total):
            raise ArithmeticError(f"{total} is refused")


def picky(events: DataStream, faults: Faults) -> DataStream:
    windows = events.key_by("key").window(TumblingEventTimeWindows.of(TUMBLING)).side_output_errors(SPOILT)
    return windows.aggregate(Picky(), Unspoilt())


def spoilt(letter: DeadLetter) -> OutputRow:
    assert letter.timestamp is not None
    value = list(letter.value) if type(letter.value) is tuple else letter.value.id
    return OutputRow(
        letter.key, letter.timestamp, [value, letter.operator, letter.error, "parts/windows.py" in letter.traceback]
    )


class PickyModel(WindowsModel):
    def record(self, event: Event) -> None:
        (start,) = self.starts(event)
        if is_unfit(event) and start + self.size - 1 > self.watermark:
            self._refuse(event.key, event.ts, event.id, f"KeyError: {event.id}")
        elif not is_unfit(event):
            super().record(event)

    def fire(self, key: int, start: int, events: list[Event]) -> None:
        total = sum(event.id for event in events)
        if is_spoilt(total):
            error = f"ArithmeticError: {total} is refused"
            self._refuse(key, start + self.size - 1, [[len(events), total]], error)
        else:
            self.say(key, start, [len(events), total])

    def _refuse(self, key: int, ts: int, what: Any, error: str) -> None:
        self.say(key, ts, [what, "picky", error, True], SPOILT.tag_id)


PICKY = Part("picky", picky, partial(PickyModel, TUMBLING), sides={SPOILT: spoilt})
