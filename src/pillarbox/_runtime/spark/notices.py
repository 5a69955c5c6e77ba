"""Notices to users, which are neither results nor warnings."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("pillarbox")


def notify(text: str) -> None:
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info("%s", text)
    else:
        print(f"pillarbox: {text}", file=sys.stderr, flush=True)
