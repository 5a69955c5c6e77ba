"""Programs that read and write Delta Lake tables are restarted, killed, stopped, and continued from savepoints.

The count and sum of each card's payments show that nothing is lost or duplicated.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter

import pytest

import pillarbox
from pillarbox import CheckpointMismatchError
from tests.delta.shop import CARDS, Shop, totals_of
from tests.faults.processes import kill, start_python, wait_for

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(600),
    pytest.mark.skipif("PILLARBOX_DELTA" not in os.environ, reason="takes Delta Lake: make test-delta runs it"),
]


def test_from_table_to_table_over_restarts_and_savepoints(shop: Shop) -> None:
    shop.pay("payments")
    shop.pay("payments")
    shop.run("first", shop.environment(2), {"payments": shop.read("payments", maxFilesPerTrigger=1)})
    assert shop.found() == totals_of(shop.paid["payments"])
    shop.pay("payments")
    shop.run("first", shop.environment(2), {"payments": shop.read("payments")})
    assert shop.found() == totals_of(shop.paid["payments"])
    shop.save("first", "savepoint")
    # At another parallelism, into the same table: a source's start option no longer matters.
    shop.pay("payments")
    shop.run("second", shop.environment(3, "savepoint"), {"payments": shop.read("payments", startingVersion="latest")})
    assert shop.found() == totals_of(shop.paid["payments"])
    shop.pay("payments")
    shop.run("second", shop.environment(3, "savepoint"), {"payments": shop.read("payments")})
    assert shop.found() == totals_of(shop.paid["payments"])


def test_positions_by_hand(shop: Shop) -> None:
    shop.pay("payments")
    first = list(shop.paid["payments"])
    shop.run("first", shop.environment(2), {"payments": shop.read("payments")})
    shop.save("first", "savepoint")
    skipped = shop.pay("payments")
    read = shop.pay("payments")
    begin = {"payments": shop.position("payments", shop.version("payments"))}
    shop.run(
        "second", shop.environment(3, "savepoint", positions=begin), {"payments": shop.read("payments")}, "after a gap"
    )
    assert shop.found("after a gap") == totals_of(read, first)
    everything = {"payments": shop.position("payments", 0)}
    shop.run(
        "third", shop.environment(2, "savepoint", positions=everything), {"payments": shop.read("payments")}, "twice"
    )
    assert shop.found("twice") == totals_of([*first, *skipped, *read], first)


def test_a_table_more_and_a_table_less(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.pay("payments")
    shop.pay("gone")
    shop.run("first", shop.environment(2), {name: shop.read(name) for name in ("payments", "gone")}, "first out")
    shop.save("first", "savepoint")
    before = [*shop.paid["payments"], *shop.paid["gone"]]
    paid = [*shop.pay("payments"), *shop.pay("more")]
    shop.pay("gone")
    changed = {name: shop.read(name) for name in ("more", "payments")}
    with pytest.raises(CheckpointMismatchError, match="it has positions of the sources 'gone', but the program does"):
        shop.run("second", shop.environment(2, "savepoint"), changed)
    with caplog.at_level(logging.INFO, "pillarbox"):
        shop.run("second", shop.environment(2, "savepoint", allow_non_restored_state=True), changed)
    assert "source 'more' is new, and starts as its own options define" in caplog.text
    assert Counter({row[:2]: n for row, n in shop.found().items()}) == Counter(
        {row[:2]: n for row, n in totals_of(paid, before).items()}
    )


def test_stopped_and_drained(shop: Shop) -> None:
    shop.pay("payments")
    query = pillarbox.start(shop.writer("first", shop.environment(2), {"payments": shop.read("payments")}))
    query.processAllAvailable()
    shop.pay("payments")  # whether it is read before the query stops or not
    pillarbox.stop_with_savepoint(query, str(shop.folder / "savepoint"))
    shop.pay("payments")
    query = pillarbox.start(
        shop.writer("second", shop.environment(3, "savepoint"), {"payments": shop.read("payments")})
    )
    query.processAllAvailable()
    asked = threading.Thread(
        target=pillarbox.stop_with_savepoint,
        args=(query, str(shop.folder / "drained")),
        kwargs={"drain": True, "timeout": 400},
    )
    asked.start()
    while query.isActive and asked.is_alive():
        time.sleep(0.05)
    shop.pay("payments")
    asked.join()
    assert (shop.folder / "drained" / "manifest").exists()
    sums: Counter[str] = Counter()
    for card, amount in shop.paid["payments"]:
        sums[card] += amount
    assert shop.found() == totals_of(shop.paid["payments"]) + Counter((card, 0, sums[card]) for card in CARDS)


def test_the_driver_is_killed(shop: Shop) -> None:
    for _ in range(12):
        shop.pay("payments", 1)
    for versions in (2, 6):
        driver = start_python(shop.folder / "log", "-m", "tests.delta.delta_job", str(shop.folder))
        try:
            begun = shop.folder / "totals" / "_delta_log" / f"{versions:020}.json"
            wait_for(begun.exists, driver, lambda: (shop.folder / "log").read_text()[-4000:])
        finally:
            kill(driver.pid, "all")
            driver.wait()
    assert shop.version("totals") < 11
    shop.run("killed", shop.environment(2), {"payments": shop.read("payments")})
    assert shop.found() == totals_of(shop.paid["payments"])
