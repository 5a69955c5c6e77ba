"""Notices for users that are neither results nor warnings."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("pillarbox")


def notify(text: str) -> None:
    """Show a notice to the user.

    Logs it if the log shows INFO messages. Otherwise prints it to standard error, like the greetings of Spark's shells.
    """
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info("%s", text)
    else:
        print(f"pillarbox: {text}", file=sys.stderr, flush=True)
