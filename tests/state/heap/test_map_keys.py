"""Map states' keys, compared with a dict's. NaN is one key, even after a restart."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pillarbox import MapStateDescriptor, StateTtlConfig, Types
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.log import large_collections
from pillarbox._state.log.state_log import StateLog
from pillarbox.testing import row

# Each call creates another object. Objects with the same name are the same key.
KEYS: dict[str, Any] = {
    "nan": lambda: float("nan"),
    "nan of NumPy": lambda: np.float32("nan"),
    "nan of Decimal": lambda: Decimal("nan"),
    "tuple": lambda: (float("nan"), (float("nan"), 1)),
    "row": lambda: row(a=float("nan"), b="x"),
    "other tuple": lambda: ("nan", 1),
    "1.5": lambda: 1.5,
    "-1": lambda: -1,
    "text": lambda: "nan",
    "None": lambda: None,
}
SAME = {"nan of NumPy": "nan"}
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["put", "put_all", "remove", "read"]), st.sampled_from(list(KEYS)), st.integers(0, 99)),
    st.just(("epoch", "", 0)),
    st.just(("restart", "", 0)),
)
NAN = "nan"


class Map:
    def __init__(self, *, timed: bool, guarded: bool, declared: bool) -> None:
        self.store = MemoryChunkStore()
        self.make = timed, guarded, declared
        self.start()

    def start(self) -> None:
        timed, guarded, declared = self.make
        backend = KeyedStateBackend("op")
        self.undo = backend.allow_undo() if guarded else None
        descriptor: Any = MapStateDescriptor("m", *((Types.DOUBLE(), Types.LONG()) if declared else ()))
        if timed:
            descriptor.enable_time_to_live(StateTtlConfig(10, update_type=StateTtlConfig.UpdateType.OnReadAndWrite))
        self.state = backend.get_state(descriptor)
        backend.seal()
        self.log = StateLog(LogIdentity("op", 0, 1, 128), backend)
        self.log.sync(self.store)
        backend.set_current_key("k")

    def commit(self) -> None:
        self.log.commit(self.store, {})
        self.log.contents.backend.set_current_key("k")


@pytest.mark.parametrize(("timed", "guarded"), [(False, False), (True, False), (False, True), (True, True)])
@given(st.lists(OPERATIONS, max_size=30), st.booleans(), st.booleans())
@example([("put", NAN, 1), ("put", NAN, 2)], False, False)
@example([("put", NAN, 1), ("epoch", "", 0), ("restart", "", 0), ("put", NAN, 2)], False, False)
@example([("put", NAN, 1), ("put", "1.5", 1), ("epoch", "", 0), ("restart", "", 0), ("remove", NAN, 2)], True, False)
@example([("put", "tuple", 1), ("restart", "", 0), ("put", "tuple", 2)], False, False)
def test_a_map_is_equal_to_a_dict_with_one_nan(timed, guarded, operations, large, declared):
    with pytest.MonkeyPatch.context() as patch:
        if large:
            patch.setattr(large_collections, "_LARGE", 10)
        task = Map(timed=timed, guarded=guarded, declared=declared)
        model: dict[str, int] = {}
        committed = dict(model)
        for what, drawn, value in operations:
            state = task.state
            if declared and drawn not in ("", NAN, "nan of NumPy", "1.5"):
                continue
            name: Any = SAME.get(drawn, drawn)
            make: Any = KEYS.get(drawn)
            if task.undo is not None:
                task.undo.begin()
                state.put(float("nan"), -1)
                state.put_all({(float("nan"),): -1, **({} if make is None else {make(): -1})})
                if make is not None:
                    state.remove(make())
                task.undo.restore()
                task.undo.end()
            if what == "put":
                state.put(make(), value)
                model[name] = value
            elif what == "put_all":
                state.put_all({make(): value})
                model[name] = value
            elif what == "remove":
                state.remove(make())
                model.pop(name, None)
            elif what == "read":
                assert (state.get(make()), state.contains(make())) == (model.get(name), name in model)
                if name in model:
                    assert state[make()] == model[name]
            elif what == "epoch":
                task.commit()
                committed = dict(model)
            else:
                task.start()
                model = dict(committed)
            assert list(task.state.values()) == list(model.values())
            assert list(map(str, task.state.keys())) == [str(KEYS[name]()) for name in model]


def test_a_map_with_several_nan_of_an_earlier_version_is_read():
    for large in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if large:
                patch.setattr(large_collections, "_LARGE", 10)
            task = Map(timed=False, guarded=False, declared=False)
            task.state.put(1, 1)
            backend = task.log.contents.backend
            backend.row[-1].update({float("nan"): 2, float("nan"): 3})
            task.commit()
            task.start()
            task.state.put(float("nan"), 4)
            task.state.put(float("nan"), 5)
            assert list(task.state.values()) == [1, 2, 3, 5]
