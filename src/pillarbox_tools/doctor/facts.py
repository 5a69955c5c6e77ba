"""The facts that the doctor's rules examine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pillarbox_tools.model.snapshot import Snapshot

_RETAINED = 100


T = TypeVar("T")


class MissingFactError(Exception):
    """A rule lacks a fact, which the message names."""


def require(fact: T | None, name: str) -> T:
    if fact is None:
        raise MissingFactError(name)
    return fact


@dataclass(frozen=True)
class Facts:
    """Facts about a machine and a query. None or a missing entry means unknown.

    Attributes:
        versions: versions of ``java``, ``python``, ``spark`` and packages in the driver.
        worker_versions: combinations of versions in workers, without ``java`` and ``spark``.
        settings: settings of Spark, of the query and of its trigger.
    """

    versions: dict[str, str] = field(default_factory=dict)
    worker_versions: Sequence[Mapping[str, str]] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    snapshot: Snapshot | None = None

    @staticmethod
    def of(snapshot: Snapshot) -> Facts:
        run = snapshot.run
        return Facts(run.versions, run.worker_versions or None, run.settings, snapshot)

    @property
    def cores(self) -> int | None:
        setting = self.settings.get("cores", "")
        return int(setting) if setting.isdigit() else None

    @property
    def retained(self) -> int:
        setting = self.settings.get("spark.sql.streaming.minBatchesToRetain", "")
        return int(setting) if setting.isdigit() else _RETAINED


@dataclass(frozen=True)
class Finding:
    """The result of a rule: ``"wrong"``, ``"fine"`` or ``"unknown"``, with a message."""

    rule: str
    status: str
    message: str = ""
