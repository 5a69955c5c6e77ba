"""In a replay, ``ctx.call`` returns the recorded answers, and makes no call."""

from __future__ import annotations

import asyncio
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

from pillarbox import KeyedProcessFunction, ValueStateDescriptor
from pillarbox._operators.calls.journal import Entry, read_entries
from pillarbox.testing import FakeService, ProgramTestHarness
from pillarbox_tools.recording.recording import read_recording
from pillarbox_tools.replay.replay import Replay, replay
from tests.support.recorded import recorded

QUERY = "q"


class Charges(KeyedProcessFunction[Any, Any]):
    """Makes two calls for each card, and counts the answered cards."""

    def __init__(self, bank: FakeService) -> None:
        self.bank = bank

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", int, default=0))

    async def process_element(self, card: Any, ctx: Any) -> Any:
        first = await ctx.call(self.bank, card, 1)
        yield first, await ctx.call(self.bank, card, 2)
        self.count.update(self.count.value() + 1)


def epochs_of(folder: Path, bank: FakeService, *epochs: list[str], **options: Any) -> list[Path]:
    """Run epochs, and return a recording of the keyed task in each epoch."""

    def build(env: Any, cards: Any) -> Any:
        return cards.key_by(lambda card: card).process(Charges(bank), **options).uid("charges")

    with recorded(folder) as tasks, ProgramTestHarness(build) as harness:
        for cards in epochs:
            harness.push("cards", *cards)
            harness.run_epoch()
    return [task for task in tasks if read_recording(task).facts.level]


def rerun(task: Path, bank: FakeService, **options: Any) -> Replay:
    before = len(bank.requests)
    result = replay(read_recording(task), diff=True, **options)
    assert options or len(bank.requests) == before
    return result


def test_answers_in_the_state_are_used_and_the_next_call_is_refused(tmp_path: Path) -> None:
    bank = FakeService(lambda card, number: f"{number} of {card}")
    bank.hang(after=1)
    _, second = epochs_of(tmp_path, bank, ["ann"], [], on_barrier="carry")
    result = rerun(second, bank)
    assert "operator 'charges' calls pillarbox.testing._fake_service.FakeService('ann', 2)" in str(result.unanswered)
    assert "the recording has no result. Pass --allow-calls" in str(result.unanswered)
    assert result.failure is None


def test_a_journal_has_the_answers_of_the_epoch(tmp_path: Path) -> None:
    bank = FakeService(lambda card, number: f"{number} of {card}")
    journal = (tmp_path / "journal").as_uri()
    (tmp_path / "tasks").mkdir()
    (task,) = epochs_of(tmp_path / "tasks", bank, ["ann", "bob"], journal=journal)
    without = rerun(task, bank)
    assert "('ann', 1)" in str(without.unanswered)
    entries = answers_in(tmp_path / "journal")
    (task / "answers").write_bytes(pickle.dumps({"charges": entries}))
    result = rerun(task, bank)
    assert (result.unanswered, result.sent, result.is_same) == (None, 2, True)


def test_a_call_that_the_journal_lacks_outlasts_the_epoch(tmp_path: Path) -> None:
    bank = FakeService(lambda card, number: f"{number} of {card}")
    bank.hang(after=1)
    (tmp_path / "tasks").mkdir()
    journal = (tmp_path / "journal").as_uri()
    (task,) = epochs_of(tmp_path / "tasks", bank, ["ann"], on_barrier="carry", journal=journal)
    (task / "answers").write_bytes(pickle.dumps({"charges": answers_in(tmp_path / "journal")}))
    result = rerun(task, bank)
    assert (result.unanswered, result.sent, result.is_same) == (None, 0, True)


def test_calls_that_are_allowed_are_made(tmp_path: Path) -> None:
    bank = FakeService(lambda card, number: f"{number} of {card}")
    (task,) = epochs_of(tmp_path, bank, ["ann"])
    assert "('ann', 1)" in str(rerun(task, bank).unanswered)
    assert rerun(task, bank, allow_calls=True).is_same
    # With the same idempotency keys.
    assert [request.outcome for request in bank.requests] == ["answered"] * 2 + ["repeated"] * 2


def answers_in(folder: Path) -> dict[int, list[Entry]]:
    """Return the entries of the only query's journal in a folder."""
    (query,) = folder.iterdir()
    ((subtask,),) = ([path.name for path in (query / "charges").iterdir()],)
    return read_entries(folder.as_uri(), query.name, "charges", int(subtask))


@pytest.mark.parametrize("on_barrier", ["drain", "carry"])
def test_a_request_without_ctx_call_stops_the_replay(tmp_path: Path, on_barrier: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        class Asks(KeyedProcessFunction[Any, Any]):
            async def process_element(self, card: Any, ctx: Any) -> Any:
                _, writer = await asyncio.open_connection(*server_address)
                writer.close()
                yield card

        server_address = server.getsockname()

        def build(env: Any, cards: Any) -> Any:
            return cards.key_by(lambda card: card).process(Asks(), on_barrier=on_barrier).uid("asks")

        with recorded(tmp_path) as tasks, ProgramTestHarness(build) as harness:
            harness.push("cards", "ann")
            harness.run_epoch()
        (task,) = [task for task in tasks if read_recording(task).facts.level]
        result = replay(read_recording(task))
        assert "operator 'asks'" in str(result.unanswered) and "would connect to 127.0.0.1:" in str(result.unanswered)
        assert replay(read_recording(task), allow_calls=True).error is None
