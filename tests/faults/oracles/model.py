"""A part of the program of the fault tests, in plain Python."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.faults.programs.job import Event, Row

__all__ = ["BEGINNING", "Model"]

BEGINNING = -(2**63)  # where event time begins


class Model:
    """What a part of the program does with the events of an epoch, and when event time has gone on.

    Attributes:
        watermark: how far event time is.
        rows: what came out since somebody took it.
        points: by the place of a fault, what came by there since somebody took it.
    """

    def __init__(self) -> None:
        self.watermark = BEGINNING
        self.rows: list[Row] = []
        self.points: defaultdict[str, list[Any]] = defaultdict(list)

    def record(self, event: Event) -> None:
        """Take a record."""
        raise NotImplementedError

    def end_of_input(self) -> None:
        """Take note that all records of the epoch are there."""

    def advance(self, watermark: int) -> None:
        """Let event time go on."""
        self.watermark = watermark

    def taken(self) -> tuple[list[Row], dict[str, list[Any]]]:
        """Return rows and points, and forget them."""
        found = self.rows, dict(self.points)
        self.rows, self.points = [], defaultdict(list)
        return found
