from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pillarbox import CheckpointMismatchError, ConfigurationError
from pillarbox._runtime.spark.checkpoint import checkpoint as checkpoint_module
from pillarbox._runtime.spark.reading import inspection
from pillarbox_tools.cli import all_commands, commands, watching
from pillarbox_tools.model.bundle import read_bundle, write_bundle
from pillarbox_tools.watching import stored
from tests.model.made import keyed, model, progress, source


def called(*arguments: str) -> Result:
    return CliRunner().invoke(all_commands.commands, arguments)


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    asked: list[str] = []

    @contextmanager
    def session(master: str, settings: Any, *, verbose: bool) -> Iterator[None]:
        asked.append(master)
        yield None

    monkeypatch.setattr(commands, "session", session)
    return asked


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    results: list[Any] = []

    def look(opened: Any) -> None:
        with opened, urllib.request.urlopen(f"{opened.url}api/queries", timeout=30) as answer:
            results.extend(json.load(answer))

    monkeypatch.setattr(watching, "_serve", look)
    return results


def snapshot() -> Any:
    query = model()
    query.progressed(progress(1, source(records_in=9), keyed(records_in=9)))
    query.ended()
    return query.snapshot()


def test_a_bundle_is_shown_without_spark(tmp_path: Path, sessions: list[str], served: list[Any]) -> None:
    path = tmp_path / "b.zip"
    write_bundle(path, snapshot(), [], None, with_records=False)
    result = called("dashboard", str(path), "--port", "0")
    assert (result.exit_code, sessions) == (0, [])
    assert [(query["id"], query["status"], query["rows"]) for query in served] == [("q", "stopped", 9)]


def test_a_damaged_bundle_is_one_sentence(tmp_path: Path, sessions: list[str]) -> None:
    path = tmp_path / "b.zip"
    write_bundle(path, snapshot(), [], None, with_records=False)
    path.write_bytes(path.read_bytes()[:-40])
    result = called("dashboard", str(path), "--port", "0")
    assert (result.exit_code, sessions) == (1, [])
    [line] = result.stderr.splitlines()
    assert line.startswith(f"Error: {path} is not a pillarbox bundle, or is damaged: ")


def test_a_port_in_use_is_left_for_a_free_one(tmp_path: Path, served: list[Any]) -> None:
    path = tmp_path / "b.zip"
    write_bundle(path, snapshot(), [], None, with_records=False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = called("dashboard", str(path), "--port", str(port))
    assert (result.exit_code, len(served)) == (0, 1)
    assert f"port {port} of 127.0.0.1 is in use" in result.stderr


def test_an_empty_token_is_refused_before_a_session_starts(sessions: list[str], served: list[Any]) -> None:
    result = called("dashboard", "/checkpoints/counts", "--port", "0", "--token", "")
    assert (result.exit_code, sessions, served) == (1, [], [])
    assert result.stderr.startswith("Error: --token: the token is an empty string")


def test_a_checkpoint_is_shown_by_a_session(
    monkeypatch: pytest.MonkeyPatch, sessions: list[str], served: list[Any]
) -> None:
    monkeypatch.setattr(stored, "stored_snapshot", lambda spark, checkpoint: snapshot())
    result = called("dashboard", "/checkpoints/counts", "--port", "0", "--master", "local[3]")
    assert (result.exit_code, sessions) == (0, ["local[3]"])
    assert [entry["id"] for entry in served] == ["q"]


def test_the_error_for_another_directory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(spark: Any, checkpoint: str) -> Any:
        raise CheckpointMismatchError(f"{checkpoint} is not a checkpoint of a query")

    monkeypatch.setattr(stored, "stored_snapshot", none)
    result = called("dashboard", "/checkpoints/none", "--port", "0")
    assert (result.exit_code, result.stderr) == (1, "Error: /checkpoints/none is not a checkpoint of a query\n")


@pytest.mark.parametrize("ends", ["closed", "interrupted"])
def test_the_command_ends_with_the_dashboard_or_at_ctrl_c(
    ends: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    looks: list[str] = []

    class Opened:
        url = "http://127.0.0.1:1/"

        @property
        def is_open(self) -> bool:
            looks.append("look")
            if ends == "interrupted" and len(looks) == 2:
                raise KeyboardInterrupt
            return len(looks) < 3

        def __enter__(self) -> Opened:
            return self

        def __exit__(self, *error: object) -> None:
            looks.append("close")

    monkeypatch.setattr(watching, "_LOOK_EVERY", 0)
    watching._serve(Opened())
    assert looks == ["look"] * (3 if ends == "closed" else 2) + ["close"]
    assert capsys.readouterr().out == "http://127.0.0.1:1/\n"


def test_the_memory_of_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    query = model()
    homes = [keyed(subtask=number, host="one", executor=7, process=number, private_bytes=30 << 20) for number in (0, 1)]
    query.progressed(progress(1, *homes))
    monkeypatch.setattr(stored, "stored_snapshot", lambda spark, checkpoint: query.snapshot())
    result = called("memory", "/checkpoints/counts")
    assert result.exit_code == 0
    for words in ("executor on one, process 7", "2 x 20 MiB", "homes, measured", "60 MiB", "no known limit"):
        assert words in result.stdout
    lines = result.stdout.splitlines()
    assert lines[-2:] == ["1 executor: 1.6 GiB with their heaps", "spark.executor.memoryOverhead=800m"]
    document = json.loads(called("memory", "/checkpoints/counts", "--json").stdout)
    assert document["settings"] == {"spark.executor.memoryOverhead": "800m"}
    [executor] = document["executors"]
    assert (executor["host"], executor["executor"], executor["home_bytes"]) == ("one", 7, 60 << 20)
    assert sum(term["bytes"] for term in executor["terms"]) == executor["computed"]


def test_a_query_whose_tasks_have_told_nothing_of_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "stored_snapshot", lambda spark, checkpoint: snapshot())
    result = called("memory", "/checkpoints/counts")
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line.startswith("Error: /checkpoints/counts: no task has reported its memory")


@pytest.fixture
def checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(spark: Any, checkpoint: str) -> Any:
        raise ConfigurationError("no Spark here")

    monkeypatch.setattr(stored, "stored_snapshot", lambda spark, checkpoint: snapshot())
    monkeypatch.setattr(checkpoint_module, "Checkpoint", lambda spark, checkpoint: SimpleNamespace(lines=["{}"]))
    monkeypatch.setattr(inspection, "inspect_checkpoint", unreadable)


@pytest.mark.usefixtures("checkpoint")
def test_a_bundle_is_made_also_where_the_state_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    result = called("bundle", "/checkpoints/counts", str(path), "--json")
    assert result.exit_code == 0
    assert result.stderr == "the bundle has no state: no Spark here\n"
    assert json.loads(result.stdout) == {
        "file": str(path),
        "bytes": path.stat().st_size,
        "records": False,
        "runs": 1,
    }
    assert read_bundle(path).run.status == "stopped"


@pytest.mark.usefixtures("checkpoint")
def test_a_bundle_says_whether_it_has_records(tmp_path: Path) -> None:
    output = called("bundle", "/checkpoints/counts", str(tmp_path / "b.zip")).stdout
    assert output.endswith("bytes, without keys and records\n")
    output = called("bundle", "/checkpoints/counts", str(tmp_path / "b.zip"), "--with-records").stdout
    assert output.endswith("bytes\n")
