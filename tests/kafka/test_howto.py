"""The program in docs/howto/kafka-to-kafka.md writes results to one topic, and bad messages to another."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pillarbox
from tests.kafka.broker import Broker
from tests.kafka.shop import Shop
from tests.support.docs import HOME, blocks

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow("from topic to topic, twice"),
    pytest.mark.timeout(600),
    pytest.mark.skipif("PILLARBOX_KAFKA" not in os.environ, reason="takes a Kafka: make test-kafka runs it"),
]

PAGE = HOME / "docs" / "howto" / "kafka-to-kafka.md"
GOOD = [("a", 1.5), ("b", 2.0), ("a", 3.0)]
BAD: dict[str | None, str] = {
    "not JSON": "JSONDecodeError: ",
    '{"card": "a"}': "KeyError: 'amount'",
    '{"card": "a", "amount": "much"}': "ValueError: could not convert string to float: 'much'",
    None: "TypeError: ",
}


@pytest.fixture
def page_shop(spark: Any, broker: Broker, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(spark, broker.servers, tmp_path, "")
    try:
        for topic in ("payments", "totals", "dead-letters"):
            shop.create(topic, 1)
        yield shop
    finally:
        shop.close()


def test_totals_and_dead_letters(page_shop: Shop, spark: Any) -> None:
    (source,) = blocks(PAGE, "py")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, str(PAGE), "exec"), names)

    def run() -> None:
        writer = names["job"](spark, page_shop.servers, str(page_shop.folder / "checkpoint"))
        pillarbox.start(writer.trigger(availableNow=True)).awaitTermination()

    def paid(card: str, amount: float) -> str:
        return json.dumps({"card": card, "amount": amount})

    page_shop.send("payments", [paid(*GOOD[0]), *BAD, *(paid(*payment) for payment in GOOD[1:])])
    run()
    totals = [tuple(json.loads(value).values()) for value in page_shop.values("totals")]
    assert Counter(totals) == Counter([("a", 1.5), ("a", 4.5), ("b", 2.0)])
    letters = [json.loads(value) for value in page_shop.values("dead-letters")]
    assert {letter.get("value") for letter in letters} == set(BAD) and len(letters) == len(BAD)
    assert all(letter["error"].startswith(BAD[letter.get("value")]) for letter in letters)

    # As on the page: the letters' values can be sent again, and are as bad as before here.
    page_shop.send("payments", [*(letter.get("value") for letter in letters), paid("b", 0.5)])
    run()
    assert json.loads(page_shop.values("totals")[-1]) == {"card": "b", "total": 2.5}
    assert Counter(page_shop.values("dead-letters")).total() == 2 * len(BAD)
