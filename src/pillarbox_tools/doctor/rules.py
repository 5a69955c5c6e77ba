"""The rules of the doctor: functions of :class:`Facts` that return a message about a problem.

A rule without enough facts raises :class:`MissingFactError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pillarbox_tools.doctor.facts import Facts, Finding, MissingFactError
from pillarbox_tools.doctor.machine_rules import MACHINE_RULES, version_skew, workers_python
from pillarbox_tools.doctor.query_rules import QUERY_RULES, container_memory, executor_memory, partitions_and_cores
from pillarbox_tools.doctor.record_rules import RECORD_RULES

Rule = Callable[[Facts], str | None]

RULES: Sequence[Rule] = (*MACHINE_RULES, *QUERY_RULES, *RECORD_RULES)
#: Rules for a query's start, and rules whose facts the tasks of its first epoch report.
START_RULES: Sequence[Rule] = (*MACHINE_RULES, partitions_and_cores)
FIRST_EPOCH_RULES: Sequence[Rule] = (workers_python, version_skew, executor_memory, container_memory)


def examine(facts: Facts, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Run the rules, and return their findings: problems first, then unknown results."""
    findings = [_finding(rule, facts) for rule in rules]
    return sorted(findings, key=lambda finding: ("wrong", "unknown", "fine").index(finding.status))


def wrong(facts: Facts, rules: Sequence[Rule] = RULES) -> list[Finding]:
    return [finding for finding in examine(facts, rules) if finding.status == "wrong"]


def _finding(rule: Rule, facts: Facts) -> Finding:
    try:
        message = rule(facts)
    except MissingFactError as error:
        return Finding(rule.__name__, "unknown", str(error))
    return Finding(rule.__name__, "fine") if message is None else Finding(rule.__name__, "wrong", message)
