"""A query on a dashboard."""

from __future__ import annotations

from typing import Any

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.model.snapshot import Snapshot


class ShownQuery:
    """A query on a dashboard. Here, its snapshot is constant, as a bundle's is. Any thread may call its methods."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def id(self) -> str:
        return self._snapshot.id

    @property
    def has_ended(self) -> bool:
        return self._snapshot.run.ended is not None

    @property
    def heartbeat(self) -> Heartbeat | None:
        return self._snapshot.heartbeat

    def refresh(self) -> int:
        """Check for news, and return the version, which grows with each change of the snapshot."""
        return 1

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Return the state and history of an operator's key, or raise ``PillarboxError`` with the reason."""
        raise ConfigurationError("a bundle has no state: open the dashboard of the checkpoint to see a key")
