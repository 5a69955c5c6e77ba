"""Two versions of a program on one recording have equal results, or differ first at some record."""

from __future__ import annotations

import importlib
import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pillarbox import ConfigurationError, KeyedProcessFunction, ListStateDescriptor, Row, ValueStateDescriptor
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox.testing import ProgramTestHarness
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.comparison import Comparison, compare_programs
from pillarbox_tools.replay.replay import replay
from pillarbox_tools.replay.states import compare_logs
from tests.support.recorded import recorded


class Adds(KeyedProcessFunction):
    def __init__(self, *, leave_out: int = -1, fails_at: int = -1, at_timer: str = "") -> None:
        self.leave_out = leave_out
        self.fails_at = fails_at
        self.at_timer = at_timer

    def open(self, ctx: Any) -> None:
        self.total = ctx.get_state(ValueStateDescriptor("total"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        key, amount = payment
        if amount == self.fails_at:
            raise ValueError(amount)
        total = (self.total.value() or 0) + (0 if amount == self.leave_out else amount)
        self.total.update(total)
        ctx.timer_service().register_processing_time_timer(5_000)
        yield key, total

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        if self.at_timer:
            yield self.at_timer


class AddsWithList(Adds):
    def open(self, ctx: Any) -> None:
        super().open(ctx)
        self.amounts = ctx.get_list_state(ListStateDescriptor("amounts"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment[0] == "b":
            self.amounts.add(payment[1])
        yield from super().process_element(payment, ctx)


def program(function: Any) -> Any:
    def build(env: Any, payments: Any) -> Any:
        return payments.key_by(lambda payment: payment[0]).process(function, processing_time=True).uid("adds")

    return build


@pytest.fixture
def task(tmp_path: Path) -> Path:
    with recorded(tmp_path) as result, ProgramTestHarness(program(Adds())) as harness:
        harness.push("payments", *((key, 10) for key in "abc"))
        harness.run_epoch()
        harness.push("payments", *((key, amount) for amount in (1, 2, 3) for key in "abc"))
        harness.set_processing_time(10_000)
        harness.run_epoch()
    return [path for path in result if read_recording(path).facts.level][-1]


def vertex(function: Any, build: Any = None) -> ShippedVertex:
    with ProgramTestHarness(build or program(function)) as harness:
        return next(vertex for vertex in harness._job._shipped if vertex.load().uid == "adds")


def compare(task: Path, function: Any) -> Comparison:
    return compare_programs(read_recording(task), vertex(function))


def test_the_same_program_does_the_same(task):
    comparison = compare(task, Adds())
    assert (comparison.is_same, comparison.records, comparison.sent, comparison.keys) == (True, 9, (9, 9), 0)


def test_the_first_record_that_shows_another_output(task):
    comparison = compare(task, Adds(leave_out=2))
    assert not comparison.is_same
    first = comparison.first
    assert first is not None
    assert (first.number, first.key, first.record) == (4, "'a'", "('a', 2)")
    assert first.before["total"] == "11"
    assert (first.then.state["total"], first.now.state["total"]) == ("13", "11")
    assert (first.then.output, first.now.output) == (["('a', 13)"], ["('a', 11)"])
    assert comparison.keys == 3


def test_a_state_that_only_one_of_them_has(task):
    comparison = compare(task, AddsWithList())
    first = comparison.first
    assert first is not None
    assert (first.number, first.key) == (2, "'b'")
    assert first.then.output == first.now.output == ["('b', 11)"]
    assert "amounts" not in first.then.state
    assert first.now.state["amounts"] == "[1]"
    assert (comparison.keys, comparison.sent) == (1, (9, 9))


def test_one_of_them_fails(task):
    first = compare(task, Adds(fails_at=3)).first
    assert first is not None
    assert (first.number, first.record, first.then.error) == (7, "('a', 3)", None)
    assert "ValueError: 3" in str(first.now.error)


def test_another_output_of_a_timer_is_the_first_difference(task):
    comparison = compare(task, Adds(at_timer="silent"))
    first = comparison.first
    assert first is not None
    # The timers fire after the last record.
    assert (first.number, first.record, first.then.output) == (10, None, [])
    assert first.now.output == ["'silent'"] * 3


def test_another_shape_is_refused(task):
    def build(env: Any, payments: Any, others: Any) -> Any:
        keyed = payments.union(others).key_by(lambda payment: payment[0])
        return keyed.process(Adds(), processing_time=True).uid("adds")

    with ProgramTestHarness(build) as harness:
        other = next(vertex for vertex in harness._job._shipped if vertex.load().uid == "adds")
    with pytest.raises(ConfigurationError, match="operator 'adds' has 2 inputs in the other program, but 1 in the"):
        compare_programs(read_recording(task), other)


class Bills(Adds):
    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def process_element(self, payment: Any, ctx: Any) -> Any:
        bill = Row(card=payment[0], what="goods " * 100, prices={"net": payment[1], "all": payment[1] * self.times})
        self.total.update([bill])
        yield bill


def test_a_difference_after_long_text_is_found_and_named(tmp_path):
    with recorded(tmp_path) as result, ProgramTestHarness(program(Bills(1))) as harness:
        harness.push("payments", ("a", 1))
        harness.run_epoch()
    task = next(path for path in result if read_recording(path).facts.level)
    assert compare(task, Bills(1)).is_same
    first = compare(task, Bills(1000)).first
    assert first is not None
    assert sorted(first.parts) == [
        "output.prices['all'] is 1 in the recorded program, but 1000 in the other",
        "state total[0].prices['all'] is 1 in the recorded program, but 1000 in the other",
    ]


@dataclass(frozen=True)
class SameText:
    """A key class whose objects all have the same repr."""

    number: int

    def __repr__(self) -> str:
        return "key"


def test_keys_of_one_text_are_several(tmp_path):
    def epoch(folder: Path, first: int) -> Any:
        folder.mkdir()
        with recorded(folder) as result, ProgramTestHarness(program(Adds())) as harness:
            harness.push("payments", (SameText(1), first), (SameText(2), 2), (SameText(3), 3))
            harness.run_epoch()
        recording = read_recording(next(path for path in result if read_recording(path).facts.level))
        store = MemoryChunkStore()
        store.chunks = dict(recording.after or {})
        return store

    log, other_log = epoch(tmp_path / "one", 1), epoch(tmp_path / "other", 7)
    assert compare_logs(log, log, 0) == []
    (difference,) = compare_logs(log, other_log, 0)
    assert (difference.owner, difference.state) == ("SameText(.number 1)", "total")
    assert (difference.then, difference.now) == ("1", "7")


class Calls(Adds):
    def process_element(self, payment: Any, ctx: Any) -> Any:
        if payment[1] == 2 and "CALLS_OF_TEST" in os.environ:
            socket.create_connection(("127.0.0.1", 9)).close()
        yield from super().process_element(payment, ctx)


def test_one_of_them_stops_at_a_call(task, monkeypatch):
    monkeypatch.setenv("CALLS_OF_TEST", "1")
    first = compare(task, Calls()).first
    assert first is not None
    assert (first.number, first.then.error) == (4, None)
    assert "would connect to 127.0.0.1:9" in str(first.now.error)


def test_programs_that_stop_at_a_call_are_not_the_same(tmp_path, monkeypatch):
    with recorded(tmp_path) as result, ProgramTestHarness(program(Calls())) as harness:
        harness.push("payments", ("a", 1), ("b", 2))
        harness.run_epoch()
    task = next(path for path in result if read_recording(path).facts.level)
    assert compare(task, Calls()).is_same
    monkeypatch.setenv("CALLS_OF_TEST", "1")
    trial = compare(task, Calls())
    assert (trial.first, trial.only_end, trial.is_same) == (None, [], False)
    assert "would connect to 127.0.0.1:9" in str(trial.unanswered)


MODULE = """
from pillarbox import KeyedProcessFunction, ValueStateDescriptor
from dataclasses import dataclass
import prices_of_test


@dataclass
class Bill:
    card: str
    price: int


class Bills(KeyedProcessFunction):
    def open(self, ctx):
        self.last = ctx.get_state(ValueStateDescriptor("last"))

    def process_element(self, payment, ctx):
        bill = Bill(payment[0], payment[1] * prices_of_test.TIMES)
        self.last.update(bill)
        {more}
        yield bill
"""


class Modules:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, times: int, more: str = "pass") -> Any:
        (self.folder / "bills_of_test.py").write_text(MODULE.format(more=more))
        (self.folder / "prices_of_test.py").write_text(f"TIMES = {times}\n")
        self.forget()
        importlib.invalidate_caches()
        return importlib.import_module("bills_of_test").Bills()

    def forget(self) -> None:
        for name in ("bills_of_test", "prices_of_test", "later_of_test"):
            sys.modules.pop(name, None)


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    (tmp_path / "modules").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    result = Modules(tmp_path / "modules")
    yield result
    result.forget()


def bills(folder: Path, function: Any) -> Path:
    folder.mkdir()
    with recorded(folder) as result, ProgramTestHarness(program(function)) as harness:
        harness.push("payments", ("a", 1), ("b", 2))
        harness.run_epoch()
        harness.push("payments", ("a", 3))
        harness.run_epoch()
    return [path for path in result if read_recording(path).facts.level][-1]


def test_each_program_has_its_own_version_of_a_module(tmp_path, modules):
    task = bills(tmp_path / "recordings", modules.write(1))
    assert compare(task, modules.write(1)).is_same
    first = compare(task, modules.write(1000)).first
    assert first is not None
    assert sorted(first.parts) == [
        "output.price is 3 in the recorded program, but 3000 in the other",
        "state last.price is 3 in the recorded program, but 3000 in the other",
    ]
    assert sys.modules["prices_of_test"].TIMES == 1000  # as it was before


def test_a_module_that_the_recording_lacks_is_refused(tmp_path, modules):
    (modules.folder / "later_of_test.py").write_text("TIMES = 1\n")
    more = "__import__('later_of_test')"
    task = bills(tmp_path / "recordings", modules.write(1, more))
    sources = task / "sources.json"
    sources.write_text(sources.read_text().replace('"later_of_test"', '"another"'))
    with pytest.raises(ConfigurationError, match="does not contain the source code of the module later_of_test"):
        compare(task, modules.write(1, more))


def test_a_module_that_is_imported_later_is_recorded(tmp_path, modules):
    (modules.folder / "later_of_test.py").write_text("TIMES = 1\n")
    function = modules.write(1, "\n        if payment[1] > 5:\n            import later_of_test")
    sources, versions = read_recording(bills(tmp_path / "recordings", function)).modules()
    assert {"bills_of_test", "prices_of_test", "later_of_test", "tests"} <= sources.keys()
    assert not {"pillarbox", "json", "pytest", "pyspark"} & sources.keys()
    assert "pytest" in versions


def test_a_module_that_is_missing_is_asked_for(tmp_path, modules, monkeypatch):
    task = bills(tmp_path / "recordings", modules.write(1))
    modules.forget()
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(modules.folder)])
    with pytest.raises(ConfigurationError, match=r"No module named 'bills_of_test'\. Add the .* to PYTHONPATH"):
        replay(read_recording(task))


def test_a_module_that_a_function_imports_later_is_asked_for(tmp_path, modules):
    (modules.folder / "later_of_test.py").write_text("TIMES = 1\n")
    task = bills(tmp_path / "recordings", modules.write(1, "__import__('later_of_test')"))
    modules.forget()
    (modules.folder / "later_of_test.py").unlink()
    rerun = replay(read_recording(task), diff=True)
    assert rerun.differs == ["the task failed in the replay, but not in the epoch"]
    assert "a module is missing: add its folder to PYTHONPATH" in rerun.reasons


class KeepsObjects(KeyedProcessFunction):
    """Stores an object of a script's class, and emits an object of a local class."""

    def __init__(self, in_state: type, emitted: type) -> None:
        self.in_state = in_state
        self.emitted = emitted

    def open(self, ctx: Any) -> None:
        self.kept = ctx.get_state(ValueStateDescriptor("kept"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        self.kept.update(self.in_state(payment))
        yield self.emitted(payment)


def _classes(factor: int = 1) -> tuple[type, type]:
    class Account:
        def __init__(self, payment: Any) -> None:
            self.amount = payment[1] * factor

    class Local(Account): ...

    Account.__module__, Account.__qualname__ = "__main__", "Account"
    return Account, Local


def test_objects_of_a_scripts_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = sys.modules["__main__"]
    classes, same, other = _classes(), _classes(), _classes(2)
    monkeypatch.setattr(main, "Account", classes[0], raising=False)
    with recorded(tmp_path) as result, ProgramTestHarness(program(KeepsObjects(*classes))) as harness:
        harness.push("payments", ("a", 1), ("b", 2))
        harness.run_epoch()
    task = [path for path in result if read_recording(path).facts.level][-1]
    vertices = []
    for version in (same, other):
        monkeypatch.setattr(main, "Account", version[0])
        vertices.append(vertex(KeepsObjects(*version)))
    monkeypatch.delattr(main, "Account")
    comparisons = [compare_programs(read_recording(task), shipped) for shipped in vertices]
    assert [comparison.is_same for comparison in comparisons] == [True, False]
    first = comparisons[1].first
    assert first is not None
    assert first.parts == [
        "output.amount is 1 in the recorded program, but 2 in the other",
        "state kept.amount is 1 in the recorded program, but 2 in the other",
    ]
