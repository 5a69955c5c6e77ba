"""Dead letters for ``make chaos``: functions that reject records after changing state.

The output is right only if all changes for a rejected record are undone. The keyed function, a subclass of ``Ledger``
in ``job.py``, also rejects timers. (Windows that reject records are in ``windows.py``.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from pillarbox import DataStream, DeadLetter, KeyedProcessFunction, OutputTag, ProcessFunction
from tests.faults.oracles.ledger_oracle import Accounts
from tests.faults.parts.part import Model, OutputRow, Part
from tests.faults.parts.windows import id_of
from tests.faults.programs.job import MINUTE, NO_FAULTS, Event, Faults, Ledger

__all__ = ["HALVES", "STRICT", "letter_row"]

SEEN = OutputTag[OutputRow]("seen")
REFUSED, ODD_ONES = OutputTag[DeadLetter]("refused"), OutputTag[DeadLetter]("odd ones")


def letter_row(letter: DeadLetter) -> OutputRow:
    assert letter.timestamp is not None
    timer = None if letter.timer is None else letter.timer.value
    number = None if letter.value is None else letter.value.id
    key = letter.value.key if letter.key is None else letter.key
    where = "faults/parts/" in letter.traceback
    return OutputRow(key, letter.timestamp, [number, letter.key, timer, letter.operator, letter.error, where])


# -- under keys --


def is_refused(event: Any) -> bool:
    return bool(event.id % 5 == 3)


def is_refused_timer(timestamp: int) -> bool:
    return timestamp // MINUTE % 3 == 2  # not the minute of the key report


class Strict(Ledger):
    """A ``Ledger`` that rejects some records and timers after emitting results and side outputs."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(NO_FAULTS)  # an error that is raised here fails nothing
        self.kills = faults

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        ctx.output(SEEN, id_of(value))
        out = super().process_element(value, ctx)
        if is_refused(value):
            self.kills.pass_by("letter", value.id)
            raise ValueError(f"{value.id} is refused")
        return out

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        out = super().on_timer(timestamp, ctx)
        self.kills.pass_by("letter timer", (ctx.get_current_key(), timestamp))
        if is_refused_timer(timestamp):
            raise ValueError(f"the timer at {timestamp} is refused")
        return out

    def row(self, key: int, timestamp: int, state: dict[str, Any]) -> Any:
        return OutputRow(key, timestamp, state)


class StrictModel(Accounts):
    """A model of ``Ledger`` without the rejected records and timers.

    Fault points are rejected records, named by their ids, and timers.
    """

    def record(self, event: Event) -> None:
        if is_refused(event):
            self.points["letter"].append(event.id)
            letter = [event.id, event.key, None, "strict", f"ValueError: {event.id} is refused", True]
            self.say(event.key, event.ts, letter, REFUSED.tag_id)
        else:
            self.say(*id_of(event), side=SEEN.tag_id)
            super().record(event)

    def timer(self, key: int, timestamp: int) -> None:
        if is_refused_timer(timestamp):
            error = f"ValueError: the timer at {timestamp} is refused"
            self.say(key, timestamp, [None, key, "event time", "strict", error, True], REFUSED.tag_id)
        else:
            super().timer(key, timestamp)


def strict(events: DataStream, faults: Faults) -> DataStream:
    return events.key_by("key").process(Strict(faults), on_error=REFUSED)


STRICT = Part("strict", strict, partial(StrictModel, "letter timer"), sides={SEEN: None, REFUSED: letter_row})


# -- without a key --


def is_odd_one(event: Any) -> bool:
    return bool(event.id % 7 == 2)


class Halves(ProcessFunction):
    """Emits each event in two parts, and may fail between them."""

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Any]:
        for part in (1, 2):
            yield OutputRow(value.key, value.ts, [value.id, part])
            if is_odd_one(value):
                raise LookupError(f"{value.id} has one part")


class HalvesModel(Model):
    def record(self, event: Event) -> None:
        if is_odd_one(event):
            letter = [event.id, None, None, "halves", f"LookupError: {event.id} has one part", True]
            self.say(event.key, event.ts, letter, ODD_ONES.tag_id)
        else:
            for part in (1, 2):
                self.say(event.key, event.ts, [event.id, part])


HALVES = Part(
    "halves",
    lambda events, faults: events.process(Halves(), on_error=ODD_ONES),
    HalvesModel,
    sides={ODD_ONES: letter_row},
    has_state=False,
)
