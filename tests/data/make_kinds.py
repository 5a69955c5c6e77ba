"""Golden logs with the remaining record kinds: ``python -m tests.data.make_kinds``.

One program uses the second scheme of subtask codes, and has renamed and deleted states, a keyed state that was declared
late, and entries that replace distant entries. The other has states of all plain scalars, and maps of dataclasses with
all plain scalars.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, NamedTuple

from pyspark.sql.types import TimestampNTZType

from pillarbox import Types
from pillarbox._state.chunks.head import FORMAT, LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log.state_log import StateLog
from tests.data.make_checkpoint import HERE, save

__all__ = ["KEYS", "PATH", "Line", "Place", "Renamed", "Scalars", "scalars"]

PATH = HERE / f"kinds-format-{FORMAT}.zip"
KEYS = 1_000


class Renamed:
    """A worker's copy of a program's state, before or after the program changed."""

    def __init__(self, store: MemoryChunkStore, *, changed: bool) -> None:
        self.store = store
        self.backend = KeyedStateBackend("renamed")
        total: Any = ValueStateDescriptor("total").renamed_from("sum") if changed else ValueStateDescriptor("sum")
        self.total = self.backend.get_state(total)
        if changed:
            self.backend.delete_if_exists("gone")
        else:
            self.gone = self.backend.get_state(ValueStateDescriptor("gone"))
        self.backend.seal()
        note = KeyNote(inputs=[KeyNote(columns=["a"], types=["bigint"]), KeyNote(columns=["b"], types=["bigint"])])
        self.log = StateLog(LogIdentity("renamed", 1, 2, 16, key=note, codes=2), self.backend)
        self.log.sync(store)

    def late(self, key: int) -> Any:
        self.backend.set_current_key(key)
        return self.backend.get_state(ListStateDescriptor("late"), late=True)

    def commit(self) -> None:
        self.log.commit(self.store, {})


class Place(NamedTuple):
    x: float
    y: float = 0.0


@dataclass
class Line:
    ends: tuple[Place, Place]
    name: str | None = None
    parts: dict[str, list[Place]] | None = None


SCALARS: dict[str, Any] = {
    "binary": Types.PRIMITIVE_ARRAY(Types.BYTE()),
    "boolean": Types.BOOLEAN(),
    "byte": Types.BYTE(),
    "short": Types.SHORT(),
    "int": Types.INT(),
    "float": Types.FLOAT(),
    "decimal": Types.BIG_DEC(),
    "timestamp_ntz": TimestampNTZType(),
    "number": int,
    "interval": timedelta,
    "text": Types.STRING(),
    "tuple": Types.TUPLE([Types.STRING(), Types.LONG()]),
    "line": Line,
}
STATES: dict[str, Any] = {
    **{name: partial(ValueStateDescriptor, value_type_info=declared) for name, declared in SCALARS.items()},
    "lines": partial(MapStateDescriptor, key_type_info=Types.INT(), value_type_info=dict[str, Line]),
}


class Scalars:
    def __init__(self, store: MemoryChunkStore) -> None:
        self.store = store
        self.backend = KeyedStateBackend("scalars")
        self.states = {name: self.backend.get_state(make(name)) for name, make in STATES.items()}
        self.backend.seal()
        key = KeyNote(columns=["k"], types=["bigint"])
        self.log = StateLog(LogIdentity("scalars", 0, 1, 128, key=key), self.backend, own_state=False)
        self.log.sync(store)


def scalars(key: int) -> dict[str, Any]:
    line = Line((Place(0.5), Place(key, -1.0)), f"line {key}" if key % 2 else None, {"a": [Place(1.5)] * key, "b": []})
    values = {
        "binary": bytearray(b"b" * key) if key % 2 else b"a" * key,
        "boolean": key % 2 == 0,
        "byte": -key,
        "short": 300 * key,
        "int": 2**31 - 1 - key,
        "float": key / 4,
        "decimal": Decimal(key).scaleb(-2),
        "timestamp_ntz": datetime(2024, 1, 1 + key, 12, fold=key % 2),
        "number": 3 ** (10 * key),
        "interval": timedelta(days=-key, microseconds=1),
        "text": "\N{SNOWMAN}" * key,
        "tuple": (str(key), None),
        "line": line,
        "lines": {key: {"one": line, "none": None}, -1: {}},
    }
    return {name: value for index, (name, value) in enumerate(values.items()) if (index + key) % 5}


def make_renamed() -> MemoryChunkStore:
    task = Renamed(MemoryChunkStore(), changed=False)
    for key in range(KEYS):
        task.backend.set_current_key(key)
        task.total.update(key)
        task.gone.update(str(key))
    task.late(7).add("late")
    task.commit()
    task = Renamed(task.store, changed=True)
    task.commit()
    for key in (0, KEYS - 1):
        task.backend.set_current_key(key)
        task.total.update(-1)
    task.commit()
    return task.store


def make_scalars() -> MemoryChunkStore:
    task = Scalars(MemoryChunkStore())
    for key in range(10):
        task.backend.set_current_key(key)
        for name, value in scalars(key).items():
            (task.states[name].put_all if name == "lines" else task.states[name].update)(value)
        task.log.commit(task.store, {})
    return task.store


if __name__ == "__main__":
    from tests.data import make_kinds  # as what tests import, and not as __main__: classes are named

    logs = {("renamed", 1): make_kinds.make_renamed(), ("scalars", 0): make_kinds.make_scalars()}
    save(logs, PATH)
    print(f"{PATH}: {PATH.stat().st_size} bytes", file=sys.stderr)
