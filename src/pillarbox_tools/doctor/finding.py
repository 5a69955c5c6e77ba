"""The doctor's findings, and facts about a machine without a query (versions, memory, settings)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pillarbox_tools.model.snapshot import Snapshot, SnapshotRun

T = TypeVar("T")


class MissingFactError(Exception):
    """A rule lacks a fact, which the message names."""


def require(fact: T | None, name: str) -> T:
    if fact is None:
        raise MissingFactError(name)
    return fact


def machine_snapshot(
    versions: dict[str, str], settings: dict[str, str], worker_versions: Sequence[dict[str, str]] = ()
) -> Snapshot:
    run = SnapshotRun("", 0, settings=settings, versions=versions, worker_versions=list(worker_versions))
    return Snapshot("", "", "", 0, True, None, run)


@dataclass(frozen=True)
class Finding:
    """The result of a rule: ``"wrong"``, ``"fine"`` or ``"unknown"``, with a message."""

    rule: str
    status: str
    message: str = ""
