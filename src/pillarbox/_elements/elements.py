"""Watermarks, statuses, barriers and ends of data."""

from __future__ import annotations

from dataclasses import dataclass

from pillarbox._elements.records import Records
from pillarbox._elements.task_report import TaskReport


@dataclass(frozen=True)
class Watermark:
    """The assertion that no later record has a timestamp of at most ``timestamp`` (Unix time in ms)."""

    timestamp: int


@dataclass(frozen=True)
class WatermarkStatus:
    """A channel's status: idle or active. The downstream watermark ignores idle channels."""

    idle: bool


@dataclass(frozen=True)
class Barrier:
    """The end of an epoch in a channel. ``checkpoint_id`` is the epoch number: Spark's batch id, if known."""

    checkpoint_id: int


@dataclass(frozen=True)
class EndOfData:
    """The end of a bounded channel."""


Element = Records | Watermark | WatermarkStatus | Barrier | EndOfData | TaskReport
