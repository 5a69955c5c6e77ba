"""Parses settings of Spark and of a query."""

from __future__ import annotations

import re
from collections.abc import Mapping


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


_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}


def bytes_in(settings: Mapping[str, str], name: str) -> int | None:
    """Return a setting such as ``2g`` (default unit: MiB) in bytes, or None if it is unset or invalid."""
    text = settings.get(name, "").strip().lower().removesuffix("ib").removesuffix("b")
    if not text:
        return None
    number, letter = (text[:-1], text[-1]) if text[-1] in _UNITS else (text, "m")
    return int(number) * _UNITS[letter] if number.isdigit() else None
