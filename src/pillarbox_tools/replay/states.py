"""Comparing two states of a subtask, entry by entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pillarbox._errors import shorten
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.slots import state_name
from pillarbox._state.types.opaque import pickled


@dataclass(frozen=True)
class Difference:
    """An entry that two states have with different values; None: one of them does not have it.

    Attributes:
        owner: the key, and the namespace where there is one, as text.
        state: the name of the state, or ``timers``.
        then: the value in the checkpoint, and ``now``: in the replay.
    """

    owner: str
    state: str
    then: str | None
    now: str | None


def compare_logs(then: MemoryChunkStore, now: MemoryChunkStore, subtask: int) -> list[Difference]:
    """Return the differences between two logs of the same subtask, in the order of their owners."""
    one, other = _entries(then, subtask), _entries(now, subtask)
    found = [
        Difference(*place, _shown(one.get(place)), _shown(other.get(place)))
        for place in one.keys() | other.keys()
        if not _is_same(one.get(place), other.get(place))
    ]
    return sorted(found, key=lambda each: (each.owner, each.state))


def _entries(store: MemoryChunkStore, subtask: int) -> dict[tuple[str, str], Any]:
    if not store.chunks:
        return {}
    found: dict[tuple[str, str], Any] = {}
    for rows in LogView(store, subtask).rows():
        for place, key in enumerate(rows.keys):
            owner = repr(key) if rows.namespaces is None else f"{key!r} {rows.namespaces[place]!r}"
            for (name, kind), value in zip(rows.layout, rows.rows[place][1:]):
                if value is not None:
                    label = f"timers {name}" if kind == "timers" else state_name(name)
                    found[owner, label] = value
    return found


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same, also if they are of a class that is not at hand."""
    try:
        if type(one) is type(other) and bool(one == other):
            return True
    except Exception:
        pass  # such as an array, which compares element by element
    return pickled(one) == pickled(other)


def _shown(value: Any) -> str | None:
    return None if value is None else shorten(value, 120)
