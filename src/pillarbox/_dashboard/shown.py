"""What the dashboard shows: queries, of which it knows no more than this."""

from __future__ import annotations

import time
from typing import Any, Protocol

from pillarbox._errors import ConfigurationError
from pillarbox._model.snapshot import Snapshot


class ShownQuery(Protocol):
    """A query that a dashboard shows. Any thread may call its methods.

    Attributes:
        id: Spark's id of the query.
    """

    @property
    def id(self) -> str: ...

    def snapshot(self) -> Snapshot:
        """Return what is known of it now."""

    def wait(self, seen: int, timeout: float) -> int:
        """Wait until something changes, or a time is over (seconds); return the number of the state it is in."""

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

    def snapshot(self) -> Snapshot:
        """Return what was read."""
        return self._snapshot

    def wait(self, seen: int, timeout: float) -> int:
        """Wait for that time: nothing changes."""
        time.sleep(timeout if seen else 0)
        return 1

    def key_life(self, uid: str, key: str) -> dict[str, Any]:
        """Refuse: there is no state."""
        raise ConfigurationError("a bundle has no state: open the dashboard on the checkpoint to see a key")
