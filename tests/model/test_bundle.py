"""Bundles: included and omitted data, and invalid files."""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._errors import ConfigurationError
from pillarbox._reports.failure import Failure
from pillarbox_tools.dashboard.views import view_of
from pillarbox_tools.model.bundle import read_bundle, write_bundle
from pillarbox_tools.model.snapshot import FORMAT, Snapshot, SnapshotRun
from tests.model.made import START, keyed, model, progress, source

#: Parts of a key, a record and a message, which a file without records must not have.
KEY, RECORD, MESSAGE = "ann-7f3d", "jones-91c2", "amount-of-4711"
PLANTED = (KEY, RECORD, MESSAGE)
FRAME = 'File "/home/me/program.py", line 17'
NOTES = ['{"programs": []}']
BUDGETED = {"count.longest_key": 3, "count.budget.model.spent": 40}
STATE: dict[str, Any] = {
    "operators": [{"uid": "count", "keys": 3, "largest": [[KEY, 100]], "bytes_of": {"seen": 900, "timer": 100}}]
}


def _failure() -> Failure:
    message = (
        f"operator 'count' failed at {RECORD}: ValueError: {MESSAGE}\n  {FRAME}, in process_element\n    {MESSAGE}"
    )
    position: dict[str, Any] = {
        "operator": "count",
        "uid": "count",
        "subtask": 1,
        "epoch": 3,
        "attempt": 0,
        "host": "host",
    }
    return Failure("OperatorError", "ValueError", key=KEY, record=RECORD, number=7, message=message, **position)


def snapshot() -> Snapshot:
    query = model()
    sample = [400, [[repr(KEY), 200], [repr(RECORD), 50]]]
    users = {f"count.seen {KEY}": 1, f"count.failed {KEY}": 1, f"count.{KEY}.failed": 1, f"map-3.{KEY}.requests": 1}
    counters = {**users, "count.dead_letters": 2, **BUDGETED}
    tasks = [
        source(records_in=9, event_times=[1, 2, {"file": f"{RECORD}.json"}]),
        keyed(
            records_in=9,
            key_sample=sample,
            hot_keys={"count": KEY},
            counters=counters,
            gauges={f"count.{MESSAGE}": 1.0},
        ),
    ]
    address = {
        "description": f"PubSub[https://user:{KEY}@example.com]",
        "numInputRows": 9,
        "startOffset": {"file": RECORD},
        "endOffset": {"file": RECORD},
        "latestOffset": {"file": RECORD},
        "metrics": {"behind": "7", "newest": MESSAGE},
    }
    query.progressed(progress(1, *tasks, sources=[address]))
    query.failed(f"pillarbox.OperatorError: {MESSAGE}")
    result = query.snapshot()
    run = replace(result.run, failures=[*result.run.failures, _failure()])
    return replace(result, run=run, earlier=[SnapshotRun("before", START, status="failed", failures=[_failure()])])


def written(path: Path, *, with_records: bool) -> bytes:
    write_bundle(path, snapshot(), NOTES, STATE, with_records=with_records)
    with zipfile.ZipFile(path) as archive:
        return path.read_bytes() + b"".join(archive.read(name) for name in archive.namelist())


def test_there_are_no_keys_and_no_records_in_it(tmp_path: Path) -> None:
    content = written(tmp_path / "b.zip", with_records=False)
    assert [secret for secret in PLANTED if secret.encode() in content] == []
    bundle = read_bundle(tmp_path / "b.zip")
    [_, failure] = bundle.run.failures
    assert (failure.error, failure.cause, failure.uid, failure.number) == ("OperatorError", "ValueError", "count", 7)
    assert FRAME in failure.message
    # How heavy keys are is no secret.
    [sample] = [task.key_sample for task in bundle.epochs[-1].tasks if task.key_sample]
    assert sample == [400, [["key 1", 200], ["key 2", 50]]]
    [source] = bundle.epochs[-1].sources
    assert (source.description, source.rows, source.metrics, source.end) == ("PubSub", 9, {"behind": "7"}, None)
    assert (
        bundle.run.moments[-1].counters
        == bundle.epochs[-1].vertices[1].counters
        == {"count.dead_letters": 2, **BUDGETED}
    )


def test_with_records_all_of_it_is_there(tmp_path: Path) -> None:
    content = written(tmp_path / "b.zip", with_records=True)
    assert [secret for secret in PLANTED if secret.encode() not in content] == []
    assert read_bundle(tmp_path / "b.zip").earlier[0].failures == [_failure()]


def test_it_says_what_it_is(tmp_path: Path) -> None:
    content = written(tmp_path / "b.zip", with_records=False).decode("utf-8", "replace")
    assert "It holds no keys and no records" in content
    assert "It holds keys, records" in written(tmp_path / "b.zip", with_records=True).decode("utf-8", "replace")


def test_it_opens_without_a_query(tmp_path: Path) -> None:
    written(tmp_path / "b.zip", with_records=False)
    view = view_of(read_bundle(tmp_path / "b.zip"))
    assert (view["id"], view["status"], view["is_live"]) == ("q", "failed", False)
    assert view["missing"] == ["This is a bundle: b.zip."]
    assert view["plan"]["vertices"][1]["run"].records_in == 9
    assert [run.status for run in view["earlier"]] == ["failed"]
    assert view["state_sizes"] == {"count": {"seen": 900, "timer": 100}}


def test_a_former_file_stays_until_the_new_one_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    written(path, with_records=False)
    before = path.read_bytes()
    unwritable: Any = {"operators": [{"uid": "count", "keys": {1, 2}}]}
    with pytest.raises(TypeError):
        write_bundle(path, snapshot(), NOTES, unwritable, with_records=True)
    assert path.read_bytes() == before


def _zip(path: Path, **files: Any) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(f"{name}.json", content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    "content",
    [
        {},
        [],
        5,
        "half of {",
        {"format": FORMAT},
        {"format": "new"},
        {**asdict(model().snapshot()), "run": None},
        {**asdict(model().snapshot()), "run": 5},
        {**asdict(model().snapshot()), "epochs": 5},
        {**asdict(model().snapshot()), "epochs": ["x"]},
        {**asdict(model().snapshot()), "plan": []},
    ],
)
def test_a_file_with_something_else_is_one_sentence(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "b.zip"
    _zip(path, snapshot=content)
    with pytest.raises(ConfigurationError, match=r"b\.zip is not a pillarbox bundle, or is damaged: ") as refused:
        read_bundle(path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"a text"])
def test_a_file_that_is_no_archive_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="is not a pillarbox bundle, or is damaged"):
        read_bundle(path)
    _zip(path, other={})
    with pytest.raises(ConfigurationError, match="is not a pillarbox bundle, or is damaged"):
        read_bundle(path)


def test_a_later_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    _zip(path, snapshot={"format": FORMAT + 1})
    with pytest.raises(
        ConfigurationError, match=f"has format {FORMAT + 1}, but this version of pillarbox reads format"
    ):
        read_bundle(path)


@given(data=st.data())
def test_a_damaged_bundle_is_read_right_or_is_one_sentence(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "b.zip"
    if not path.exists():
        written(path, with_records=True)
        (tmp_path / "whole").write_bytes(path.read_bytes())
    content = bytearray((tmp_path / "whole").read_bytes())
    for index in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=3), "places"):
        content[index] ^= data.draw(st.integers(1, 255), "bits")
    (tmp_path / "damaged.zip").write_bytes(content[: data.draw(st.integers(0, len(content)), "length")])
    try:
        bundle = read_bundle(tmp_path / "damaged.zip")
    except ConfigurationError as error:
        assert "\n" not in str(error)
    else:
        assert replace(bundle, missing=[]) == replace(read_bundle(path), missing=[])
