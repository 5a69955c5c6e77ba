"""Compares two states of a subtask, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from pillarbox._errors import shorten
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.inspect.view import LogView
from pillarbox._state.slots import state_name
from pillarbox._state.types.opaque import Opaque
from pillarbox_tools.replay.values import MISSING, ValueDifference, digest, first_difference, shown, tree_of

T = TypeVar("T")


@dataclass(frozen=True)
class StateDifference:
    """An entry (a key's state) that differs between two states of a subtask.

    Attributes:
        owner: the key as text, with the namespace.
        state: name of the state, or ``timers``.
        then: its value in the checkpoint as text, or None if missing.
        now: its value in the replay as text, or None if missing.
        part: the first differing part: its path and both values.
    """

    owner: str
    state: str
    then: str | None
    now: str | None
    part: str = ""


class _Entry(NamedTuple):
    owner: str
    state: str
    value: Any


def compare_logs(then: MemoryChunkStore, now: MemoryChunkStore, subtask: int) -> list[StateDifference]:
    differing = different_entries(_entries(then, subtask), _entries(now, subtask), lambda entry: tree_of(entry.value))
    differences = [_difference(*pair) for pair in differing]
    return sorted(differences, key=lambda difference: (difference.owner, difference.state))


def different_entries(
    then: Mapping[bytes, T], now: Mapping[bytes, T], tree: Callable[[T], Any]
) -> Iterator[tuple[T | None, T | None, ValueDifference]]:
    """Yield the entries whose values differ. ``tree`` converts values to nested containers, which are compared."""
    for name in then.keys() | now.keys():
        pair = then.get(name), now.get(name)
        left, right = (MISSING if entry is None else tree(entry) for entry in pair)
        difference = first_difference(left, right)
        if difference is not None:
            yield *pair, difference


def _entries(store: MemoryChunkStore, subtask: int) -> dict[bytes, _Entry]:
    if not store.chunks:
        return {}
    entries: dict[bytes, _Entry] = {}
    for rows in LogView(store, subtask).rows():
        for index, key in enumerate(rows.keys):
            namespace = None if rows.namespaces is None else rows.namespaces[index]
            owner = _text(key) if namespace is None else f"{_text(key)} {_text(namespace)}"
            for (name, kind), value in zip(rows.layout, rows.rows[index][1:]):
                if value is not None:
                    label = f"timers {name}" if kind == "timers" else state_name(name)
                    entries[digest(tree_of((key, namespace, name, kind == "timers")))] = _Entry(owner, label, value)
    return entries


def _difference(recorded: _Entry | None, replayed: _Entry | None, difference: ValueDifference) -> StateDifference:
    entry = recorded or replayed
    assert entry is not None, "one of the logs has it"
    path, before, after = difference
    part = f"{path} was {shown(before)}, and is now {shown(after)}" if path else ""
    return StateDifference(entry.owner, entry.state, _shown(recorded), _shown(replayed), part)


def _shown(entry: _Entry | None) -> str | None:
    return None if entry is None else _text(entry.value, 120)


def _text(value: Any, limit: int = 200) -> str:
    return shown(tree_of(value), limit) if isinstance(value, Opaque) else shorten(value, limit)
