"""The rules of the doctor. Each is a function of facts, which returns what is wrong, as one message, or None.

A rule that lacks facts raises :class:`UnknownFactsError`, which says what is not known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pillarbox_tools.doctor.facts import Facts, Finding
from pillarbox_tools.doctor.machine_rules import MACHINE_RULES, version_skew, workers_python
from pillarbox_tools.doctor.query_rules import QUERY_RULES, container_memory, executor_memory, partitions_and_cores
from pillarbox_tools.doctor.record_rules import RECORD_RULES
from pillarbox_tools.doctor.unknown import UnknownFactsError

Rule = Callable[[Facts], str | None]

RULES: Sequence[Rule] = (*MACHINE_RULES, *QUERY_RULES, *RECORD_RULES)
#: Those that can find something when a query starts, and those whose facts the tasks of its first epoch tell.
START_RULES: Sequence[Rule] = (*MACHINE_RULES, partitions_and_cores)
FIRST_EPOCH_RULES: Sequence[Rule] = (workers_python, version_skew, executor_memory, container_memory)


def examine(facts: Facts, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Return what each rule finds: what is wrong comes first, then what is not known."""
    found = [_finding(rule, facts) for rule in rules]
    return sorted(found, key=lambda each: ("wrong", "unknown", "fine").index(each.status))


def wrong(facts: Facts, rules: Sequence[Rule] = RULES) -> list[Finding]:
    """Return only what is wrong."""
    return [each for each in examine(facts, rules) if each.status == "wrong"]


def _finding(rule: Rule, facts: Facts) -> Finding:
    try:
        message = rule(facts)
    except UnknownFactsError as error:
        return Finding(rule.__name__, "unknown", str(error))
    return Finding(rule.__name__, "fine") if message is None else Finding(rule.__name__, "wrong", message)
