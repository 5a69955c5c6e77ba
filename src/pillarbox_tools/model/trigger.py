"""The trigger of a query, read from its settings."""

from __future__ import annotations

import re
from collections.abc import Mapping


def trigger_interval(settings: Mapping[str, str]) -> int | None:
    """Return the trigger interval in ms; 0 if unset, None if unknown."""
    trigger = settings.get("trigger")
    if trigger is None:
        return None
    match = re.search(r"ProcessingTimeTrigger\((\d+)\)", trigger)
    return 0 if match is None else int(match[1])


def is_batch(settings: Mapping[str, str]) -> bool:
    return any(name in settings.get("trigger", "") for name in ("AvailableNow", "Once", "OneTime"))
