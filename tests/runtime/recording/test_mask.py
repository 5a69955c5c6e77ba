"""Masked recordings: nothing of the fields is left, the task does the same, and what cannot be masked is refused."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from pillarbox import ConfigurationError, KeyedProcessFunction, MapStateDescriptor, Row, ValueStateDescriptor
from pillarbox.testing import ProgramTestHarness
from pillarbox_tools.recording.mask import StandIns, masked
from pillarbox_tools.recording.recording import Recording, read_recording, write_recording
from pillarbox_tools.replay.replay import replay
from tests.support.recorded import recorded

CARDS = [f"secret-card-{number}" for number in range(30)]
NAMES = [f"secret-name-{number}" for number in range(7)]


@dataclasses.dataclass
class Last:
    """A value of a class of the user's in state."""

    name: str
    amount: int


class Spent(KeyedProcessFunction):
    """Keeps what a card has spent, by the name of the payer."""

    def open(self, ctx: Any) -> None:
        self.last = ctx.get_state(ValueStateDescriptor("last"))
        self.names = ctx.get_map_state(MapStateDescriptor("names"))

    def process_element(self, payment: Any, ctx: Any) -> Any:
        self.last.update(Last(payment.name, payment.amount))
        self.names.put(payment.name, (self.names.get(payment.name) or 0) + payment.amount)
        ctx.timer_service().register_processing_time_timer(5_000)
        yield payment.card, sum(self.names.values())


def tasks_of(folder: Path, by: Any = "card") -> list[Recording]:
    """Two epochs of two tasks."""

    def build(env: Any, payments: Any) -> Any:
        return payments.key_by(by).process(Spent(), processing_time=True).uid("spent")

    folder.mkdir(exist_ok=True)
    with recorded(folder) as found, ProgramTestHarness(build, parallelism=2) as harness:
        for _ in range(2):
            for number, card in enumerate(CARDS):
                harness.push("payments", Row(card=card, name=NAMES[number % 7], amount=number))
            harness.run_epoch()
    return [each for each in map(read_recording, found) if each.facts.level]


def mask(recording: Recording, fields: Any) -> Recording:
    """Write a recording once more, masked."""
    changed = masked(recording.folder, recording.facts, recording.shipped, fields, recording.state, recording.after)
    write_recording(recording.folder, changed[0], pickle.dumps(recording.shipped), *changed[1:])
    return read_recording(recording.folder)


def content(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir() if each.name != "program")


def test_nothing_of_the_fields_is_left_and_the_task_does_the_same(tmp_path):
    for recording in tasks_of(tmp_path):
        assert b"secret-" in content(recording.folder)
        found = replay(mask(recording, ["card", "name", "names"]), diff=True)
        assert b"secret-" not in content(recording.folder)
        assert (found.error, found.differs, found.state) == (None, [], [])
        assert found.records > 10


def test_a_name_that_nothing_has_is_refused(tmp_path):
    """It may be misspelt, and the recording would have what it was to hide."""
    says = "no record and no state of the task has the name 'crad', .*; they have 'amount', 'card', 'last', 'name'"
    with pytest.raises(ConfigurationError, match=says):
        mask(tasks_of(tmp_path)[0], ["card", "crad"])


def test_a_function_of_the_users(tmp_path):
    def hide(name: str, value: Any) -> Any:
        return f"nobody-{value[-1]}" if name == "name" else value

    for recording in tasks_of(tmp_path):
        again = mask(recording, hide)
        assert b"nobody-" in content(again.folder)
        found = replay(again, diff=True)
        # The keys of the state `names` are asked for by its name.
        assert {each.state for each in found.state or []} == {"names"}


def test_what_would_become_another_tasks_is_refused(tmp_path):
    by_function = tasks_of(tmp_path / "one", lambda payment: payment.card)[0]
    with pytest.raises(ConfigurationError, match=r"the key 'secret-card-\d+' would become '.*', which belongs to"):
        mask(by_function, ["card"])
    by_two = tasks_of(tmp_path / "two", ["card", "name"])[0]
    with pytest.raises(ConfigurationError, match="is keyed by the columns card, name, of which 'name' cannot be"):
        mask(by_two, ["name"])


def test_a_value_without_a_stand_in_is_refused(tmp_path):
    (task, *_) = tasks_of(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"the field 'last' holds <.*Last>, and a Last has no stand-in: mask it by a"
    ):
        mask(task, ["last"])


@pytest.mark.parametrize("value", [bytearray(b"a"), Last("a", 1), 1 + 2j])
def test_what_has_no_stand_in_is_an_error_that_names_the_field(value):
    with pytest.raises(ConfigurationError, match=r"the field 'name' holds .* has no stand-in: mask it by a function"):
        StandIns(["name"], 128, [])("name", value)
