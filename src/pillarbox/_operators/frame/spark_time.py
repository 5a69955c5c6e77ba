# SPDX-License-Identifier: Apache-2.0
"""Spark's watermark and clock, for operators that use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class SparkMicroBatch(NamedTuple):
    """Spark's data about an epoch, for operators that use Spark's watermark and clock.

    Attributes:
        number: the micro-batch id, or None in a batch query.
        time: Unix time in ms.
        watermark: Spark's watermark (Unix time in ms), or -1.
    """

    number: int | None
    time: int
    watermark: int


@dataclass(frozen=True)
class SparkTime:
    """Settings of the Spark operator that runs a pillarbox operator with Spark's watermark and clock.

    Attributes:
        time_mode: ``None``, ``ProcessingTime`` or ``EventTime``.
        event_time_column: the event-time column of the results, or "".
    """

    output_mode: str
    time_mode: str
    event_time_column: str = ""
