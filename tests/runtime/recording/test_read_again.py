"""Before an epoch is read again, Spark's logs (in two formats) must show that its input exists. Spark is simulated."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pillarbox import CheckpointMismatchError
from pillarbox._runtime.spark.checkpoint.offset_entry import OffsetEntry
from pillarbox_tools.recording import sources

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}'
KAFKA = '{"topic":{"0":7}}'


def entry(version: str, *texts: str) -> OffsetEntry:
    return OffsetEntry((version, SETTINGS, *texts))


def at(number: int) -> str:
    return json.dumps({"logOffset": number})


VERSIONS = [
    ("0", lambda number: entry("v1", at(number), KAFKA)),
    ("payments", lambda number: entry("v2", f"topic:{KAFKA}", f"payments:{at(number)}")),
    ("10", lambda number: entry("v2", f"10:{at(number)}", f"9:{KAFKA}")),
]


@pytest.mark.parametrize(("folder", "written"), VERSIONS, ids=["by place", "by name", "by number"])
def test_files_of_an_epoch(folder: str, written: Callable[[int], OffsetEntry], monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {
        f"/c/sources/{folder}": {
            "2.compact": [json.dumps({"path": f"/in/{number}", "batchId": number}) for number in range(3)],
            "3": [json.dumps({"path": "/in/3", "batchId": 3})],
            "4": [json.dumps({"path": "/in/4", "batchId": 4})],
        }
    }

    class Notes:
        def __init__(self, spark: object, checkpoint: str) -> None:
            assert checkpoint == "/c"

        def offsets(self, epochs: list[int]) -> dict[int, OffsetEntry]:
            return {epoch: written({6: 1, 7: 3}[epoch]) for epoch in epochs}

    monkeypatch.setattr(sources, "Checkpoint", Notes)

    def folder_of(path: str) -> SimpleNamespace:
        files = logs.get(path, {})
        return SimpleNamespace(
            names=lambda: list(files),
            lines=lambda names: [(name, line) for name in names for line in files.get(name, ())],
        )

    monkeypatch.setattr(sources, "session_of", lambda spark: SimpleNamespace(folder=folder_of))
    assert list(sources._files_of(None, "/c", 7)) == ["/in/2", "/in/3"]  # type: ignore[arg-type]


def test_an_entry_that_is_not_there() -> None:
    nothing = OffsetEntry()
    assert (nothing.version, nothing.facts, nothing.time, nothing.sources, nothing.files) == ("v1", {}, None, {}, {})


def test_another_time() -> None:
    later = entry("v2", f"topic:{KAFKA}").at(1_700_000_000_001)
    assert later.time == 1_700_000_000_001
    assert later.facts.keys() == json.loads(SETTINGS).keys()
    assert later.lines[2:] == (f"topic:{KAFKA}",)


def test_a_log_that_a_later_spark_has_written_is_refused() -> None:
    later = entry("v3", f"topic:{KAFKA}")
    for what in ("sources", "files"):
        with pytest.raises(
            CheckpointMismatchError, match=r"offset log has version 'v3'.* reads only v1 and v2: update"
        ):
            getattr(later, what)
    assert later.time == 1_700_000_000_000  # the lines of the epoch itself have been the same in all versions
