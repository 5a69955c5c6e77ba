"""State of operators without keys. A checkpoint with a state that the program does not list is refused at once."""

from __future__ import annotations

import pickle
import re
import zlib
from collections import OrderedDict
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cached_property, partial
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    Row,
    StreamExecutionEnvironment,
    TypeMismatchError,
    Types,
    WatermarkStrategy,
)
from pillarbox._elements.records import Records
from pillarbox._state.chunks.head import META, LogIdentity, read_head
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log import large_collections
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.types.plain_types import NotPlainError, plain_type
from tests.data import make_types as golden
from tests.data.make_checkpoint import load

KEY = KeyNote(columns=["k"], types=["string"])
LONG = partial(ValueStateDescriptor, value_type_info=Types.LONG())


class Money(NamedTuple):
    amount: Decimal
    currency: str = "EUR"


@dataclass
class Payment:
    money: Money
    at: datetime | None = None
    items: list[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class Slim:
    n: int


@dataclass(slots=True)
class InSlots:
    n: int


@dataclass
class Slimmer(InSlots):
    text: str = ""


@dataclass
class WithState:
    n: int

    def __setstate__(self, state):
        raise AssertionError("it ran")


@dataclass
class Cached:
    n: int

    @cached_property
    def twice(self) -> int:
        return 2 * self.n


class Task:
    def __init__(self, store=None, key: Any = KEY, **states):
        self.store = MemoryChunkStore() if store is None else store
        self.backend = KeyedStateBackend("op")
        self.states = {name: self.backend.get_state(make(name)) for name, make in states.items()}
        self.backend.seal()
        self.log = StateLog(LogIdentity("op", 3, 4, 128, key=key), self.backend, own_state=False)
        self.log.sync(self.store)

    def __getitem__(self, key):
        self.backend.set_current_key(key)
        return self.states

    def commit(self):
        self.log.commit(self.store, {"gate": {}, "operators": {}})
        return self


def types_in_head(store):
    return pickle.loads(store.chunks[META][15:]).get("types")


def forge(store, number, payload):
    store.chunks[number] = payload
    head = store.chunks[META]
    body = pickle.dumps({**pickle.loads(head[15:]), "newest": (len(payload), zlib.crc32(payload), 1)}, 5)
    store.chunks[META] = head[:11] + zlib.crc32(body).to_bytes(4, "little") + body


# -- attacks --

ran: list[str] = []


def run(what):
    ran.append(what)


class Evil:
    def __reduce__(self):
        return run, ("code",)


@pytest.mark.parametrize("where", ["value", "key", "list", "large row", "element"])
def test_a_pickle_that_names_something_else_is_refused_and_nothing_has_run(where, monkeypatch):
    monkeypatch.setattr(large_collections, "_LARGE", 50)
    states = {"n": LONG, "l": partial(ListStateDescriptor, elem_type_info=Types.STRING())}
    task = Task(**states)
    task["ann"]["n"].update(1)
    if where == "element":
        task["ann"]["l"].add_all(["x" * 10] * 10)
    if where == "large row":
        task["ann"]["l"].add("x" * 700_000)
    task.commit()
    payload = task.store.chunks[1]
    if where == "large row":
        content = pickle.loads(task.store.chunks[-1])
        content["row"][1] = Evil()
        task.store.chunks[-1] = large = pickle.dumps(content, 5)
        chunk = pickle.loads(payload)
        chunk["large"] = {0: (-1, len(large), zlib.crc32(large), 1)}
    else:
        chunk = pickle.loads(payload)
        if where == "element":
            chunk["elements"][0][4][3] = Evil()
        elif where == "key":
            chunk["keys"][0] = Evil()
        else:
            chunk["rows"][0][1 if where == "value" else 2] = Evil() if where == "value" else ["a", Evil()]
    ran.clear()
    forge(task.store, 1, pickle.dumps(chunk, 5))
    with pytest.raises(CheckpointMismatchError) as caught:
        Task(task.store, **states)
    assert not ran
    whose = {
        "value": "the value state 'n' of the key 'ann'",
        "list": "the list state 'l' of the key 'ann'",
        "large row": "the value state 'n' of a key with much state",
        "element": "the list state 'l' of the key 'ann'",
    }.get(where, "the key ")
    assert f"operator 'op', subtask 3: the checkpoint holds, in {whose}" in str(caught.value)
    assert f"{__name__}.run, which is none of the types that the program declares; nothing of it was run" in str(
        caught.value
    )


@pytest.mark.parametrize(
    "payload",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x05cbuiltins\neval\n(S'1'\ntR.",
        b"\x80\x05cbuiltins\ngetattr\n(cbuiltins\nint\nS'__class__'\ntR.",
        b"\x80\x05cdatetime\ndatetime\nS'fromtimestamp'\n\x86cbuiltins\ngetattr\n.",
        b"\x80\x05\x8c\x08datetime\x8c\x18datetime.fromtimestamp\x93.",
        b"\x80\x05cpillarbox._unpickle\nmake\n(S'Duration'\nI1\ntR.",
        b"\x80\x05ccopyreg\n_reconstructor\n.",
        # BUILD with the state of slots sets attributes, of classes as well.
        b"\x80\x05cdatetime\ndatetime\nN}\x8c\x04oops\x8c\x01a\x73\x86b.",
        b"\x80\x05cdatetime\ntimezone\nN}\x8c\x03utc\x8c\x01a\x73\x86b.",
        b"\x80\x05czoneinfo\nZoneInfo\nN}\x8c\x04oops\x8c\x01a\x73\x86b.",
        b"\x80\x05cpillarbox._unpickle\nrow_class\nN}\x8c\x04oops\x8c\x01a\x73\x86b.",
    ],
)
def test_nothing_but_the_list_is_named(payload):
    task = Task(t=partial(ValueStateDescriptor, value_type_info=Types.INSTANT()))
    task["a"]["t"].update(datetime(2024, 1, 1, tzinfo=timezone.utc))
    task.commit()
    forge(task.store, 1, payload)
    with pytest.raises(CheckpointMismatchError):
        Task(task.store, t=partial(ValueStateDescriptor, value_type_info=Types.INSTANT()))


def test_the_head_cannot_say_that_it_is_no_plain_state():
    task = Task(n=LONG)
    task["a"]["n"].update(1)
    task.commit()
    ran.clear()
    head = task.store.chunks[META]
    forged: list[dict[str, Any]] = [{"types": {}}, {"task": pickle.dumps({"operators": Evil()}, 5)}]
    for content in forged:
        store = task.store.copy()
        chunk = pickle.loads(store.chunks[1])
        chunk["rows"][0][1] = Evil() if "types" in content else 1
        payload = pickle.dumps(chunk, 5)
        mark = (len(payload), zlib.crc32(payload), 1)
        body = pickle.dumps({**pickle.loads(head[15:]), "newest": mark, **content}, 5)
        store.chunks.update({1: payload, META: head[:11] + zlib.crc32(body).to_bytes(4, "little") + body})
        with pytest.raises(CheckpointMismatchError, match="nothing of it was run"):
            Task(store, n=LONG)
    store = task.store.copy()
    store.chunks[META] = head[:9] + b"\x01\x00" + pickle.dumps(Evil(), 5)
    with pytest.raises(CheckpointMismatchError, match="has format 1, this version of pillarbox reads"):
        Task(store, n=LONG)
    assert not ran


def test_a_class_cannot_be_changed_by_a_pickle():
    describe = partial(ValueStateDescriptor, value_type_info=Payment)
    task = Task(p=describe)
    task["a"]["p"].update(Payment(Money(Decimal(1))))
    task.commit()
    name = f"c{__name__}\nPayment\n".encode()
    forge(task.store, 1, b"\x80\x05" + name + b"N}\x8c\x05money\x8c\x04oops\x73\x86b.")
    with pytest.raises(CheckpointMismatchError):
        Task(task.store, p=describe)
    assert not hasattr(Payment, "money")


# -- written values --

VALUES: list[tuple[Any, list[Any], list[Any]]] = [
    (Types.LONG(), [0, -(2**63), 2**63 - 1, None], [2**63, 1.5, "1", True, np.int64(1)]),
    (Types.INT(), [2**31 - 1], [2**31]),
    (Types.SHORT(), [1], [2**15]),
    (Types.BYTE(), [-128], [128]),
    (Types.DOUBLE(), [1.5, 1], ["1", np.float64(1)]),
    (Types.STRING(), ["", "x"], [b"x", 1]),
    (Types.BOOLEAN(), [True], [1]),
    (Types.BIG_DEC(), [Decimal("1.5"), 1], [1.5]),
    (Types.SQL_DATE(), [date(2024, 2, 29)], [datetime(2024, 2, 29)]),
    (Types.SQL_TIME(), [time(1, 2, 3)], ["1:00"]),
    (
        Types.SQL_TIMESTAMP(),
        [
            datetime(2024, 1, 1),
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2))),
            datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        ],
        [date(2024, 1, 1)],
    ),
    (Types.PRIMITIVE_ARRAY(Types.BYTE()), [b"x"], ["x"]),
    (Types.LIST(Types.LONG()), [[1, None], (2,), set()], [["x"], [[1]], 5]),
    (Types.MAP(Types.STRING(), Types.LIST(Types.LONG())), [{"a": [1]}, {}], [{1: [1]}, {"a": ["x"]}, [1]]),
    (
        Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()]),
        [Row.of(a="x", b=1), Row.of(b=1, a="x"), ("x", 1), ["x", None]],
        [("x",), Row.of(a=1, b=1), {"a": "x", "b": 1}, Money(Decimal(1)), 1],
    ),
    (Types.TUPLE([Types.STRING(), Types.LONG()]), [("x", 1)], [(1, 1)]),
    (int, [2**100, True], [1.0]),
    (timedelta, [timedelta(1)], [1]),
    (list[Money], [[Money(Decimal(1))]], [[("1", "EUR")], [Money(1.5, "EUR")]]),  # type: ignore[arg-type]
    (tuple[int, str], [(1, "x")], [("x", 1)]),
    (
        Payment,
        [Payment(Money(Decimal(1)), datetime(2024, 1, 1), [("a", 1)]), Payment(Money(Decimal(1)))],
        [Payment(1), Payment(Money(Decimal(1)), items=[("a", "b")]), Slim(1), 5],  # type: ignore[arg-type,list-item]
    ),
    (Slim, [Slim(1)], [Slim("x")]),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("declared", "good", "bad"), VALUES, ids=lambda value: str(value)[:30])
def test_values_of_declared_types_are_written_and_read_and_others_refused(declared, good, bad):
    describe = partial(ValueStateDescriptor, value_type_info=declared)
    task = Task(v=describe)
    assert task.log.reason_for_pickles is None
    for n, value in enumerate(good):
        task[f"good {n}"]["v"].update(value)
    task.commit()
    again = Task(task.store, v=describe)
    for n, value in enumerate(good):
        result = again[f"good {n}"]["v"].value()
        assert (result, type(result)) == (value, type(value))
    for value in bad:
        task = Task(v=describe)
        task["bad"]["v"].update(value)
        task["good"]["v"].update(good[0])
        with pytest.raises(TypeMismatchError, match="operator 'op': the value state 'v' of key 'bad' does not fit its"):
            task.commit()


def test_an_attribute_that_is_no_field_is_refused():
    task = Task(v=partial(ValueStateDescriptor, value_type_info=Payment))
    payment: Any = Payment(Money(Decimal(1)))
    payment.cache = object()
    task["a"]["v"].update(payment)
    with pytest.raises(
        TypeMismatchError, match=r"state 'v' of key 'a' .* has an attribute 'cache', which is no field of"
    ):
        task.commit()


@pytest.mark.parametrize("kind", [Slim, Payment])
def test_a_field_that_was_never_set_is_refused(kind):
    task = Task(v=partial(ValueStateDescriptor, value_type_info=kind))
    value = object.__new__(kind)
    if kind is Payment:
        value.__dict__.update(a=1, b=2, c=3)
    task["a"]["v"].update(value)
    with pytest.raises(TypeMismatchError, match=r"the value state 'v' of key 'a' does not fit its declared type: "):
        task.commit()


def test_fields_in_slots_of_a_base_and_in_the_dictionary():
    task = Task(v=partial(ValueStateDescriptor, value_type_info=Slimmer))
    assert task.log.reason_for_pickles is None
    task["a"]["v"].update(Slimmer(1, "x"))
    again = Task(task.commit().store, v=partial(ValueStateDescriptor, value_type_info=Slimmer))
    assert again["a"]["v"].value() == Slimmer(1, "x")


class Nothing(NamedTuple):
    pass


class Text(str):
    pass


@dataclass
class Special(Payment):
    pass


def test_values_that_are_nearly_of_the_type():
    good: list[tuple[Any, Any]] = [
        (Types.DOUBLE(), float("nan")),
        (Types.DOUBLE(), float("-inf")),
        (Types.LIST(Types.LONG()), ()),
        (Nothing, Nothing()),
        (list[Nothing], [Nothing(), None]),
        (dict[str, dict[int, Payment]], {"a": {1: Payment(Money(Decimal("NaN")))}}),
        (Decimal, Decimal("1E+400")),
        (datetime, datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin"))),
        (datetime, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2), "two"))),
    ]
    for declared, value in good:
        make = partial(ValueStateDescriptor, value_type_info=declared)
        task = Task(v=make)
        assert task.log.reason_for_pickles is None, declared
        task["a"]["v"].update(value)
        result = Task(task.commit().store, v=make)["a"]["v"].value()
        assert (repr(result), type(result)) == (repr(value), type(value))
    bad: list[tuple[Any, Any]] = [
        (Types.STRING(), Text("x")),
        (Types.STRING(), np.str_("x")),
        (Types.LONG(), float("nan")),
        (Types.LONG(), -(2**63) - 1),
        (Types.DOUBLE(), True),
        (dict[str, int], OrderedDict(a=1)),
        (Payment, Special(Money(Decimal(1)))),
        (dict[str, dict[int, Payment]], {"a": {1: Special(Money(Decimal(1)))}}),
        (tuple[Money, int], ((Decimal(1), "EUR"), 1)),
        (datetime, pd.Timestamp(0)),
        (Nothing, ()),
    ]
    for declared, value in bad:
        task = Task(v=partial(ValueStateDescriptor, value_type_info=declared))
        task["a"]["v"].update(value)
        with pytest.raises(TypeMismatchError, match="operator 'op': the value state 'v' of key 'a' does not fit"):
            task.commit()


def test_the_innermost_part_is_named():
    task = Task(
        m=partial(MapStateDescriptor, key_type_info=Types.STRING(), value_type_info=list[Payment]),
        r=partial(ReducingStateDescriptor, reduce_function=max, type_info=Types.LONG()),
    )
    task["a"]["m"].put("x", [Payment(Money(1.5))])  # type: ignore[arg-type]
    sentence = (
        "operator 'op': the map state 'm' of key 'a' does not fit its declared type: 1.5 (float) is not of type"
        " DECIMAL; give such a value, or declare another type (Types.PICKLED_BYTE_ARRAY() takes all)"
    )
    with pytest.raises(TypeMismatchError, match=re.escape(sentence)):
        task.commit()


def test_elements_of_large_maps_and_lists_are_looked_at():
    states = {
        "m": partial(MapStateDescriptor, key_type_info=Types.STRING(), value_type_info=Types.LONG()),
        "l": partial(ListStateDescriptor, elem_type_info=Types.LONG()),
    }
    task = Task(**states)
    task["a"]["m"].put_all({str(n): n for n in range(10_000)})
    task["a"]["l"].add_all(range(10_000))
    task.commit()
    assert task.log.contents.collections.get("a", 2) is not None
    again = Task(task.store, **states)
    assert again["a"]["m"].get("77") == list(again["a"]["l"])[77] == 77
    for change, what in (
        (lambda states: states["m"].put(5, 5), "5 (int) is not of type STRING"),
        (lambda states: states["m"].put("5", "x"), "'x' (str) is not of type LONG"),
        (lambda states: states["l"].add("x"), "'x' (str) is not of type LONG"),
    ):
        task = Task(again.store, **states)
        change(task["a"])
        with pytest.raises(TypeMismatchError, match=re.escape(what)):
            task.commit()


def test_keys_have_to_be_plain_values():
    task = Task(n=LONG)
    task[OrderedDict().__class__]["n"].update(1)
    with pytest.raises(TypeMismatchError, match=r"operator 'op': the key .* is no plain value"):
        task.commit()
    task = Task(n=LONG)
    for key in ("x", 1, ("a", Decimal(1), None), Row.of(a=1), date(2024, 1, 1), None):
        task[key]["n"].update(1)
    assert len(Task(task.commit().store, n=LONG).backend.rows) == 6


# -- which operators are plain --


def test_a_state_without_a_declared_type_keeps_the_operator_pickled():
    for states, key, reason in (
        ({"n": LONG, "x": ValueStateDescriptor}, KEY, "the value state 'x': no type is declared"),
        (
            {"x": partial(ValueStateDescriptor, value_type_info=Types.PICKLED_BYTE_ARRAY())},
            KEY,
            "the value state 'x': PICKLED_BYTE_ARRAY is pickled",
        ),
        ({"m": partial(MapStateDescriptor, key_type_info=Types.STRING())}, KEY, "the map state 'm': no type is decla"),
        ({"x": partial(ValueStateDescriptor, value_type_info=WithState)}, KEY, "WithState has a __setstate__ of its"),
        ({"x": partial(ValueStateDescriptor, value_type_info=Cached)}, KEY, "Cached has the cached property 'twice'"),
        ({"x": partial(ValueStateDescriptor, value_type_info=list[Any])}, KEY, "the value state 'x': "),
        ({"n": LONG}, KeyNote(function="f"), "the type of its key is not known"),
        ({"n": LONG}, None, "it works without keys"),
    ):
        task = Task(key=key, **states)
        assert reason in (task.log.reason_for_pickles or "")
        for name in states:
            if name != "m":
                task["a"][name].update(1 if name == "n" else {1, "any"})
        task.commit()
        assert types_in_head(task.store) is None
        if "n" in states:  # a type that is declared holds nevertheless
            task["a"]["n"].update("any")
            with pytest.raises(TypeMismatchError, match="the value state 'n' of key 'a' does not fit its declared"):
                task.commit()


def test_a_cached_property_that_was_used_is_written_and_read():
    task = Task(x=partial(ValueStateDescriptor, value_type_info=Cached))
    value = Cached(2)
    assert value.twice == 4
    task["a"]["x"].update(value)
    task.commit()
    again = Task(task.store, x=partial(ValueStateDescriptor, value_type_info=Cached))
    assert again["a"]["x"].value() == Cached(2) and again["a"]["x"].value().twice == 4


def test_types_are_in_the_head():
    task = Task(
        n=LONG,
        p=partial(ValueStateDescriptor, value_type_info=Payment),
        l=partial(ListStateDescriptor, elem_type_info=Types.DOUBLE()),
    ).commit()
    assert types_in_head(task.store) == {
        "state/n": "LONG",
        "state/p": (
            f"{__name__}.Payment[{__name__}:dict](money: {__name__}.Money[{__name__}:tuple](amount: DECIMAL,"
            " currency: STRING?), at: TIMESTAMP?, items: LIST(TUPLE(STRING, int))?)"
        ),
        "state/l": "LIST(DOUBLE)",
    }
    assert read_head(task.store.chunks[META], task.log.contents.identity).types == types_in_head(task.store)


def test_operators_that_keep_records_are_pickled():
    backend = KeyedStateBackend("op")
    backend.get_state(LONG("n"))
    backend.seal()
    log = StateLog(LogIdentity("op", 3, 4, 128, key=KEY), backend)
    assert (
        log.reason_for_pickles
        == "an operator chained to it keeps records of its own, such as requests that are carried"
    )


def test_state_of_before_is_looked_at_when_types_come():
    old = Task(v=ValueStateDescriptor)
    old["a"]["v"].update(1)
    old["b"]["v"].update("x")
    old.commit()
    with pytest.raises(TypeMismatchError, match="the value state 'v' of key 'b' does not fit its declared type: 'x'"):
        Task(old.store, v=LONG)
    old["b"]["v"].update(2)
    new = Task(old.commit().store, v=LONG)
    new["a"]["v"].update(3)
    assert Task(new.commit().store, v=LONG)["b"]["v"].value() == 2
    # And when they change.
    with pytest.raises(
        CheckpointMismatchError, match=r"the value state 'v' cannot resume .* it was LONG, and is STRING"
    ):
        Task(new.store, v=partial(ValueStateDescriptor, value_type_info=Types.STRING()))
    assert Task(new.store, v=partial(ValueStateDescriptor, value_type_info=Types.INT()))["a"]["v"].value() == 3
    assert Task(new.store, v=ValueStateDescriptor)["a"]["v"].value() == 3


def test_states_that_are_asked_for_late_hold_plain_data():
    task = Task(n=LONG)
    late = task.backend.get_state(ValueStateDescriptor("late"), late=True)
    task["a"]["n"].update(1)
    late.update((1, "x"))
    assert Task(task.commit().store, n=LONG)["a"]["n"].value() == 1
    late.update(Payment(Money(Decimal(1))))
    with pytest.raises(TypeMismatchError, match="the value state 'late' of key 'a'"):
        task.commit()


@pytest.mark.parametrize("declared", [object, 5, "LONG", dict, lambda: 0, Evil, list])
def test_types_that_are_not_plain(declared):
    with pytest.raises(NotPlainError):
        plain_type(declared)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)
DECLARED = st.recursive(
    st.sampled_from([Types.LONG(), Types.STRING(), Types.DOUBLE(), Types.BOOLEAN()]),
    lambda inner: st.one_of(
        inner.map(Types.LIST), inner.map(lambda value: Types.MAP(Types.STRING(), value)), inner.map(lambda v: v)
    ),
    max_leaves=4,
)


def fits(declared, value):
    name = declared.name.partition("(")[0]
    if value is None:
        return True
    if name == "LIST":
        return isinstance(value, list) and all(fits(declared.parts[0], element) for element in value)
    if name == "MAP":
        return isinstance(value, dict) and all(
            fits(declared.parts[0], key) and fits(declared.parts[1], item) for key, item in value.items()
        )
    kinds: dict[str, tuple[type, ...]] = {"LONG": (int,), "STRING": (str,), "DOUBLE": (float, int), "BOOLEAN": (bool,)}
    return type(value) in kinds[name]


@given(DECLARED, st.lists(PLAIN, max_size=5))
def test_columns_fit_as_each_of_their_values(declared, values):
    result = plain_type(declared)
    assert result.fits(values) == all(fits(declared, value) for value in values)
    for value in values:
        if not fits(declared, value):
            assert "is not of type" in result.misfit(value)


def test_the_golden_log_of_types_is_read():
    (store,) = load(golden.PATH).values()
    chunks = [pickle.loads(payload) for number, payload in store.chunks.items() if number > META]
    assert len(types_in_head(store) or ()) == len(golden.STATES) + 1
    assert any("elements" in chunk for chunk in chunks) and any("spaces" in chunk for chunk in chunks)
    typed = golden.Typed(store)
    assert typed.log.reason_for_pickles is None
    for key, states, windows in golden.contents():
        assert typed.backend.contents(key) == {name: value for name, value in states.items() if value not in ([], {})}
        assert typed.windows(key) == windows
    typed.put(("key 1", Decimal(1)), {"long": 1}, {5: [(1, True)]})
    typed.log.commit(store, {})
    typed.put(("key 1", Decimal(1)), {}, {5: [(1, "x")]})
    with pytest.raises(
        TypeMismatchError, match=r"the list state 'window' of key \('key 1', .*\) in namespace 5 does no"
    ):
        typed.log.commit(store, {})


class Sum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(value[2] + 5)
        yield self.sum.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp


def sums(key_type, savepoint=None):
    env = StreamExecutionEnvironment.get_execution_environment()
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[2])
    values = env.from_collection([]).assign_timestamps_and_watermarks(times.with_idleness("1 hour"))
    out = values.key_by(lambda value: value[0], key_type=key_type).process(Sum()).uid("sum").map(str)
    return env.local_job(out=out, savepoint=savepoint)


def push(job, *values):
    (source,) = job.program.sources
    return job.run_epoch({source: [[Records(list(values))]]})["out"]


@pytest.mark.parametrize("key_type", [Types.STRING(), None])
def test_a_program_whose_types_are_declared_has_plain_state(key_type, caplog):
    with caplog.at_level("INFO", "pillarbox"), sums(key_type) as job:
        assert push(job, ("a", 1, 10), ("a", 2, 11)) == ["1", "3"]
        savepoint = job.savepoint()
    assert types_in_head(next(iter(savepoint.values()))) == ({"state/sum": "LONG"} if key_type else None)
    message = "plain data of the declared types" if key_type else "pickles: the type of its key is not known"
    assert f"checkpoint is stored as {message}" in caplog.text and " (operator 'process: Sum')" in caplog.text
    with sums(key_type, savepoint) as job:
        assert push(job, ("a", 3, 20)) == ["6", "('a', 15)", "('a', 16)"]
        if key_type:
            with pytest.raises(TypeMismatchError, match="the value state 'sum' of key 'a' does not fit its declared"):
                push(job, ("a", 0.5, 21))
