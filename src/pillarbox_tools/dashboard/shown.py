"""What the dashboard shows: queries, of which it knows no more than this."""

from __future__ import annotations

from typing import Any, Protocol

from pillarbox._errors import ConfigurationError
from pillarbox._runtime.spark.running.heartbeat import Heartbeat
from pillarbox_tools.model.snapshot import Snapshot


class ShownQuery(Protocol):
    """A query that a dashboard shows. Any thread may call its methods.

    Attributes:
        id: Spark's id of the query.
    """

    @property
    def id(self) -> str: ...

    @property
    def has_ended(self) -> bool:
        """Whether this run of the query has ended."""

    def look(self) -> int:
        """Look whether there is something new; return a number that grows with each change of the snapshot."""

    def snapshot(self) -> Snapshot:
        """Return what is known of it."""

    @property
    def heartbeat(self) -> Heartbeat | None:
        """The newest heartbeat of its driver, or None."""

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Return what is known of a key of an operator: as the page shows it.

        Raises:
            PillarboxError: it cannot be read; the message says why.
        """


class StoredQuery:
    """A query that does not run: its snapshot was read from a history or a bundle."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def id(self) -> str:
        """Spark's id of the query."""
        return self._snapshot.id

    @property
    def has_ended(self) -> bool:
        """Return True: it does not run here."""
        return True

    def look(self) -> int:
        """Return the same number each time: nothing changes."""
        return 1

    def snapshot(self) -> Snapshot:
        """Return what was read."""
        return self._snapshot

    @property
    def heartbeat(self) -> Heartbeat | None:
        """None: no driver runs it."""
        return None

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Refuse: there is no state."""
        raise ConfigurationError("a bundle has no state: open the dashboard on the checkpoint to see a key")
