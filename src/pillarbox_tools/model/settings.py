"""Parses Spark and query settings."""

from __future__ import annotations

import re
from collections.abc import Mapping

from pillarbox._sizes import byte_size


def trigger_interval(settings: Mapping[str, str]) -> int | None:
    """Return the trigger interval in ms, 0 if it is not set, or None if unknown."""
    trigger = settings.get("trigger")
    if trigger is None:
        return None
    match = re.search(r"ProcessingTimeTrigger\((\d+)\)", trigger)
    return 0 if match is None else int(match[1])


def is_batch(settings: Mapping[str, str]) -> bool:
    return any(name in settings.get("trigger", "") for name in ("AvailableNow", "Once", "OneTime"))


def number_in(settings: Mapping[str, str], name: str) -> int | None:
    setting = settings.get(name, "")
    return int(setting) if setting.isdigit() else None


def bytes_in(settings: Mapping[str, str], name: str) -> int | None:
    """Return a setting such as ``2g`` (default unit: MiB) in bytes, or None if it is unset or invalid."""
    return byte_size(settings.get(name, ""), "m")
