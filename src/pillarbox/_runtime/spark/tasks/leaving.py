"""The end of a process in which functions have run, if it ends in good order."""

from __future__ import annotations

import atexit
import logging


def forget_inherited_exit_handlers() -> None:
    """Forget the exit handlers of the process that this one was forked from, which runs them itself."""
    atexit._clear()
    atexit.register(logging.shutdown)  # for the handlers that functions add


def run_exit_handlers() -> None:
    """Run the exit handlers of this process: homes and PySpark's workers end by ``os._exit``, which runs none."""
    try:
        atexit._run_exitfuncs()
    except BaseException:
        logging.getLogger("pillarbox").exception("an exit handler of a function failed")
