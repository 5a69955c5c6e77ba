"""A harness loads a program like a worker, but does not change the script's classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from pillarbox.testing import ProgramTestHarness

SCRIPT = """
from dataclasses import dataclass
from enum import Enum
from pillarbox import KeyedProcessFunction

seen = []


class Listener:
    def note(self, what):
        seen.append(what)


class Kind(Enum):
    SMALL = 1

    def note(self):
        seen.append(self)


@dataclass
class Payment:
    card: str

    def note(self):
        seen.append(self.card)


class Notes(KeyedProcessFunction):
    def process_element(self, payment, ctx):
        payment.note()
        yield Payment(payment.card)


def made_in_a_function():
    class Local(Notes):
        def note(self):
            seen.append("local")

    return Local
"""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(SCRIPT, vars(main))
    yield main


@pytest.mark.parametrize("is_local", [False, True])
def test_methods_of_classes_of_a_script_keep_their_globals(script: Any, is_local: bool) -> None:
    function = script.made_in_a_function() if is_local else script.Notes

    def build(env: Any, payments: Any) -> Any:
        return payments.key_by(lambda payment: payment.card).process(function()).uid("notes")

    with ProgramTestHarness(build) as harness:
        harness.push("payments", script.Payment("a"))
        harness.run_epoch()
        assert harness.get_output() == [script.Payment("a")]
    script.Listener().note("after")
    script.Kind.SMALL.note()
    assert script.seen == ["a", "after", script.Kind.SMALL]
    for kind in (script.Listener, script.Kind, script.Payment, function):
        methods = [
            member for member in vars(kind).values() if hasattr(member, "__code__") and member.__name__ == "note"
        ]
        assert all(method.__globals__ is vars(script) for method in methods)
