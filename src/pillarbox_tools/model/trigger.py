"""The trigger of a query, as its settings have it."""

from __future__ import annotations

import re
from collections.abc import Mapping


def trigger_interval(settings: Mapping[str, str]) -> int | None:
    """Return the interval of a query's trigger (ms); 0: an epoch follows the other; None: it is not known."""
    said = settings.get("trigger")
    if said is None:
        return None
    found = re.search(r"ProcessingTimeTrigger\((\d+)\)", said)
    return 0 if found is None else int(found[1])


def is_batch(settings: Mapping[str, str]) -> bool:
    """Return whether a query ends when its input does."""
    return any(each in settings.get("trigger", "") for each in ("AvailableNow", "Once", "OneTime"))
