from __future__ import annotations

import os

import pytest

from pillarbox import ConfigurationError
from tests.operators.async_keyed.gates import opened
from tests.operators.calls.services import Calling, Service
from tests.operators.calls.test_journal import await_that, open_gates, two_calls
from tests.s3.gateway import BUCKET, KEYS, Gateway

pytestmark = [
    pytest.mark.slow("each file is several requests"),
    pytest.mark.skipif("PILLARBOX_S3" not in os.environ, reason="takes an S3 gateway: make test-s3 runs it"),
]


def test_answers_of_a_failed_epoch_are_used_again(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])
    address = gateway.endpoint.partition("//")[2]
    where = f"?endpoint_override={address}&scheme=http&region=us-east-1"
    service, journal = Service(), f"s3://{BUCKET}/journal{where}"
    with opened(Calling(service, two_calls), journal=journal) as harness:
        before = harness.snapshot()
        harness.push_all([("a", 1), ("b", 2)])
        open_gates(harness, service, 1, 2)
        await_that(harness, lambda: len(service.calls) == 4)
    service.restart()
    with opened(Calling(service, two_calls), journal=journal, snapshot=before) as harness:
        harness.push_all([("b", 2), ("a", 1)])
        open_gates(harness, service, ("second", "b"), ("second", "a"))
        harness.drain()
        assert sorted(harness.get_output()) == [("answer to 1", 2), ("answer to 2", 2)]
        harness.snapshot()
        harness.notify_of_completed_checkpoint(2)
        folder = gateway.objects / "journal" / "harness" / "Calling"
        await_that(harness, lambda: not any(path.is_file() for path in folder.rglob("*")))
    assert service.counts == {1: 1, 2: 1, ("second", "a"): 2, ("second", "b"): 2}
    assert len(list(folder.rglob("*"))) <= 2, "there is a folder for each epoch"


def test_wrong_credentials_are_an_error(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS[1])
    address = gateway.endpoint.partition("//")[2]
    journal = f"s3://{BUCKET}/journal?endpoint_override={address}&scheme=http&region=us-east-1"
    with (
        opened(Calling(Service(), two_calls), journal=journal) as harness,
        pytest.raises(ConfigurationError, match=rf"cannot read the journal 's3://{BUCKET}/journal.* credentials"),
    ):
        harness.push(("a", 1))
        harness.drain()
