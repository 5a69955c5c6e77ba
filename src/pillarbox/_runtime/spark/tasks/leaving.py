"""The end of a process in which functions have run, if it ends in good order."""

from __future__ import annotations

import atexit
import logging
import sys

_log = logging.getLogger("pillarbox")


def forget_inherited_exit_handlers() -> None:
    """Forget the exit handlers of the process that this one was forked from, which runs them itself."""
    atexit._clear()
    atexit.register(logging.shutdown)  # for the handlers that functions add


def run_exit_handlers() -> None:
    """Do what Python does at the end: homes and PySpark's workers end by ``os._exit``, which does nothing."""
    try:
        _end_children()
        atexit._run_exitfuncs()
    except BaseException:
        _log.exception("an exit handler of a function failed")
    flush_output()


def _end_children() -> None:
    """End child processes for which ``multiprocessing`` would wait, such as a ``ProcessPoolExecutor``'s workers."""
    module = sys.modules.get("multiprocessing.process")
    if module is not None:
        for child in module.active_children():
            if not child.daemon:
                child.terminate()


def flush_output() -> None:
    """Flush standard output and standard error, whatever functions have put in their place."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # it is closed, or no file
