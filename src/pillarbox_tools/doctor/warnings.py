"""Logs the doctor's findings at a query's start and in its first epoch."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from pillarbox._errors import describe
from pillarbox_tools.doctor.rules import Rule, wrong
from pillarbox_tools.model.snapshot import Snapshot

_log = logging.getLogger("pillarbox")

_logging = threading.Lock()
_logged: set[tuple[str, str]] = set()


def warn_of_findings(snapshot: Snapshot, rules: Sequence[Rule]) -> None:
    """Log the rules' findings, each once per process. Never raises. Any thread."""
    try:
        findings = wrong(snapshot, rules)
    except Exception as error:
        _log.debug("the doctor could not examine a query: %s", describe(error))
        return
    for finding in findings:
        with _logging:
            is_new = (finding.rule, finding.message) not in _logged
            _logged.add((finding.rule, finding.message))
        if is_new:
            _log.warning("%s (a finding of pillarbox doctor: %s)", finding.message, finding.rule)
