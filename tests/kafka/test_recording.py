from __future__ import annotations

import os

import pytest

import pillarbox
from pillarbox import CheckpointMismatchError
from tests.kafka.kafka_job import writer
from tests.kafka.shop import Shop
from tests.kafka.test_kafka import CARDS
from tests.support.recorded import replay_epochs

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PILLARBOX_KAFKA" not in os.environ, reason="takes a Kafka: make test-kafka runs it"),
]


def test_epochs_are_replayed_and_expired_records_are_an_error(shop: Shop) -> None:
    shop.create("payments", 2)
    shop.create("limits", 1)
    shop.pay("payments", CARDS)
    shop.pay("limits", {"limit 0": 0})
    sources = {"payments": shop.read("payments", maxOffsetsPerTrigger=30), "limits": shop.read("limits")}
    shop.run("first", shop.environment(2), sources)
    checkpoint = shop.folder / "first"
    again = writer(shop.environment(2), sources, checkpoint)
    tasks = [("total", 0), ("total", 1)]
    assert replay_epochs(again, str(checkpoint), tasks, shop.folder) >= 4
    # Messages that Kafka has deleted cannot be read again.
    shop.forget("payments", 0, 20)
    with pytest.raises(CheckpointMismatchError, match=r"could not be repeated: .* not available in Kafka any more; if"):
        pillarbox.record(
            again, str(shop.folder / "gone"), epoch=0, uid="total", subtask=0, checkpointLocation=str(checkpoint)
        )
    assert not (shop.folder / "gone").exists()
