"""Payments in Delta tables, a program that reads them, and its expected output."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pillarbox
from tests.delta.delta_job import environment, read, writer

__all__ = ["CARDS", "Shop", "totals_of"]

CARDS = [f"card {number}" for number in range(6)]


def totals_of(payments: Iterable[tuple[str, int]], begin: Iterable[tuple[str, int]] = ()) -> Counter[Any]:
    counts: Counter[Any] = Counter()
    before = list(begin)
    state: dict[str, tuple[int, int]] = {}
    for number, (card, amount) in enumerate(itertools.chain(before, payments)):
        n, total = state.get(card, (0, 0))
        state[card] = n + 1, total + amount
        if number >= len(before):
            counts[card, n + 1, total + amount] += 1
    return counts


class Shop:
    """A folder with tables, checkpoints and savepoints.

    Attributes:
        paid: all payments (card, amount) by table.
    """

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self._random = random.Random(7)
        self.paid: dict[str, list[tuple[str, int]]] = {}

    def pay(self, table: str, times: int = 4) -> list[tuple[str, int]]:
        paid = [(card, self._random.randrange(1, 1000)) for _ in range(times) for card in CARDS]
        before = self.paid.setdefault(table, [])
        rows = [(card, amount, number) for number, (card, amount) in enumerate(paid, len(before))]
        frame = self.spark.createDataFrame(rows, "card STRING, amount LONG, at LONG").coalesce(1)
        frame.write.format("delta").mode("append").save(str(self.folder / table))
        before += paid
        return paid

    def read(self, table: str, **options: Any) -> Any:
        # A table's versions are read in order only if each is a separate epoch.
        return read(self.spark, self.folder / table, **{"maxFilesPerTrigger": 1, **options})

    def environment(self, parallelism: int, savepoint: str | None = None, **how: Any) -> Any:
        env = environment(self.spark, parallelism)
        if savepoint is not None:
            env.from_savepoint(self.folder / savepoint, **how)
        return env

    def writer(self, checkpoint: str, env: Any, sources: dict[str, Any], table: str = "totals") -> Any:
        return writer(env, sources, self.folder / checkpoint, self.folder / table)

    def run(self, checkpoint: str, env: Any, sources: dict[str, Any], table: str = "totals") -> None:
        pillarbox.start(self.writer(checkpoint, env, sources, table).trigger(availableNow=True)).awaitTermination()

    def save(self, checkpoint: str, savepoint: str) -> None:
        pillarbox.savepoint(self.spark, str(self.folder / checkpoint), str(self.folder / savepoint))

    def found(self, table: str = "totals") -> Counter[Any]:
        return Counter(map(tuple, self.spark.read.format("delta").load(str(self.folder / table)).collect()))

    def version(self, table: str) -> int:
        log = self.folder / table / "_delta_log"
        return max(int(path.stem) for path in log.glob("*.json"))

    def position(self, table: str, version: int) -> dict[str, Any]:
        """Return the position at the beginning of a table's version, as in Spark's offset log."""
        first = (self.folder / table / "_delta_log" / f"{0:020}.json").read_text().splitlines()
        (reservoir,) = [json.loads(line)["metaData"]["id"] for line in first if "metaData" in line]
        return {
            "sourceVersion": 1,
            "reservoirId": reservoir,
            "reservoirVersion": version,
            "index": -1,
            # Reading a table from its beginning starts with its first version as a whole.
            "isStartingVersion": version == 0,
        }
