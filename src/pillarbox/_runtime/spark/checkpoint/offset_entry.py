"""Parses entries of an offset log. Spark writes an entry before each epoch."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from pillarbox._errors import CheckpointMismatchError, shorten
from pillarbox._graph.description import json_object

# v1 identifies sources by position, v2 by name.
_VERSIONS = ("v1", "v2")
_TIME = "batchTimestampMs"
# Index of the first source's line, after the version and the settings.
_FIRST = 2


class OffsetEntry:
    """An entry of the offset log. ``lines`` is empty if the entry is missing."""

    def __init__(self, lines: tuple[str, ...] = ()) -> None:
        self.lines = lines

    @property
    def version(self) -> str:
        return self.lines[0] if self.lines else "v1"

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Spark's metadata for the epoch, or {} if missing."""
        return json_object(self.lines[1]) if len(self.lines) > 1 else {}

    @property
    def time(self) -> int | None:
        timestamp = self.facts.get(_TIME)
        return timestamp if isinstance(timestamp, int) else None

    @property
    def watermark(self) -> int:
        watermark = self.facts.get("batchWatermarkMs")
        return watermark if isinstance(watermark, int) else 0

    def at(self, time: int) -> OffsetEntry:
        facts = json.dumps({**self.facts, _TIME: time}, separators=(",", ":"))
        return OffsetEntry((self.version, facts, *self.lines[_FIRST:]))

    @cached_property
    def sources(self) -> dict[str, str]:
        """The sources' end offsets, each in its source's format, by source name (or position in the log)."""
        if self.version not in _VERSIONS:
            raise CheckpointMismatchError(
                f"Spark's offset log has version {shorten(self.version)}, but this version of pillarbox reads only"
                f" {' and '.join(_VERSIONS)}: update pillarbox"
            )
        texts = self.lines[_FIRST:]
        if self.version == "v1":
            return {str(index): text for index, text in enumerate(texts)}
        offsets = sorted((name, text) for name, _, text in (text.partition(":") for text in texts))
        if all(name.isdecimal() for name, _ in offsets):
            offsets.sort(key=lambda entry: int(entry[0]))
        return dict(offsets)

    @property
    def files(self) -> dict[str, int]:
        """The number of the last entry in each file source's own log, by source name (or position in the log)."""
        offsets = {name: json_object(text) for name, text in self.sources.items()}
        return {name: int(offset["logOffset"]) for name, offset in offsets.items() if offset.keys() == {"logOffset"}}
