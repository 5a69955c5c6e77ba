"""The JSON for a query's page, serialized once per change for all viewers."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping

from pillarbox._json import json_of
from pillarbox_tools.dashboard.views import Fields, entry_of, view_of
from pillarbox_tools.model.query_model import StaticQueryModel

_LOOK_EVERY = 5.0
_STAGES = "stages"
_CHANGE, _IS_BUNDLE = "change", "is_bundle"


class VersionedView:
    """The fields of a query's view as JSON, each with the number of its last change. Thread-safe."""

    def __init__(self, query: StaticQueryModel) -> None:
        self.query = query
        self._making = threading.Lock()
        # Names the sequence of change numbers, which starts at 1 in each process and run.
        self._name = secrets.token_hex(4)
        self._number = 0
        self._fields: dict[str, tuple[int, str]] = {}
        self._update({_IS_BUNDLE: json_of(type(query) is StaticQueryModel)})
        self._seen: int | None = None
        self._looked_at = 0.0
        self._entry: Fields = {}

    def since(self, change: str) -> str:
        """Return a JSON object with the newest change and the fields that changed after ``change``.

        Returns all fields if ``change`` belongs to another process or run.
        """
        with self._making:
            self._look()
            heartbeat = self.query.heartbeat
            self._update({_STAGES: json_of([] if heartbeat is None else heartbeat.stages)})
            name, _, number = change.partition("-")
            last = int(number) if name == self._name and number.isdecimal() else 0
            changed = {field: text for field, (changed_at, text) in self._fields.items() if changed_at > last}
            return _as_object({_CHANGE: json.dumps(f"{self._name}-{self._number}"), **changed})

    def entry(self) -> str:
        with self._making:
            self._look()
            return json_of(self._entry)

    def _look(self) -> None:
        version, now = self.query.refresh(), time.monotonic()
        is_same = version == self._seen
        if is_same and (self.query.has_ended or now - self._looked_at < _LOOK_EVERY):
            return
        self._looked_at = now
        # The next call includes a change after this line.
        snapshot = self.query.snapshot()
        entry = entry_of(snapshot)
        # Without new data, only the few fields of the entry change with time.
        is_entry = is_same and self._entry["conditions"] == entry["conditions"]
        fields = entry if is_entry else view_of(snapshot)
        self._update({name: json_of(value) for name, value in fields.items()})
        self._entry, self._seen = entry, version

    def _update(self, fields: Mapping[str, str]) -> None:
        number = self._number + 1
        for name, text in fields.items():
            if name not in self._fields or self._fields[name][1] != text:
                self._fields[name] = number, text
                self._number = number


def _as_object(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in fields.items()) + "}"
