"""An entry of Spark's offset log: what Spark notes of an epoch before it runs."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pillarbox._errors import CheckpointMismatchError, shorten
from pillarbox._graph.description import json_object

# The versions of the log in which this can read the sources: by their places, and by their names.
_VERSIONS = ("v1", "v2")
_TIME = "batchTimestampMs"
# The lines of the sources follow the version and the settings.
_FIRST = 2


class OffsetEntry:
    """An entry of the offset log.

    Args:
        lines: of its file; none: there is no such entry.
    """

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        self.lines = lines

    @property
    def version(self) -> str:
        """The version of the log, as in ``v1``."""
        return self.lines[0] if self.lines else "v1"

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What Spark notes of the epoch itself; empty: of a log that is not known."""
        return json_object(self.lines[1]) if len(self.lines) > 1 else {}

    @property
    def time(self) -> int | None:
        """The time of the epoch by the driver's clock (epoch milliseconds), if it is known."""
        found = self.facts.get(_TIME)
        return found if isinstance(found, int) else None

    def at(self, time: int) -> OffsetEntry:
        """Return an entry of the same input at another time (epoch milliseconds)."""
        facts = json.dumps({**self.facts, _TIME: time}, separators=(",", ":"))
        return OffsetEntry((self.version, facts, *self.lines[_FIRST:]))

    @cached_property
    def sources(self) -> dict[str, str]:
        """How far each source had come, as it writes that itself.

        By the names of the sources, under which they have folders in ``sources/`` of the checkpoint; where they have
        no names, by their places, in this order.

        Raises:
            CheckpointMismatchError: the log is of a version that is not known.
        """
        if self.version not in _VERSIONS:
            raise CheckpointMismatchError(
                f"Spark's offset log is of version {shorten(self.version)}; this version of pillarbox knows"
                f" {' and '.join(_VERSIONS)}: update pillarbox"
            )
        texts = self.lines[_FIRST:]
        if self.version == "v1":
            return {str(place): text for place, text in enumerate(texts)}
        found = sorted((name, text) for name, _, text in (text.partition(":") for text in texts))
        if all(name.isdecimal() for name, _ in found):
            found.sort(key=lambda each: int(each[0]))
        return dict(found)

    @property
    def files(self) -> dict[str, int]:
        """The last entry of its own log that each file source had, by its name or place.

        Raises:
            CheckpointMismatchError: the offset log is of a version that is not known.
        """
        found = {name: json_object(text) for name, text in self.sources.items()}
        return {name: int(offset["logOffset"]) for name, offset in found.items() if offset.keys() == {"logOffset"}}
