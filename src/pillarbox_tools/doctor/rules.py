"""The doctor's rules: functions that return a message about a problem in a :class:`Snapshot`, or None.

A rule that lacks facts raises :class:`MissingFactError`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from pillarbox._errors import describe
from pillarbox_tools.doctor.finding import Finding, MissingFactError, require
from pillarbox_tools.doctor.machine_rules import MACHINE_RULES, version_skew, workers_python
from pillarbox_tools.doctor.query_rules import QUERY_RULES, container_memory, executor_memory, partitions_and_cores
from pillarbox_tools.doctor.record_rules import RECORD_RULES
from pillarbox_tools.model.snapshot import Snapshot

_log = logging.getLogger("pillarbox")

_logging = threading.Lock()
_logged: set[tuple[str, str]] = set()

Rule = Callable[[Snapshot], str | None]

RULES: Sequence[Rule] = (*MACHINE_RULES, *QUERY_RULES, *RECORD_RULES)
#: Rules that are checked when a query starts, and rules with facts from the tasks of its first epoch.
START_RULES: Sequence[Rule] = (*MACHINE_RULES, partitions_and_cores)
_QUERY_RULES = frozenset(RULES) - frozenset(START_RULES)
FIRST_EPOCH_RULES: Sequence[Rule] = (workers_python, version_skew, executor_memory, container_memory)


def examine(snapshot: Snapshot, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Return the rules' findings: problems first, then unknown results."""
    findings = [_finding(rule, snapshot) for rule in rules]
    return sorted(findings, key=lambda finding: ("wrong", "unknown", "fine").index(finding.status))


def wrong(snapshot: Snapshot, rules: Sequence[Rule] = RULES) -> list[Finding]:
    return [finding for finding in examine(snapshot, rules) if finding.status == "wrong"]


def _finding(rule: Rule, snapshot: Snapshot) -> Finding:
    try:
        if rule in _QUERY_RULES:
            require(snapshot.id or None, "the query: pass a checkpoint")
        message = rule(snapshot)
    except MissingFactError as error:
        return Finding(rule.__name__, "unknown", str(error))
    return Finding(rule.__name__, "fine") if message is None else Finding(rule.__name__, "wrong", message)


def warn_of_findings(snapshot: Snapshot, rules: Sequence[Rule]) -> None:
    """Log problems, each once per process. Never raises. Thread-safe."""
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
            _log.warning("%s (pillarbox doctor's finding: %s)", finding.message, finding.rule)
