"""A query that a dashboard shows."""

from __future__ import annotations

from typing import Any, Protocol

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.model.snapshot import Snapshot


class ShownQuery(Protocol):
    """A query that a dashboard shows. Any thread may call its methods."""

    @property
    def id(self) -> str:
        """Spark's id of the query."""

    @property
    def has_ended(self) -> bool:
        """Whether this run of the query has ended."""

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat of its driver, or None."""

    def look(self) -> int:
        """Look whether there is something new; return a number that grows with each change of the snapshot."""

    def snapshot(self) -> Snapshot:
        """Return what is known of it."""

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Return what is known of a key of an operator: as the page shows it.

        Raises:
            PillarboxError: it cannot be read; the message says why.
        """


class StoredQuery:
    """A query whose snapshot was read, as from a bundle: see :class:`ShownQuery`."""

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

    def look(self) -> int:
        return 1

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        raise ConfigurationError("a bundle has no state: open the dashboard on the checkpoint to see a key")
