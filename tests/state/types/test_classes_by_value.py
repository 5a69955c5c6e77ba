"""Classes that reach a worker by value, such as a notebook's, may change like a module's classes."""

from __future__ import annotations

import copy
import dataclasses
import sys
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import pytest
from pyspark.cloudpickle import cloudpickle

from pillarbox import (
    CheckpointMismatchError,
    KeyedProcessFunction,
    OperatorError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from pillarbox._operators.frame.captured import Captured
from pillarbox._runtime.shipping import install_main_classes, main_classes
from pillarbox._state.chunks.head import LogIdentity
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._state.heap.backend import KeyedStateBackend
from pillarbox._state.keys.key_note import KeyNote
from pillarbox._state.log.state_log import StateLog
from pillarbox._state.types import records

_PRELUDE = "from dataclasses import dataclass, field\nfrom enum import Enum\nfrom typing import NamedTuple\n"
KINDS = {
    "dataclass": "@dataclass\nclass Order:\n",
    "frozen": "@dataclass(frozen=True)\nclass Order:\n",
    "slots": "@dataclass(slots=True)\nclass Order:\n",
    "frozen slots": "@dataclass(frozen=True, slots=True)\nclass Order:\n",
    "keywords": "@dataclass(kw_only=True)\nclass Order:\n",
    "derived": "@dataclass\nclass Base:\n    n: int\n@dataclass\nclass Order(Base):\n",
    "named tuple": "class Order(NamedTuple):\n",
}


class Home:
    """The module that defines a program's classes, and a worker that receives the classes."""

    def __init__(self, kind: str, patch: Any) -> None:
        self._kind = kind
        self._patch = patch
        self._driver = ModuleType("shop" if kind == "module" else "__main__")

    def define(self, source: str) -> Any:
        if self._kind != "cell run again":
            self._driver = ModuleType(self._driver.__name__)  # a new process
        self._patch.setitem(sys.modules, self._driver.__name__, self._driver)
        exec(_PRELUDE + source, vars(self._driver))
        if self._kind == "cell run again":
            exec(source, vars(self._driver))
        if self._kind == "module":
            return self._driver
        pickled = main_classes().payload
        in_another_process(self._patch)
        worker = ModuleType("__main__")
        self._patch.setitem(sys.modules, "__main__", worker)
        install_main_classes(pickled)
        return worker


def in_another_process(patch: Any) -> None:
    patch.setattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_CLASS", WeakKeyDictionary())
    patch.setattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", WeakValueDictionary())


@pytest.fixture(params=["module", "__main__", "cell run again"])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(request.param, monkeypatch)


class Task:
    def __init__(self, declared: Any = None, store: MemoryChunkStore | None = None) -> None:
        self.store = store or MemoryChunkStore()
        self.backend = KeyedStateBackend("op")
        self.value: Any = self.backend.get_state(ValueStateDescriptor("v", declared))
        self.backend.seal()
        identity = LogIdentity("op", 0, 1, 128, key=KeyNote(columns=["k"], types=["string"]))
        self.log = StateLog(identity, self.backend, own_state=False)
        self.log.sync(self.store)
        self.backend.set_current_key("a")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_declared", [False, True], ids=["undeclared", "declared"])
def test_new_fields_get_their_defaults_wherever_the_class_is_from(home: Home, kind: str, is_declared: bool) -> None:
    lead = KINDS[kind]
    inherited = "    n: int\n" if "Base" not in lead else "    m: int = 0\n"
    old = home.define(lead + inherited).Order
    task = Task(old if is_declared else None)
    task.value.update(old(n=1))
    task.log.commit(task.store, {})

    fields = "    f: int = 7\n    o: object = None\n    e: tuple[int, ...] = ()\n"
    fields += "" if "tuple" in kind else "    d: list[int] = field(default_factory=list)\n"
    new = home.define(lead + inherited + fields).Order
    result = Task(new if is_declared else None, task.store).value.value()
    assert type(result) is new
    assert result == new(n=1)
    assert (result.f, result.o, result.e, getattr(result, "d", [])) == (7, None, (), [])


@pytest.mark.parametrize("kind", ["dataclass", "frozen", "slots"])
def test_a_new_field_without_default_is_refused_at_the_start(home: Home, kind: str) -> None:
    old = home.define(KINDS[kind] + "    n: int\n").Order
    task = Task(old)
    task.value.update(old(n=1))
    task.log.commit(task.store, {})
    new = home.define(KINDS[kind] + "    n: int\n    more: int\n").Order
    with pytest.raises(CheckpointMismatchError, match=r"the field 'more'.*default"):
        Task(new, task.store)


def test_the_fields_of_a_class_are_the_same_by_value(home: Home) -> None:
    source = "@dataclass\nclass A:\n    n: int\n    f: int = 0\n    l: list[int] = field(default_factory=list)\n"
    there = home.define(source).A
    assert records.field_names(there) == ("n", "f", "l")
    assert records.optional_fields(there) == {"f", "l"}
    # As Python itself and users' libraries do.
    missing = dataclasses.MISSING
    assert [(f.default is missing, f.default_factory is missing) for f in dataclasses.fields(there)] == [
        (True, True),
        (False, True),
        (True, False),
    ]
    derived = dataclasses.make_dataclass("B", [("m", int, 0)], bases=(there,))
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'n'"):
        derived()


def test_a_class_that_another_pickler_copied_has_the_same_defaults() -> None:
    """A pickle from a process without pillarbox holds a copy of the sentinel."""
    created_class = dataclasses.make_dataclass("Made", [("n", int), ("f", int, 0)])
    missing = object.__new__(type(dataclasses.MISSING))
    for field_ in dataclasses.fields(created_class):
        if field_.default is dataclasses.MISSING:
            field_.default = missing
        field_.default_factory = missing
    assert records.optional_fields(created_class) == {"f"}


def test_members_of_an_enum_stay_the_same_by_value(home: Home) -> None:
    worker = home.define("class Plan(Enum):\n    FREE = 1\n    PAID = 2\n")
    task = Task()
    task.value.update([worker.Plan.FREE])
    task.log.commit(task.store, {})
    assert Task(store=task.store).value.value()[0] is worker.Plan.FREE


class Keep(KeyedProcessFunction):
    made: Any = None

    def open(self, runtime_context: Any) -> None:
        self.last: Any = runtime_context.get_state(ValueStateDescriptor("last"))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.last.update(type(self).made(value))
        yield value


def test_a_class_that_is_defined_again_after_the_stream_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    source = _PRELUDE + "@dataclass\nclass Event:\n    n: int\n"
    exec(source, vars(module))
    monkeypatch.setattr(Keep, "made", module.Event)
    stream = StreamExecutionEnvironment().from_collection([1]).key_by(lambda n: n).process(Keep())
    exec(source, vars(module))
    with pytest.raises(OperatorError, match="it was defined again after the stream was built: build the stream again"):
        stream.execute_and_collect()


def test_an_alias_may_be_given_again_for_the_same_class(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    env = StreamExecutionEnvironment()
    for _ in range(2):
        exec(_PRELUDE + "@dataclass\nclass Event:\n    n: int\n", vars(module))
        env.add_class_alias("old:Event", module.Event)
    assert env._moved["old", "Event"] is module.Event


def test_a_function_that_is_captured_leaves_the_users_class_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    exec(_PRELUDE + "@dataclass\nclass Event:\n    n: int\n", vars(module))
    copied: Any = copy.deepcopy(Captured(module.Event))
    assert copied.function is module.Event
    assert dataclasses.fields(module.Event)[0].default is dataclasses.MISSING
