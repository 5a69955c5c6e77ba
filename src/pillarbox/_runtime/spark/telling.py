"""What users are told that is neither a result nor a warning."""

from __future__ import annotations

import logging
import sys

_log = logging.getLogger("pillarbox")


def tell(text: str) -> None:
    """Tell what is no warning, and what the user is to know all the same.

    It is in the log, where that shows such messages. Else it is on standard error, as greetings of Spark's shells are.
    """
    if _log.isEnabledFor(logging.INFO) and _log.hasHandlers():
        _log.info("%s", text)
    else:
        print(f"pillarbox: {text}", file=sys.stderr, flush=True)
