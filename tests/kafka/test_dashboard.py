"""The dashboard of a query that reads Kafka: the record that holds event time back, and the backlog."""

from __future__ import annotations

import os
from typing import Any

import pytest

import pillarbox
from pillarbox import KeyedProcessFunction, WatermarkStrategy
from pillarbox_tools.dashboard.views import view_of
from pillarbox_tools.model.epochs import rows_left
from pillarbox_tools.watching.following import watched_query
from tests.kafka.shop import Shop

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("a query that reads Kafka"),
    pytest.mark.timeout(600),
    pytest.mark.skipif("PILLARBOX_KAFKA" not in os.environ, reason="takes a Kafka: make test-kafka runs it"),
]


class Cards(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (value.card,)


def test_a_stuck_watermark_names_its_partition_and_offset(shop: Shop) -> None:
    shop.create("payments", 2)
    # Event time of partition 0 is far behind.
    rows = [(0, "ann", 1_000), (1, "bob", 5_000), (0, "ann", 2_000), (1, "bob", 9_000)]
    frame = shop.spark.createDataFrame(rows, "partition INT, key STRING, at LONG").coalesce(1)
    written = frame.selectExpr("partition", "key", "CAST(at AS STRING) AS value").write.format("kafka")
    written.option("kafka.bootstrap.servers", shop.servers).option("topic", shop.full("payments")).save()
    read = shop.spark.readStream.format("kafka").option("kafka.bootstrap.servers", shop.servers)
    payments = (
        read.option("subscribe", shop.full("payments"))
        .options(startingOffsets="earliest", maxOffsetsPerTrigger="4")
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS card", "CAST(CAST(value AS STRING) AS LONG) AS at", "topic", "partition", "offset"
        )
    )
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner("at")
    stream = shop.environment(2).from_dataframe(payments).name("payments").assign_timestamps_and_watermarks(times)
    cards = stream.key_by("card").process(Cards()).uid("cards").to_dataframe("card STRING").writeStream.format("noop")
    query = pillarbox.start(cards.option("checkpointLocation", str(shop.folder / "checkpoint")))
    try:
        query.processAllAvailable()
    finally:
        query.stop()
        query.awaitTermination()
    snapshot = watched_query(query, "the test").snapshot()
    [held] = view_of(snapshot)["watermarks"]
    assert (held.watermark, held.latest) == (1_999, 2_000)
    assert held.place == {"topic": shop.full("payments"), "partition": 0, "offset": 1}
    assert f"its newest record is topic {shop.full('payments')}, partition 0, offset 1" in held.message
    with_rows = [epoch for epoch in snapshot.epochs if epoch.rows]
    assert [(row.rows, rows_left(row)) for row in with_rows] == [(4, 0)]
