"""What the pages of a query are told, as JSON: made once for each change, however many pages ask."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping

from pillarbox_tools.dashboard.documents import as_json
from pillarbox_tools.dashboard.shown import ShownQuery
from pillarbox_tools.dashboard.views import entry_of, view_of

# The field of the stages that run: they change while nothing else does.
_STAGES = "stages"


class Told:
    """The view of a query, field by field, each as the text of its JSON. Any thread may call its methods.

    A field whose value has not changed has the same text, so a page is sent only the fields that are new to it.
    """

    def __init__(self, query: ShownQuery) -> None:
        self.query = query
        self._making = threading.Lock()  # guards the other attributes
        self._seen: int | None = None
        self._fields: dict[str, str] = {}
        self._entry = ""
        self._has_ended = False

    def fields(self) -> tuple[Mapping[str, str], bool]:
        """Return the fields as they are now, and whether the query has ended."""
        with self._making:
            self._look()
            stages = None if self._has_ended else self.query.stages()
            self._fields = {
                **self._fields,
                _STAGES: as_json(stages),
            }
            return self._fields, self._has_ended

    def entry(self) -> str:
        """Return the query as the list of queries shows it."""
        with self._making:
            self._look()
            return self._entry

    def _look(self) -> None:
        version = self.query.look()
        if version == self._seen:
            return
        # A change that comes meanwhile has a later number, so it is looked at the next time.
        snapshot = self.query.snapshot()
        self._fields = {name: as_json(value) for name, value in vars(view_of(snapshot)).items()}
        self._entry = as_json(entry_of(snapshot))
        self._has_ended = snapshot.run.ended is not None
        self._seen = version


def as_object(fields: Mapping[str, str]) -> str:
    """Return fields as the text of one JSON object."""
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in fields.items()) + "}"
