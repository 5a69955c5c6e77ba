"""Programs that read from a real Kafka are killed, rescaled, stopped, and continued from savepoints.

The count and sum of each card's payments show that nothing is lost or duplicated.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pyspark
import pytest

import pillarbox
from pillarbox import CheckpointMismatchError
from tests.faults.processes import kill, start_python, wait_for
from tests.kafka.kafka_job import totals
from tests.kafka.shop import Shop, totals_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PILLARBOX_KAFKA" not in os.environ, reason="takes a Kafka: make test-kafka runs it"),
]

CARDS = {f"card {number}": number % 2 for number in range(6)}
OTHERS = {"limit 0": 0, "limit 1": 0}
NEW = {"new 2": 2, "new 3": 3}


def test_on_from_a_savepoint_with_more_partitions_and_other_tasks(shop: Shop) -> None:
    shop.create("payments", 2)
    shop.create("limits", 1)
    shop.pay("payments", CARDS)
    shop.pay("limits", OTHERS)

    def sources(**options: Any) -> dict[str, Any]:
        return {"payments": shop.read("payments", maxOffsetsPerTrigger=25, **options), "limits": shop.read("limits")}

    shop.run("first", shop.environment(2), sources())
    shop.save("first", "savepoint")
    # Payments while nothing runs, in old and new partitions.
    shop.pay("payments", CARDS)
    shop.grow("payments", 4)
    shop.pay("payments", {**CARDS, **NEW})
    # With other numbers of everything; a source's start option no longer matters.
    shop.run("second", shop.environment(3, 5, "savepoint"), sources(startingOffsets="latest"))
    everything = [*shop.paid["payments"], *shop.paid["limits"]]
    assert shop.found("first", "second") == totals_of(everything)
    # As any checkpoint, and once more from a savepoint.
    shop.pay("limits", OTHERS)
    shop.run("second", shop.environment(3, 5, "savepoint"), sources())
    shop.save("second", "another")
    shop.pay("payments", {**CARDS, **NEW})
    begin = json.dumps({shop.full("payments"): {str(number): 0 for number in range(4)}})
    shop.run("third", shop.environment(2, 4, "another"), sources(startingOffsets=begin))
    everything = [*shop.paid["payments"], *shop.paid["limits"]]
    assert shop.found("first", "second", "third") == totals_of(everything)


def test_sources_come_and_go(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    for topic in ("payments", "limits", "more", "late"):
        shop.create(topic, 2)
    shop.pay("payments", CARDS)
    shop.pay("limits", OTHERS, 10)
    shop.run("first", shop.environment(2), {name: shop.read(name) for name in ("payments", "limits")})
    shop.save("first", "savepoint")
    before = [*shop.paid["payments"], *shop.paid["limits"]]
    shop.paid["payments"].clear()
    shop.pay("payments", CARDS)
    shop.pay("limits", OTHERS)
    shop.pay("more", {"more": 1})
    shop.pay("late", {"late": 1})
    changed = {
        "late": shop.read("late", startingOffsets="latest"),
        "more": shop.read("more"),
        "payments": shop.read("payments", startingOffsets="latest"),
    }
    with pytest.raises(CheckpointMismatchError) as caught:
        shop.run("second", shop.environment(2, savepoint="savepoint"), changed)
    assert str(caught.value).splitlines()[1:] == [
        "  - it has positions of the sources 'limits', but the program does not read them, and it reads 'late', 'more',"
        " which the savepoint does not have: use the old names again, as in from_dataframe(df, 'payments'), pass"
        " renamed={'old name': 'new name'}, or drop their positions with allow_non_restored_state=True"
    ]
    assert not (shop.folder / "second").exists()
    with caplog.at_level(logging.INFO, "pillarbox"):
        shop.run("second", shop.environment(2, savepoint="savepoint", allow_non_restored_state=True), changed)
    assert "source 'more' is new, and starts as its own options define" in caplog.text
    assert "the position of source 'limits' is dropped" in caplog.text
    assert shop.found("second") == totals_of([*shop.paid["payments"], *shop.paid["more"]], before)

    # One source's position is set by hand, so its input is repeated; the other one continues, under any name.
    again = {"cards": shop.read("payments"), "limits": shop.read("limits")}
    limits = {"limits": {shop.full("limits"): {"0": 4, "1": 0}}}
    how: dict[str, Any] = {"renamed": {"payments": "cards"}, "positions": limits}
    shop.run("third", shop.environment(4, savepoint="savepoint", **how), again)
    expected = totals_of([*shop.paid["payments"], *shop.paid["limits"][4:]], before)
    assert shop.found("third") == expected
    # The same, with a position for each Spark source.
    noted = json.loads((shop.folder / "first" / "offsets" / "0").read_text().splitlines()[2])
    shop.run("fourth", shop.environment(2, savepoint="savepoint", positions=[noted, limits["limits"]]), again)
    assert shop.found("fourth") == expected


@pytest.mark.parametrize("begins", ["earliest", "latest"])
def test_state_with_sources_that_begin_by_their_own_options(shop: Shop, begins: str) -> None:
    shop.create("payments", 2)
    shop.pay("payments", CARDS, 10)
    shop.forget("payments", 0, 10)  # its beginning is not number 0 any more
    shop.run("first", shop.environment(2), {"payments": shop.read("payments")})
    shop.save("first", "savepoint")
    payments = [paid for paid in shop.paid["payments"] if CARDS[paid[0]] == 0][10:]
    payments += [paid for paid in shop.paid["payments"] if CARDS[paid[0]] == 1]
    shop.paid["payments"].clear()
    shop.pay("payments", CARDS)
    unread = list(shop.paid["payments"])
    how: dict[str, Any] = {"savepoint": "savepoint", "positions": "none"}
    shop.run("second", shop.environment(3, **how), {"payments": shop.read("payments", startingOffsets=begins)})
    shop.pay("payments", CARDS)
    shop.run("second", shop.environment(3, **how), {"payments": shop.read("payments", startingOffsets=begins)})
    paid = shop.paid["payments"][len(unread) :]
    expected = [*payments, *unread, *paid] if begins == "earliest" else paid
    assert shop.found("second") == totals_of(expected, payments)


def test_the_driver_is_killed_and_the_checkpoint_rescaled(shop: Shop) -> None:
    shop.create("payments", 2)
    shop.pay("payments", CARDS, 60)
    commits = shop.folder / "killed" / "commits"
    for epochs in (3, 8):
        driver = _driver(shop)
        try:
            begun = partial(_has, commits, epochs)
            wait_for(begun, driver, lambda: (shop.folder / "log").read_text()[-4000:])
        finally:
            kill(driver.pid, "all")
            driver.wait()
    assert _last(commits) < 17
    sources = {"payments": shop.read("payments", maxOffsetsPerTrigger=50)}
    if tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2):
        env = shop.environment(4).set_auto_rescale(True)
    else:
        env = shop.environment(2)
    shop.run("killed", env, sources)
    shop.pay("payments", CARDS)
    shop.run("killed", env, sources)
    assert shop.found("killed") == totals_of(shop.paid["payments"])


def _driver(shop: Shop) -> subprocess.Popen[bytes]:
    return start_python(
        shop.folder / "log", "-m", "tests.kafka.kafka_job", str(shop.folder), shop.servers, shop.full("payments")
    )


def _has(commits: Path, epochs: int) -> bool:
    return _last(commits) >= epochs


def _last(commits: Path) -> int:
    return max((int(file.name) for file in commits.glob("[0-9]*")), default=-1)


def test_stopped_with_a_savepoint_and_drained_from_topic_to_topic(shop: Shop) -> None:
    shop.create("payments", 2)
    shop.create("totals", 1)
    shop.pay("payments", CARDS)

    def start(checkpoint: str, env: Any) -> Any:
        rows = totals(env, {"payments": shop.read("payments")})
        writer = rows.selectExpr("card AS key", "to_json(struct(*)) AS value").writeStream.format("kafka")
        writer = writer.option("kafka.bootstrap.servers", shop.servers).option("topic", shop.full("totals"))
        return pillarbox.start(writer.option("checkpointLocation", str(shop.folder / checkpoint)))

    query = start("first", shop.environment(2))
    query.processAllAvailable()
    shop.pay("payments", CARDS)  # whether it is read before the query stops or not
    pillarbox.stop_with_savepoint(query, str(shop.folder / "savepoint"))
    shop.pay("payments", CARDS)
    query = start("second", shop.environment(3, 6, "savepoint"))
    query.processAllAvailable()
    asked = threading.Thread(
        target=pillarbox.stop_with_savepoint,
        args=(query, str(shop.folder / "drained")),
        kwargs={"drain": True, "timeout": 400},
    )
    asked.start()
    while query.isActive and asked.is_alive():
        time.sleep(0.05)
    shop.pay("payments", CARDS)
    asked.join()
    assert (shop.folder / "drained" / "manifest").exists()
    read = shop.spark.read.format("kafka").option("kafka.bootstrap.servers", shop.servers)
    values = read.option("subscribe", shop.full("totals")).load().selectExpr("CAST(value AS STRING)").collect()
    counts = Counter(tuple(json.loads(row[0]).values()) for row in values)
    sums: Counter[str] = Counter()
    for card, amount in shop.paid["payments"]:
        sums[card] += amount
    expected = totals_of(shop.paid["payments"]) + Counter((card, 0, total, "end") for card, total in sums.items())
    # If Spark is stopped in the middle of an epoch, the sink has its rows once more: it is no better than that.
    assert counts.keys() == expected.keys() and set(expected.values()) == {1}
