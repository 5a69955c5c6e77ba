"""Ends a process that has run user functions."""

from __future__ import annotations

import atexit
import logging
import sys

_log = logging.getLogger("pillarbox")


def forget_inherited_exit_handlers() -> None:
    """Drop exit handlers that a fork has inherited, because the parent process runs them."""
    atexit._clear()
    atexit.register(logging.shutdown)


def run_exit_handlers() -> None:
    """Run Python's exit steps, which ``os._exit`` skips."""
    try:
        _end_children()
        atexit._run_exitfuncs()
    except BaseException:
        _log.exception("an atexit handler failed. The query is not affected")
    flush_output()


def _end_children() -> None:
    module = sys.modules.get("multiprocessing.process")
    if module is not None:
        for child in module.active_children():
            if not child.daemon:
                child.terminate()


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
