from __future__ import annotations

import pickle
import sys
import zlib
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import CheckpointMismatchError, ProgramError, Row, StateTtlConfig, TypeMismatchError, Types
from pillarbox._state.chunks.head import META, LogIdentity, open_head, write_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.heap.key_rows import KeyOwner
from pillarbox._state.inspect.changes import compare_states
from pillarbox._state.inspect.summary import LogSummary
from pillarbox._state.inspect.view import LogView
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log import large_collections, limits
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.savepoint.files import LocalSavepoint, write_savepoint
from pillarbox._state.types.type_names import parse
from tests.data import make_evolution as golden
from tests.data.make_checkpoint import load
from tests.support.savepoints import restore_logs

PLAIN = KeyNote(columns=["k"], types=["string"])
_PRELUDE = "from dataclasses import dataclass, field\nfrom typing import NamedTuple\nfrom enum import Enum\n"


@pytest.fixture
def shop(monkeypatch):
    def define(source: str, name: str = "shop") -> Any:
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(_PRELUDE + source, vars(module))
        return module

    return define


class Task:
    """A worker's copy of an operator's state. The key type is declared."""

    def __init__(
        self, store=None, *, key: Any = PLAIN, moved=None, delete=(), owner=(0, 1), timers=False, name="op", **states
    ):
        self.store = MemoryChunkStore() if store is None else store
        subtask, parallelism = owner
        self.backend = KeyedStateBackend(name, KeyOwner(subtask, parallelism, 128))
        self.states = {state: self.backend.get_state(make) for state, make in states.items()}
        for state in delete:
            self.backend.delete_if_exists(state)
        self.timers: Any = self.backend.create_timers("user-timers/event") if timers else None
        self.backend.seal()
        identity = LogIdentity(name, subtask, parallelism, 128, key=key)
        self.log: Any = StateLog(identity, self.backend, own_state=False, moved=moved)
        self.log.sync(self.store)

    def __getitem__(self, key):
        self.backend.set_current_key(key)
        return self.states

    def commit(self, task_state=None):
        self.log.commit(self.store, task_state or {})
        return self.store

    @property
    def is_written_anew(self):
        return len(self.backend.dirty) == len(self.backend.rows) > 0


def generic(of: Any, *types: Any) -> Any:
    return of[types] if len(types) > 1 else of[types[0]]


def values(name, declared=None):
    return ValueStateDescriptor(name, declared)


def all_bytes(store):
    head = open_head(store.chunks[META], LogIdentity("op", 0, 1, 128))
    return b"".join({**store.chunks, META: write_head(replace(head, former={}))}.values())


# -- fields of classes --

KINDS = {
    "dataclass": "@dataclass\nclass Order:\n",
    "frozen": "@dataclass(frozen=True)\nclass Order:\n",
    "slots": "@dataclass(slots=True)\nclass Order:\n",
    "frozen slots": "@dataclass(frozen=True, slots=True)\nclass Order:\n",
    "named tuple": "class Order(NamedTuple):\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_fields_of_declared_types_come_go_and_move(shop, kind):
    old = shop(KINDS[kind] + "    n: int\n    gone: str\n    last: float\n").Order
    task = Task(v=values("v", old), l=ListStateDescriptor("l", old), m=MapStateDescriptor("m", str, generic(list, old)))
    assert task.log.reason_for_pickles is None
    task["a"]["v"].update(old(1, "x", 1.5))
    task["b"]["l"].add_all([old(2, "y", 2.5), old(3, "z", 3.5)])
    task["b"]["m"].put("k", [old(4, "", 4.5)])
    store = task.commit()

    new = shop(
        KINDS[kind] + "    last: float\n    n: int\n    more: str = 'none'\n    notes: tuple[str, ...] = ()\n"
    ).Order
    states = {
        "v": values("v", new),
        "l": ListStateDescriptor("l", new),
        "m": MapStateDescriptor("m", str, generic(list, new)),
    }
    task = Task(store, **states)
    for _ in range(2):
        assert task["a"]["v"].value() == new(1.5, 1)
        assert list(task["b"]["l"]) == [new(2.5, 2), new(3.5, 3)]
        assert task["b"]["m"].get("k") == [new(4.5, 4)]
        assert {type(element) for element in task["b"]["l"]} == {new}
        assert (task["a"]["v"].value().more, task["a"]["v"].value().notes) == ("none", ())
        written_anew = task.is_written_anew
        task = Task(task.commit(), **states)
    assert not written_anew and not task.is_written_anew  # the first epoch did
    assert b"gone" not in all_bytes(task.store)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("large", [False, True])
def test_fields_that_are_new_get_their_defaults_where_nothing_is_declared(shop, kind, large, monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 10 if large else 32 * 1024)
    old = shop(KINDS[kind] + "    n: int\n").Order
    states = {"v": values("v"), "l": ListStateDescriptor("l"), "m": MapStateDescriptor("m")}
    task = Task(**states)
    task["a"]["v"].update({"deep": [(old(1), "text"), {2: old(2)}]})
    task["a"]["l"].add_all([old(n) for n in range(40)])
    task["b"]["m"].put_all({n: [old(n)] for n in range(40)})
    store = task.commit({"operators": {"async": [("request", [old(9)], None, 1, None)]}})
    assert (b"elements" in all_bytes(store)) == large

    more = "    tags: list = field(default_factory=list)\n" if kind == "dataclass" else "    tags: tuple = ()\n"
    new = shop(KINDS[kind] + "    n: int\n    more: str = 'none'\n" + more).Order
    task = Task(store, **states)
    own = task.log.task_state["operators"]["async"][0][1]
    assert own == [new(9)] and own[0].more == "none"
    for _ in range(2):
        (first, _), second = task["a"]["v"].value()["deep"]
        assert ((first, second[2]) == (new(1), new(2)) and first.tags is not second[2].tags) or kind != "dataclass"
        assert list(task["a"]["l"]) == [new(n) for n in range(40)]
        assert dict(task["b"]["m"].items()) == {n: [new(n)] for n in range(40)}
        assert kind == "named tuple" or hasattr(first, "tags")
        task = Task(task.commit(), **states)
    assert not task.is_written_anew


def test_objects_that_pickle_in_their_own_way_and_shared_ones_are_left_alone(shop):
    source = "@dataclass\nclass Own:\n    n: int\n    def __setstate__(self, state):\n        self.n = state['n'] + 1\n"
    source += "@dataclass\nclass Later:\n    n: int\n    size: int = field(init=False)\n"
    source += "class Plain:\n    pass\n"
    old = shop(source)
    plain = old.Plain()
    plain.me, plain.later = plain, old.Later(1)
    task = Task(v=values("v"))
    task["a"]["v"].update([old.Own(1), plain, plain])
    store = task.commit()
    new = shop(source.replace("size: int", "more: int = 5\n    size: int"))
    own, first, second = Task(store, v=values("v"))["a"]["v"].value()
    assert own.n == 2 and first is second is first.me
    assert vars(first.later) == {"n": 1, "more": 5} and type(first.later) is new.Later


REFUSED = [
    ("dataclass", "n: int", "n: int\n    more: str", "the field 'more' of shop.Order is new, and has no default"),
    ("named tuple", "n: int", "more: str\n    n: int", "the field 'more' of shop.Order is new, and has no default"),
    ("slots", "n: int", "n: str", "the field 'n' of shop.Order: it was int, and is STRING"),
    ("frozen", "n: list[int]", "n: list[str]", "the field 'n' of shop.Order: it was int, and is STRING"),
]


@pytest.mark.parametrize(("kind", "then", "now", "says"), REFUSED)
def test_what_declared_fields_cannot_become_is_refused_before_anything_is_read(shop, kind, then, now, says):
    old = shop(KINDS[kind] + f"    {then}\n").Order
    task = Task(v=values("v", generic(dict, str, old)))
    task["a"]["v"].update({"k": old([1] if "list" in then else 1)})
    store = task.commit()
    del store.chunks[1]  # a read would fail
    new = shop(KINDS[kind] + f"    {now}\n").Order
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(store, v=values("v", generic(dict, str, new)))
    assert f"operator 'op', subtask 0: the value state 'v' cannot resume from what the checkpoint holds: {says}" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("kind", "now", "says"),
    [
        (
            "dataclass",
            "n: int\n    gone: int\n    more: str",
            "has the field 'more', which the value was written without",
        ),
        ("slots", "n: int\n    gone: int\n    more: str", "has the field 'more', which the value was written without"),
        ("frozen slots", "n: int", "has 1 fields, and the value was written with 2, of which nothing says the names"),
        ("named tuple", "n: int", "Order.__new__() takes 2 positional arguments but 3 were given"),
        (
            "named tuple",
            "n: int\n    gone: int\n    more: str",
            "Order.__new__() missing 1 required positional argument",
        ),
        ("slots", "n: int", "'Order' object has no attribute 'gone'"),
    ],
)
def test_what_pickled_values_cannot_become_says_which_state_and_class(shop, kind, now, says):
    old = shop(KINDS[kind] + "    n: int\n    gone: int\n").Order
    task = Task(n=values("n"), v=values("v"))
    task["a"]["n"].update(1)
    task["a"]["v"].update([old(1, 2)])
    store = task.commit()
    shop(KINDS[kind] + f"    {now}\n")
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(store, n=values("n"), v=values("v"))
    assert says in str(caught.value)
    assert "operator 'op'" in str(caught.value) and "the value state 'v'" in str(caught.value)


@pytest.mark.parametrize("fields", ["    s: str\n    n: int\n", "    n: int\n    s: str\n"], ids=["moved", "same"])
def test_a_class_may_be_a_named_tuple_and_then_a_dataclass(shop, fields):
    old = shop(KINDS["named tuple"] + "    n: int\n    s: str\n").Order
    task = Task(v=values("v", old))
    task["a"]["v"].update(old(1, "x"))
    store = task.commit()
    task = Task(store, v=values("v", old))
    task["b"]["v"].update(old(2, "y"))
    store = task.commit()  # in its own chunk
    new = shop(KINDS["dataclass"] + fields).Order
    task = Task(store, v=values("v", new))
    assert task["a"]["v"].value() == new(s="x", n=1) and task["b"]["v"].value() == new(s="y", n=2)
    store = task.commit()
    shop(KINDS["named tuple"] + "    n: int\n    s: str\n")
    with pytest.raises(CheckpointMismatchError, match="was a dataclass, and is a named tuple: let it be a dataclass"):
        Task(store, v=values("v", sys.modules["shop"].Order))


def test_a_log_without_fields_in_its_head_goes_on(shop):
    old = shop(KINDS["named tuple"] + "    n: int\n").Order
    task = Task(v=values("v", old))
    task["a"]["v"].update(old(1))
    store = task.commit()
    head = pickle.loads(store.chunks[META][15:])
    head["types"] = {"state/v": "shop.Order"}
    body = pickle.dumps(head, 5)
    store.chunks[META] = store.chunks[META][:11] + zlib.crc32(body).to_bytes(4, "little") + body
    same = Task(store.copy(), v=values("v", old))
    assert same["a"]["v"].value() == old(1) and not same.is_written_anew
    new = shop(KINDS["named tuple"] + "    n: int\n    more: str = 'none'\n").Order
    task = Task(store, v=values("v", new))
    assert task["a"]["v"].value() == new(1, "none") and task.is_written_anew
    shop(KINDS["named tuple"] + "    pass\n")
    with pytest.raises(CheckpointMismatchError, match=r"shop.Order has 0 fields, and the value was written with 1, of"):
        Task(store, v=values("v", sys.modules["shop"].Order))


# -- other types --


def row(**types):
    return Types.ROW_NAMED(list(types), list(types.values()))


LONG, STRING = Types.LONG(), Types.STRING()


@pytest.mark.parametrize("large", [False, True])
def test_rows_get_and_lose_columns(large, monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 10 if large else 32 * 1024)
    then, now = row(a=LONG, b=STRING), row(c=STRING, b=STRING, a=LONG)
    task = Task(
        v=values("v", then), l=ListStateDescriptor("l", then), m=MapStateDescriptor("m", STRING, Types.LIST(then))
    )
    task["x"]["v"].update(Row.of(b="b", a=1))
    task["y"]["v"].update((1, "b"))
    task["x"]["l"].add_all([(n, str(n)) for n in range(30)])
    task["x"]["m"].put_all({str(n): [Row.of(a=n, b=None), None] for n in range(30)})
    store = task.commit()
    states = {
        "v": values("v", now),
        "l": ListStateDescriptor("l", now),
        "m": MapStateDescriptor("m", STRING, Types.LIST(now)),
    }
    task = Task(store, **states)
    assert task.is_written_anew
    for _ in range(2):
        assert task["x"]["v"].value() == Row.of(c=None, b="b", a=1)
        assert task["y"]["v"].value() == (None, "b", 1)
        assert list(task["x"]["l"]) == [(None, str(n), n) for n in range(30)]
        assert dict(task["x"]["m"].items()) == {str(n): [Row.of(c=None, b=None, a=n), None] for n in range(30)}
        task = Task(task.commit(), **states)
    assert not task.is_written_anew
    task = Task(task.commit(), v=values("v", row(a=LONG)), l=ListStateDescriptor("l", row(a=LONG)), m=states["m"])
    assert (task["x"]["v"].value(), list(task["x"]["l"])[7]) == (Row.of(a=1), (7,))


@pytest.mark.parametrize(
    ("then", "now", "value", "says"),
    [
        (LONG, STRING, 1, "it was LONG, and is STRING"),
        (STRING, LONG, "1", "it was STRING, and is LONG"),
        (Types.SQL_DATE(), Types.SQL_TIMESTAMP(), None, "it was DATE, and is TIMESTAMP"),
        (Types.LIST(LONG), Types.MAP(LONG, LONG), [1], "it was LIST(LONG), and is MAP(LONG, LONG)"),
        (Types.MAP(STRING, LONG), Types.MAP(LONG, LONG), {"a": 1}, "it was STRING, and is LONG"),
        (tuple[int, int], tuple[int, int, int], (1, 2), "it was TUPLE(int, int), and is TUPLE(int, int, int): a"),
        (row(a=LONG), row(a=STRING), (1,), "'a' of ROW: it was LONG, and is STRING"),
        (bool, str, True, "it was BOOLEAN, and is STRING"),
    ],
)
def test_another_type_is_refused_and_both_are_named(then, now, value, says):
    task = Task(v=values("v", then), n=values("n", LONG))
    task["a"]["v"].update(value)
    task["a"]["n"].update(1)
    store = task.commit()
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(store, v=values("v", now), n=values("n", LONG))
    assert f"the value state 'v' cannot resume from what the checkpoint holds: {says}" in str(caught.value)
    assert "delete_if_exists()" in str(caught.value)


@pytest.mark.parametrize(
    ("then", "now", "value"),
    [
        (Types.INT(), LONG, 5),
        (LONG, int, 2**62),
        (LONG, Types.DOUBLE(), 5),
        (Types.FLOAT(), Types.DOUBLE(), 1.5),
        (LONG, Types.INT(), 5),
        (LONG, Types.PICKLED_BYTE_ARRAY(), 5),
        (Types.PICKLED_BYTE_ARRAY(), LONG, 5),
        (bool, int, True),
    ],
)
def test_wider_types_go_on_and_narrower_ones_if_all_values_fit(then, now, value):
    task = Task(v=values("v", then))
    task["a"]["v"].update(value)
    task = Task(task.commit(), v=values("v", now))
    assert task["a"]["v"].value() == value and not task.is_written_anew


def test_a_narrower_type_names_the_value_that_does_not_fit():
    task = Task(v=values("v", LONG))
    task["a"]["v"].update(2**40)
    with pytest.raises(
        TypeMismatchError, match="the value state 'v' of key 'a' does not fit its declared type: 1099511"
    ):
        Task(task.commit(), v=values("v", Types.INT()))


def test_names_of_types_are_read_as_they_are_written():
    for text in (
        "LONG",
        "LIST(MAP(STRING, TUPLE(LONG, LIST(int))))",
        "ROW(a: LONG, b: ROW(c: STRING))",
    ):
        assert str(parse(text)) == text
    result = parse("MAP(STRING, m.C(a: LONG, b: LIST(m.D())?))")
    record: Any = dict(result.fields or ())["value"]
    assert (record.kind, record.names, record.optional) == ("m.C", ("a", "b"), {"b"})
    assert [name.kind for name in result.every() if name.is_class] == ["m.C", "m.D"]
    assert parse("ROW(a, b: LONG)").fields is None  # a column with a comma in its name: not known


# -- other names --


def timed(descriptor):
    descriptor.enable_time_to_live(StateTtlConfig("1 day"))
    return descriptor


KINDS_OF_STATES: dict[str, Any] = {
    "value": (partial(ValueStateDescriptor, value_type_info=LONG), lambda state: state.update(5), lambda s: s.value()),
    "list": (partial(ListStateDescriptor, elem_type_info=LONG), lambda s: s.add_all(range(50)), lambda s: [*s.get()]),
    "map": (
        partial(MapStateDescriptor, key_type_info=LONG, value_type_info=STRING),
        lambda state: state.put_all({n: str(n) for n in range(50)}),
        lambda state: dict(state.items()),
    ),
    "reducing": (
        partial(ReducingStateDescriptor, reduce_function=max, type_info=LONG),
        lambda state: state.add(3),
        lambda state: state.get(),
    ),
}


@pytest.mark.parametrize("kind", KINDS_OF_STATES)
@pytest.mark.parametrize("ttl", [False, True])
def test_a_state_gets_another_name_and_keeps_all_that_is_in_it(kind, ttl, monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 100)
    make, put, look = KINDS_OF_STATES[kind]
    of = timed if ttl else lambda descriptor: descriptor
    task = Task(sum=of(make("sum")), other=values("other", LONG), timers=True)
    for key in "ab":
        put(task[key]["sum"])
        task[key]["other"].update(7)
        task.timers.register(100 if key == "a" else 200)
    expected = look(task["a"]["sum"])
    store = task.commit()
    copy = store.copy()
    former = {"other": values("other", LONG), "total": of(make("total").renamed_from("sum"))}
    task = Task(store, timers=True, **former)
    assert task.is_written_anew
    assert all(look(task[key]["total"]) == expected and task[key]["other"].value() == 7 for key in "ab")
    store = task.commit()
    # The alias is no longer needed, and harmless.
    for states in ({"other": former["other"], "total": of(make("total"))}, former):
        task = Task(store.copy(), timers=True, **states)
        assert not task.is_written_anew
        assert all(look(task[key]["total"]) == expected and task[key]["other"].value() == 7 for key in "ab")
        stamps = task.backend.timestamps("b")
        assert stamps == {"user-timers/event": [200]}
    assert b"/sum" not in all_bytes(store)
    # The older program does not know the new name, and suggests a remedy.
    with pytest.raises(
        CheckpointMismatchError, match=rf"holds {kind} 'total' of operator 'op', which .*renamed_from\('t"
    ):
        Task(store.copy(), timers=True, sum=of(make("sum")), other=former["other"])
    task = Task(store, timers=True, sum=of(make("sum").renamed_from("total")), other=former["other"])
    assert look(task["b"]["sum"]) == expected
    # The previous copy, whose epoch was not committed, is unaffected.
    assert look(Task(copy, timers=True, sum=of(make("sum")), other=former["other"])["a"]["sum"]) == expected


@pytest.mark.parametrize("kind", KINDS_OF_STATES)
def test_a_state_that_is_deleted_goes_with_all_that_it_had(kind, monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 100)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 300)
    make, put, _ = KINDS_OF_STATES[kind]
    task = Task(old=timed(make("old")), n=values("n", LONG))
    put(task["only"]["old"])
    put(task["both"]["old"])
    task["both"]["n"].update(1)
    if kind == "map":
        task["only"]["old"].put(99, "x" * 1000)  # large: stored as a separate value
    store = task.commit()
    assert (min(store.chunks) < 0) == (kind == "map")
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(store, n=values("n", LONG))
    assert "call runtime_context.delete_if_exists('old') in open()" in str(caught.value)
    task = Task(store, n=values("n", LONG), delete=["old", "never there"])
    assert task["both"]["n"].value() == 1 and task.is_written_anew
    store = task.commit()
    assert b"old" not in all_bytes(store) and min(store.chunks) == META and len(store.chunks) == 2
    task = Task(store, n=values("n", LONG))
    assert list(task.backend.get_keys()) == ["both"] and not task.is_written_anew


def test_a_deleted_state_may_be_of_a_class_that_is_gone(shop):
    old = shop(KINDS["dataclass"] + "    n: int\n").Order
    task = Task(old=values("old", old), n=values("n", LONG))
    task["a"]["old"].update(old(1))
    task["a"]["n"].update(1)
    store = task.commit()
    shop("")
    task = Task(store, n=values("n", LONG), delete=["old"])
    assert task["a"]["n"].value() == 1
    assert b"Order" not in all_bytes(task.commit())


def test_wrong_uses_of_names():
    for names in ((5,), ("",), ("n",)):
        with pytest.raises(ProgramError, match=r"the state 'n': renamed_from\(\) takes other names that it had, not"):
            values("n").renamed_from(*names)
    for states in (
        {"a": values("a").renamed_from("b"), "b": values("b")},
        {"b": values("b"), "a": values("a").renamed_from("b")},
        {"a": values("a").renamed_from("c"), "b": values("b").renamed_from("c")},
    ):
        with pytest.raises(ProgramError, match=r"operator 'op' has several uses for the name '[bc]' of a state"):
            Task(**states)
    for name in ("a", "b"):
        with pytest.raises(ProgramError, match=f"deletes the state '{name}' and declares it, or has renamed it"):
            Task(delete=[name], a=values("a").renamed_from("b"))
    task = Task(a=values("a"))
    with pytest.raises(ProgramError, match="deletes the state 'x' while records are processed"):
        task.backend.delete_if_exists("x")
    task = Task(a=values("a"), b=values("b"))
    task["k"]["a"].update(1)
    with pytest.raises(
        CheckpointMismatchError, match="holds a state 'b' of operator 'op', and one with its former name"
    ):
        Task(task.commit(), b=values("b").renamed_from("a"))
    with pytest.raises(CheckpointMismatchError, match=r"declares it as list state: give it another name, and delete"):
        Task(task.store, b=values("b"), l=ListStateDescriptor("l").renamed_from("a"))


# -- classes that moved --

MODEL = "@dataclass(frozen=True)\nclass Old:\n    n: int\nclass Kind(Enum):\n    A = 1\n    B = 2\n"


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("large", [False, True])
def test_a_class_that_moved_goes_on_under_its_new_name(shop, plain, large, monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 10 if large else 32 * 1024)
    old = shop(MODEL, "model").Old

    def states(cls):
        return {
            "v": values("v", cls if plain else None),
            "l": ListStateDescriptor("l", cls if plain else None),
            "m": MapStateDescriptor("m", *((int, generic(list, cls)) if plain else ())),
        }

    task = Task(**states(old))
    task["a"]["v"].update(old(1))
    task["a"]["l"].add_all([old(n) for n in range(30)])
    task["b"]["m"].put_all({n: [old(n)] for n in range(30)})
    store = task.commit()
    monkeypatch.delitem(sys.modules, "model")
    new = shop("@dataclass(frozen=True)\nclass New:\n    n: int\n    more: str = 'none'\n").New
    with pytest.raises(CheckpointMismatchError, match=r"env.add_class_alias\('model:Old', "):
        Task(store.copy(), **states(new))
    task = Task(store, moved={("model", "Old"): new}, **states(new))
    assert task.is_written_anew
    for _ in range(2):
        assert task["a"]["v"].value() == new(1) and list(task["a"]["l"]) == [new(n) for n in range(30)]
        assert dict(task["b"]["m"].items()) == {n: [new(n)] for n in range(30)}
        task = Task(task.commit(), **states(new))  # the alias is removed
    assert not task.is_written_anew and b"model" not in all_bytes(task.store)


def test_keys_and_what_operators_keep_may_be_of_a_class_that_moved(shop, monkeypatch):
    old = shop(MODEL, "model")
    task = Task(key=None, v=values("v"))
    for n in range(20):
        task[old.Old(n), old.Kind.A]["v"].update(n)
    store = task.commit({"operators": {"async": [("request", [old.Old(1)], None, 1, None)]}})
    monkeypatch.delitem(sys.modules, "model")
    new = shop(MODEL)
    moved = {("model", "Old"): new.Old, ("model", "Kind"): new.Kind}
    task = Task(store, key=None, moved=moved, v=values("v"))
    assert task.log.task_state["operators"]["async"][0][1] == [new.Old(1)]
    store = task.commit(task.log.task_state)
    task = Task(store, key=None, v=values("v"))
    assert {key: task[key]["v"].value() for key in task.backend.get_keys()} == {
        (new.Old(n), new.Kind.A): n for n in range(20)
    }
    assert b"model" not in all_bytes(store)


def test_a_key_that_is_another_subtasks_now_is_refused(shop, monkeypatch):
    old = shop(MODEL, "model")
    task = Task(key=None, owner=(0, 2), v=values("v"))
    for key in (*map(old.Old, range(20)), *old.Kind):
        try:
            task[key]["v"].update(1)
        except Exception as error:
            assert "belongs to subtask 1" in str(error)
    store = task.commit()
    assert 5 < len(task.backend.rows) < 18
    moved = shop(MODEL.replace("n: int", "n: int\n    more: int = 0"))
    names = {("model", "Old"): moved.Old, ("model", "Kind"): moved.Kind}
    with pytest.raises(
        CheckpointMismatchError, match=r"the key .*belongs to subtask 1 now, since its class has changed"
    ):
        Task(store.copy(), key=None, owner=(0, 2), moved=names, v=values("v"))
    same = shop(MODEL)
    names = {("model", "Old"): same.Old, ("model", "Kind"): same.Kind}
    again = Task(store, key=None, owner=(0, 2), moved=names, v=values("v"))
    assert len(again.backend.rows) == len(task.backend.rows)
    assert again.backend.rows.keys() <= {*map(same.Old, range(20)), *same.Kind}


def test_an_alias_allows_nothing_more_than_its_class(shop):
    old = shop(MODEL, "model").Old
    task = Task(v=values("v", old))
    task["a"]["v"].update(old(1))
    store = task.commit()
    new = shop(MODEL)
    with pytest.raises(CheckpointMismatchError):
        Task(store, moved={("model", "Old"): OSError}, v=values("v", new.Old))
    task = Task(n=values("n", LONG))
    task["a"]["n"].update(1)
    log = Task(task.commit(), moved={("os", "system"): ModuleType}, n=values("n", LONG)).log
    with pytest.raises(Exception, match="system"):
        log.contents.loads(b"\x80\x05cos\nsystem\n(S'true'\ntR.")


# -- how it is written --


def test_a_worker_that_was_to_write_it_anew_and_did_not_is_made_anew(shop):
    task = Task(sum=values("sum", LONG))
    for n in range(10):
        task[str(n)]["sum"].update(n)
    store = task.commit()
    reader, writer = (Task(store, total=values("total", LONG).renamed_from("sum")) for _ in range(2))
    writer["3"]["total"].update(33)
    writer.commit()
    assert reader.log.sync(store).value == "out of step"
    writer["3"]["total"].update(34)
    writer.commit()
    assert Task(store, total=values("total", LONG))["3"]["total"].value() == 34


def test_large_rows_and_many_chunks_are_written_anew_and_leave_nothing(shop, monkeypatch):
    monkeypatch.setattr(limits, "CHUNK_ROWS", 4)
    old = shop(KINDS["dataclass"] + "    text: str\n").Order
    task = Task(v=values("v", old))
    for n in range(30):
        task[str(n)]["v"].update(old("x" * (700_000 if n in (3, 4) else 10)))
        if n % 3 == 0:
            task.commit()
    task["3"]["v"].clear()
    store = task.commit()
    new = shop(KINDS["dataclass"] + "    n: int = 1\n    text: str = ''\n").Order
    before = set(store.chunks)
    task = Task(store, v=values("v", new))
    task.commit()
    after = set(store.chunks)
    assert before & after == {META} and len([number for number in after if number < 0]) == 1
    task = Task(store, v=values("v", new))
    assert {key: len(task[key]["v"].value().text) for key in task.backend.get_keys()} == {
        str(n): 700_000 if n == 4 else 10 for n in range(30) if n != 3
    }


# -- any change of any types --

SCALARS = {
    "INT": (Types.INT(), st.integers(-5, 5)),
    "LONG": (Types.LONG(), st.integers(-5, 5) | st.just(2**40)),
    "DOUBLE": (Types.DOUBLE(), st.integers(-5, 5) | st.just(1.5)),
    "STRING": (Types.STRING(), st.sampled_from(["", "x"])),
    "BOOLEAN": (Types.BOOLEAN(), st.booleans()),
}
SHAPES = st.recursive(
    st.sampled_from(list(SCALARS)),
    lambda inner: st.one_of(
        inner.map(lambda part: ("LIST", part)),
        inner.map(lambda part: ("MAP", part)),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(lambda parts: ("ROW", parts)),
        st.tuples(
            st.sampled_from(["dataclass", "slots", "frozen slots", "named tuple"]),
            st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3),
        ).map(lambda tuple_: ("CLASS", *tuple_)),
    ),
    max_leaves=4,
)


class Declared:
    """A type as a program declares it. Classes of the module are named by position."""

    def __init__(self, shape: Any, defaults: bool) -> None:
        self.module = sys.modules["shop"]
        self.defaults = defaults
        self.type = self.declare(shape, "C")

    def declare(self, shape, path):
        if isinstance(shape, str):
            return SCALARS[shape][0]
        if shape[0] in ("LIST", "MAP"):
            inner = self.declare(shape[1], path)
            return generic(list, inner) if shape[0] == "LIST" else generic(dict, str, inner)
        fields = {name: self.declare(part, f"{path}_{name}") for name, part in shape[-1].items()}
        if shape[0] == "ROW":
            if all(isinstance(part, str) for part in shape[1].values()):
                return row(**fields)
            return generic(tuple, *fields.values(), int)  # rows have no classes in them
        for name, part in fields.items():
            setattr(self.module, f"T{path}_{name}", part)
        lines = [f"    {name}: T{path}_{name}" + " = None" * self.defaults for name in fields]
        exec(_PRELUDE + KINDS[shape[1]].replace("Order", path) + "\n".join(lines), vars(self.module))
        return getattr(self.module, path)


def changed(shape, draw):
    if isinstance(shape, str):
        return draw(st.sampled_from([shape] * 6 + (["LONG", "DOUBLE"] if shape in ("INT", "LONG") else ["STRING"])))
    if shape[0] in ("LIST", "MAP"):
        return shape[0], changed(shape[1], draw)
    names = draw(st.permutations([*shape[-1], "d"]))
    names_left = names[: draw(st.integers(1, len(names)))]
    return *shape[:-1], {name: changed(shape[-1][name], draw) if name in shape[-1] else "STRING" for name in names_left}


def simple(value):
    if isinstance(value, Row):
        return {name: simple(field) for name, field in zip(value._fields, value) if field is not None}
    if hasattr(value, "_fields"):
        return {name: simple(field) for name, field in zip(value._fields, value) if field is not None}
    if hasattr(value, "__dataclass_fields__"):
        return {
            name: simple(getattr(value, name))
            for name in value.__dataclass_fields__
            if getattr(value, name) is not None
        }
    if isinstance(value, (list, tuple)):
        return [simple(element) for element in value]
    if isinstance(value, dict):
        return {key: simple(item) for key, item in value.items()}
    return value


def value_of(shape, declared, draw):
    if isinstance(shape, str):
        return draw(SCALARS[shape][1])
    if shape[0] in ("LIST", "MAP"):
        inner = declared.__args__[-1]
        items = [value_of(shape[1], inner, draw) for _ in range(draw(st.integers(0, 2)))]
        return items if shape[0] == "LIST" else {str(index): item for index, item in enumerate(items)}
    if shape[0] == "ROW" and not hasattr(declared, "__args__"):
        return Row.of(**{name: draw(SCALARS[part][1]) for name, part in shape[1].items()})
    if shape[0] == "ROW":
        return (*(value_of(part, kind, draw) for part, kind in zip(shape[1].values(), declared.__args__)), 7)
    hints = get_type_hints(declared)
    return declared(**{name: value_of(part, hints[name], draw) for name, part in shape[2].items()})


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing resolves no Types in the annotations of classes")
@given(SHAPES, st.data())
def test_values_of_any_type_become_those_of_another_or_are_refused(then, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "shop", ModuleType("shop"))
        old = Declared(then, defaults=False)
        task = Task(v=values("v", old.type), l=ListStateDescriptor("l", old.type))
        for key in "ab":
            value = value_of(then, old.type, data.draw)
            task[key]["v"].update(value)
            task[key]["l"].add(value)
        before = {key: simple(task[key]["v"].value()) for key in "ab"}
        store = task.commit()
        untouched = dict(store.chunks)
        now = changed(then, data.draw)
        patch.setitem(sys.modules, "shop", ModuleType("shop"))
        new = Declared(now, defaults=data.draw(st.booleans()))
        states = {"v": values("v", new.type), "l": ListStateDescriptor("l", new.type)}
        try:
            task = Task(store, **states)
        except (CheckpointMismatchError, TypeMismatchError) as error:
            assert "state 'v'" in str(error) or "state 'l'" in str(error)
            assert store.chunks == untouched and repr(then) != repr(now)  # a tuple has its fields in order
            return
        after = {key: simple(task[key]["v"].value()) for key in "ab"}
        for key in "ab":
            assert agrees(before[key], after[key])
            assert [simple(element) for element in task[key]["l"]] == [after[key]]
        if repr(then) == repr(now):  # in the same order as well
            assert after == before and not task.is_written_anew
        task.log.contents.plain.check(task.backend, [*task.backend.rows.values()])
        again = Task(task.commit(), **states)
        assert {key: simple(again[key]["v"].value()) for key in "ab"} == after and not again.is_written_anew


def agrees(before, after):
    if isinstance(before, dict) and isinstance(after, dict):
        return all(agrees(before[name], after[name]) for name in before.keys() & after.keys())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(map(agrees, before, after))
    return type(before) is type(after) and before == after


# -- over a savepoint --


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_over_a_savepoint(shop, plain, kind, tmp_path):
    old = shop(KINDS[kind] + "    n: int\n    gone: str\n" if plain else KINDS[kind] + "    n: int\n").Order
    more = ("x",) if plain else ()
    task = Task(
        v=values("v", old if plain else None),
        sum=values("sum", LONG),
        old=ListStateDescriptor("old", old if plain else None),
    )
    for n in range(20):
        task[str(n)]["v"].update(old(n, *more))
        task[str(n)]["sum"].update(n)
        task[str(n)]["old"].add(old(n, *more))
    write_savepoint(str(tmp_path / "savepoint"), {("op", 0): task.commit()}, epoch=1)
    new = shop(
        KINDS[kind] + ("    more: int = 5\n    n: int = 0\n" if plain else "    n: int\n    more: int = 5\n")
    ).Order
    identities = [LogIdentity("op", subtask, 2, 128, key=PLAIN) for subtask in (0, 1)]
    stores = restore_logs(LocalSavepoint(str(tmp_path / "savepoint")), "op", identities)
    states = {"v": values("v", new if plain else None), "total": values("total", LONG)}
    results = {}
    for subtask, store in stores.items():
        states["total"] = values("total", LONG).renamed_from("sum")
        task = Task(store, owner=(subtask, 2), delete=["old"], **states)
        task.commit()
        states["total"] = values("total", LONG)
        task = Task(store, owner=(subtask, 2), **states)
        assert not task.is_written_anew
        results.update({key: (task[key]["v"].value(), task[key]["total"].value()) for key in task.backend.get_keys()})
    assert results == {str(n): (new(n=n, more=5), n) for n in range(20)}


# -- older versions --

CHANGED = """
class Money(NamedTuple):
    currency: str
    amount: int
    rate: float = 1.0

@dataclass
class Order:
    money: Money
    number: int
    paid: bool = False
    tags: tuple[str, ...] = ()

@dataclass(frozen=True, slots=True)
class Slim:
    a: int
    b: str
    c: int = 3
"""
# In pickled values, fields are added; fields of named tuples and frozen slots at the end.
CHANGED_PICKLED = """
class Money(NamedTuple):
    amount: int
    currency: str
    rate: float = 1.0

@dataclass
class Order:
    money: Money
    number: int
    note: str = ""
    paid: bool = False
    tags: tuple[str, ...] = ()

@dataclass(frozen=True, slots=True)
class Slim:
    a: int
    b: str
    c: int = 3
"""


@pytest.mark.parametrize("plain", [True, False])
def test_golden_logs_go_on_with_a_changed_program(plain, monkeypatch, shop):
    (store,) = [store for (uid, _), store in load(golden.PATH).items() if uid == ("plain" if plain else "pickled")]
    assert any(b"elements" in payload for payload in store.chunks.values())
    scope: dict[str, Any] = {"__name__": golden.__name__}
    exec(_PRELUDE + (CHANGED if plain else CHANGED_PICKLED), scope)
    money, order, slim = (scope[name] for name in ("Money", "Order", "Slim"))
    monkeypatch.delattr(golden, "Moved")
    for cls in (money, order, slim):
        monkeypatch.setattr(golden, cls.__name__, cls)
    moved = shop("@dataclass\nclass New:\n    n: int\n    more: int = 5\n").New
    new_row = row(c=STRING, a=LONG) if plain else None

    def declared(first):
        total = values("total", LONG if plain else None)
        total.enable_time_to_live(StateTtlConfig("2 days"))
        return {
            "total": total.renamed_from("sum") if first else total,
            "order": values("order", order if plain else None),
            "slims": ListStateDescriptor("slims", slim if plain else None),
            "orders": MapStateDescriptor("orders", *((int, generic(list, order)) if plain else ())),
            "row": values("row", new_row),
            "latest": ReducingStateDescriptor("latest", lambda value, other: other, moved if plain else None),
            "added": values("added", LONG if plain else None),
        }

    def order_of(n, currency, note=""):
        notes = {} if plain else {"note": note}
        return order(number=n, money=money(amount=n, currency=currency), **notes)

    options: dict[str, Any] = {"name": "evolving", "timers": True}
    task = Task(store, moved={(golden.__name__, "Moved"): moved}, delete=["old"], **options, **declared(True))
    for _ in range(2):
        task.backend.now = 2000
        for n in range(golden.KEYS):
            states = task[f"key {n}"]
            assert states["total"].value() == n and states["order"].value() == order_of(n, "EUR", "x")
            assert states["order"].value().tags == () and states["order"].value().money.rate == 1.0
            assert list(states["slims"]) == [slim(index, str(index), 3) for index in range(3 * n)]
            assert dict(states["orders"].items()) == {index: [order_of(index, "USD")] for index in range(2 * n)}
            assert states["row"].value() == (Row.of(c=None, a=n) if plain else Row.of(a=n, b=str(n)))
            assert states["latest"].get() == moved(n) and states["added"].value() is None
            assert task.backend.timestamps(f"key {n}") == {"user-timers/event": [100 + n]}
        store = task.commit()
        task = Task(store, **options, **declared(False))
    assert b"Moved" not in all_bytes(store) and b"state/old" not in all_bytes(store) and not task.is_written_anew


# -- before a start --


def head_of(task):
    return open_head(task.store.chunks[META], LogIdentity("op", 0, 1, 128))


def test_what_another_program_would_change_is_told_from_heads(shop):
    old = shop(KINDS["dataclass"] + "    n: int\n@dataclass\nclass Old:\n    n: int\n")
    then = Task(
        same=values("same", LONG),
        wide=values("wide", Types.INT()),
        text=values("text", LONG),
        kind=values("kind", LONG),
        gone=values("gone", LONG),
        order=values("order", old.Order),
        needs=ListStateDescriptor("needs", old.Order),
        latest=values("moved", old.Old),
    )
    then["a"]["same"].update(1)
    then.commit()
    new = shop(KINDS["dataclass"] + "    n: int\n    more: int = 0\n@dataclass\nclass New:\n    n: int\n")
    now = Task(
        same=values("same", LONG),
        wide=values("wide", LONG),
        text=values("text", STRING),
        kind=ListStateDescriptor("kind", LONG),
        order=values("order", new.Order),
        needs=ListStateDescriptor("needs", int),
        latest=values("moved", new.New),
        more=values("more", LONG),
    )
    now["a"]["same"].update(1)
    now.commit()
    comparison = compare_states(head_of(then), head_of(now))
    assert comparison.refused == [
        "operator 'op': the value state 'text': it was LONG, and is STRING",
        "operator 'op': the value state 'kind' is a list state: give it another name",
        "operator 'op': the value state 'gone' is no more: let another one say renamed_from('gone'), or delete it with"
        " runtime_context.delete_if_exists()",
        "operator 'op': the list state 'needs': it was shop.Order, and is int",
    ]
    assert comparison.doubtful == [
        "operator 'op': the value state 'moved': it was shop.Old, and is shop.New: if the class has moved, say"
        " env.add_class_alias('shop:Old', New)",
    ]
    assert comparison.carried_out == [
        "operator 'op': the value state 'wide': INT becomes LONG",
        "operator 'op': the value state 'order': fields of its classes have changed",
        "operator 'op': the value state 'more' is new",
    ]


@pytest.mark.parametrize(
    ("states", "deleted", "refused", "carried_out"),
    [
        ({"total": values("total", LONG).renamed_from("sum")}, (), "", "is called 'total' now"),
        ({"total": values("total", STRING).renamed_from("sum")}, (), "it was LONG, and is STRING", "is called 'total'"),
        ({"total": ListStateDescriptor("total", LONG).renamed_from("sum")}, (), "is a list state: give it another", ""),
        ({"kept": values("kept", LONG).renamed_from("sum")}, (), "is to be called 'kept', and there is a state", ""),
        ({"total": values("total", LONG)}, (), "is no more: let another one say renamed_from('sum')", ""),
        ({"total": values("total", LONG)}, ("sum",), "", "is deleted"),
    ],
    ids=["renamed", "another type", "another kind", "taken", "not said", "deleted"],
)
def test_what_is_told_of_a_state_with_another_name_is_what_happens(states, deleted, refused, carried_out):
    def program(store=None):
        task = Task(store, delete=deleted, **{"kept": values("kept", LONG), **states})
        task["a"]["kept"].update(2)
        task.commit()
        return task

    then = Task(sum=values("sum", LONG), kept=values("kept", LONG))
    for state in then["a"].values():
        state.update(1)
    then.commit()
    comparison = compare_states(head_of(then), head_of(program()))
    changes = [change for change in comparison.carried_out if "'sum'" in change]
    assert comparison.doubtful == [] and len(comparison.refused) == bool(refused) and len(changes) == bool(carried_out)
    assert all(refused in change for change in comparison.refused) and all(carried_out in change for change in changes)
    if refused:
        with pytest.raises(CheckpointMismatchError):
            program(then.store)
        return
    later = program(then.store)
    again = compare_states(head_of(later), head_of(program()))
    assert (again.refused, again.doubtful, again.carried_out) == ([], [], [])
    assert later["a"]["total"].value() == (None if deleted else 1)


def test_a_look_inside_tells_which_classes_are_named(shop):
    old = shop(KINDS["dataclass"] + "    n: int\nclass Kind(Enum):\n    A = 1\n")
    task = Task(v=values("v"), n=values("n"))
    task["a"]["v"].update([old.Order(1), (Row.of(a=1), StateTtlConfig("1 day").update_type)])
    task["b"]["n"].update({old.Kind.A: {1, 2}})
    task.commit({"operators": {"x": old.Kind.A}})
    view = LogView(task.store, 0)
    assert view.classes == set()
    LogSummary.of(view, 1)
    assert {name for name in view.classes if name.startswith("shop")} == {"shop:Order", "shop:Kind"}
