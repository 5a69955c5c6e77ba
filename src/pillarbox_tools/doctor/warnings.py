"""Findings of the doctor at a start, and in the first epoch: each is one warning in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from pillarbox._errors import describe
from pillarbox_tools.doctor.facts import Facts
from pillarbox_tools.doctor.rules import Rule, wrong

_log = logging.getLogger("pillarbox")

_telling = threading.Lock()
# The findings that this process has logged: rules and messages.
_told: set[tuple[str, str]] = set()


def warn_of_findings(facts: Facts, rules: Sequence[Rule]) -> None:
    """Log what rules find, each finding once in this process. It raises nothing: the query can do without. Any thread.

    Args:
        facts: those that are known without a job and without a request to a store.
    """
    try:
        found = wrong(facts, rules)
    except Exception as error:  # such as a version that has no numbers
        _log.debug("the doctor could not look at a query: %s", describe(error))
        return
    for finding in found:
        with _telling:
            is_new = (finding.rule, finding.message) not in _told
            _told.add((finding.rule, finding.message))
        if is_new:
            _log.warning("%s (a finding of pillarbox doctor: %s)", finding.message, finding.rule)
