"""Stores unfinished elements (records and timers) in a snapshot.

At the barrier (the end of the epoch), running elements' state changes are undone, the state log is written, and the
changes are redone. The snapshot thus contains each key's state after its last finished element. Mailbox thread only.
"""

from __future__ import annotations

from typing import Any

from pillarbox._elements.elements import Watermark, WatermarkStatus
from pillarbox._operators.async_io.api.request import Event, RequestState
from pillarbox._operators.async_keyed.element import AsyncElement, DueTimersElement
from pillarbox._operators.async_keyed.runner import ElementRunner
from pillarbox._operators.calls.records import ElementCallRecords
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.undo import Step, Undo, put_back_timer, take_away_timer
from pillarbox._state.slots import NEW, Row
from pillarbox._time.timestamp_assigner import MIN_TIMESTAMP


class CarriedElements:
    """Undoes and redoes running elements' state changes."""

    def __init__(self, backend: KeyedStateBackend, undo: Undo) -> None:
        self._backend = backend
        self._undo = undo
        # Keys, rows with changes, and the steps that repeat the changes.
        self._rewound: list[tuple[Any, list[Row], list[Step]]] = []

    def rewind(self, element: AsyncElement) -> None:
        if element.notes is None:
            return  # the element has not begun
        rows = element.notes.rows()
        again = self._undo.rewind(element.notes)
        if isinstance(element, DueTimersElement) and element.fired is not None:
            put_back_timer(*element.fired)
            again.insert(0, (take_away_timer, element.fired))
            rows.append(element.fired[1])
        if again:
            element.was_carried = True
            self._rewound.append((element.key, rows, again))

    def repeat(self) -> None:
        rewound, self._rewound = self._rewound, []
        backend = self._backend
        for key, rows, again in rewound:
            for row in rows:
                if backend.rows.get(key) is not row:
                    # The row was dropped, because it was empty without the changes.
                    backend.rows[key] = row
                    row[0] = NEW
                    backend.dirty.append(row)
            self._undo.repeat(again)


def entry_of(element: AsyncElement | Event) -> tuple[Any, ...]:
    if isinstance(element, Watermark):
        return "watermark", element.timestamp
    if isinstance(element, WatermarkStatus):
        return "idle", element.idle
    if element.state is RequestState.SETTLED:
        return "outputs", element.outputs or []
    run = element.arrival, None if element.calls is None else element.calls.snapshot()
    if isinstance(element, DueTimersElement):
        return "visit", element.key, element.limit, element.watermark, element.domain, element.outputs or [], *run
    value = element.value if element.notes is None else element.original
    return "element", element.number, element.key, value, element.emitted, element.watermark, *run


def restored_from(entry: tuple[Any, ...], runner: ElementRunner) -> AsyncElement | Event:
    what, *content = entry
    if what == "watermark":
        return Watermark(content[0])
    if what == "idle":
        return WatermarkStatus(content[0])
    if what == "outputs":
        element = AsyncElement(runner, 0, None, None, None, MIN_TIMESTAMP)
        element.state = RequestState.SETTLED
        (element.outputs,) = content
        return element
    *arguments, arrival, calls = content
    if what == "element":
        element = AsyncElement(runner, *arguments)
    else:
        key, limit, watermark, domain, outputs = arguments
        element = DueTimersElement(runner, key, watermark, limit, domain)
        element.outputs = outputs
    element.arrival = arrival
    element.calls = None if calls is None else ElementCallRecords(*calls)
    return element
