# SPDX-License-Identifier: Apache-2.0
"""Draws the dashboard of a real query, in Chromium, for docs/images.

``make test-see`` installs its packages: ``PYTHONPATH=.venvs/see:src:. .venv/bin/python -m scripts.draw_dashboard``.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pillarbox
from pillarbox import local_session
from tests.see.browser import PHONE, browser, page
from tests.see.queries import Inbox, counts, started

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
_EPOCHS, _PAYMENTS = 8, 3000


def main() -> None:
    """Draw the pictures."""
    draw = Random(7)
    spark = local_session()
    # (The history is written after the query has stopped.)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        inbox = Inbox(Path(folder) / "payments")
        query = started(counts(spark, inbox), Path(folder) / "checkpoint", "payments by card")
        for epoch in range(_EPOCHS):
            # One card has a third of the payments.
            cards = ["c7" if draw.random() < 1 / 3 else f"c{draw.randrange(500)}" for _ in range(_PAYMENTS)]
            inbox.put(*((card, draw.randrange(1, 900), 60 * epoch + index // 70) for index, card in enumerate(cards)))
            query.processAllAvailable()
        with pillarbox.dashboard(query, port=0) as dashboard, browser() as chromium:
            for name, size, dark in (("", (1280, 900), False), ("-dark", (1280, 900), True), ("-phone", PHONE, True)):
                with page(chromium, dashboard.url, size, dark=dark) as opened:
                    opened.wait_for_selector("#plan g.vertex.most")
                    if not name:
                        opened.fill("#key-text", "c7")
                        opened.press("#key-text", "Enter")
                        opened.wait_for_selector("#key h3", timeout=120_000)
                    opened.screenshot(path=str(IMAGES / f"dashboard{name}.png"), full_page=not dark)
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
