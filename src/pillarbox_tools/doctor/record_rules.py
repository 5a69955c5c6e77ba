"""Rules about what goes wrong again and again: records, calls, tasks and homes. Each judges the present."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pillarbox_tools.doctor.facts import Facts
from pillarbox_tools.doctor.query_rules import moments_of, query_of
from pillarbox_tools.model.condition import clock
from pillarbox_tools.model.snapshot import Moment
from pillarbox_tools.model.windows import HOUR, MINUTE, QUARTER, Fault, fault_in, within

# A fault in so many moments is no accident.
_SOME = 3


def repeated_tasks(facts: Facts) -> str | None:
    """Check that Spark seldom has to repeat a task. Window: an hour."""
    moments_of(facts)
    found = fault_in(
        query_of(facts), lambda each: each.repeated, lambda each: each.epochs, least=2, share=0.05, window=HOUR
    )
    if found is None:
        return None
    return (
        f"Spark has repeated {found.count} tasks in {found.of} epochs of the last {_span(found)}, since"
        f" {clock(found.since)}: look in the log of the executors for what ended the first attempts, such as a lack of"
        " memory"
    )


def restarting_homes(facts: Facts) -> str | None:
    """Check that homes do not end again and again. That all of an executor's end at once is one fault.

    Window: an hour.
    """
    moments_of(facts)
    snapshot = query_of(facts)
    recent = [each for each in within(snapshot, HOUR) if each.home_restarts]
    if len(recent) < _SOME or not any(each.home_restarts for each in within(snapshot, QUARTER)):
        return None
    count = sum(each.home_restarts for each in recent)
    return (
        f"{count:,} homes were started again in {len(recent)} of the last 60 minutes, each with all of its state to"
        " read. Likely causes: the system ended them for memory (see pillarbox memory), a function crashes or calls"
        " os._exit(), or a function does not return within five seconds when its epoch is cancelled. The log of the"
        " executors tells how each one ended"
    )


def lost_records(facts: Facts) -> str | None:
    """Check that few of an operator's records come too late. Window: fifteen minutes."""
    return _share_of_input(
        facts,
        "late_records_dropped",
        "came too late and went nowhere: raise the bound of the watermark strategy, or send them to a side output"
        " (side_output_late_data)",
    )


def dead_letters(facts: Facts) -> str | None:
    """Check that few of an operator's records make it fail. Window: fifteen minutes."""
    return _share_of_input(
        facts, "dead_letters", "became dead letters: read the side output of on_error to see which, and why"
    )


def _share_of_input(facts: Facts, counter: str, what: str) -> str | None:
    snapshot = query_of(facts)
    names = {name for each in moments_of(facts) for name in each.counters if name.endswith(f".{counter}")}
    for uid in sorted(name.rpartition(".")[0] for name in names):
        bad = partial(_counted, names=[f"{uid}.{counter}"])
        found = fault_in(snapshot, bad, partial(_input, uid=uid), least=10, share=0.01)
        if found is not None:
            return (
                f"{found.count:,} of {found.of:,} records of {uid!r} ({found.share:.1%}) in the last {_span(found)},"
                f" since {clock(found.since)}, {what}"
            )
    return None


_CALLS = ("completed", "failed", "timed_out")


def failing_calls(facts: Facts) -> str | None:
    """Check that few calls of services fail. Window: fifteen minutes."""
    moments, snapshot = moments_of(facts), query_of(facts)
    calls = {uid for each in (() if snapshot.plan is None else snapshot.plan.vertices) for uid in each.calls}
    counters = {name for each in moments for name in each.counters}
    # An operator that calls a service has all three counters; a function may have one of its own by such a name.
    calls |= {name.rpartition(".")[0] for name in counters if _has_calls(name.rpartition(".")[0], counters)}
    for uid in sorted(calls):
        bad, every = ([f"{uid}.{name}" for name in names] for names in (_CALLS[1:], _CALLS))
        found = fault_in(snapshot, partial(_counted, names=bad), partial(_counted, names=every), least=10, share=0.05)
        if found is not None:
            return (
                f"{found.count:,} of {found.of:,} records of {uid!r} ({found.share:.0%}) in the last {_span(found)}"
                f" failed or timed out, since {clock(found.since)}: look at the service, and at timeout, retry_strategy"
                " and rate_limit of the operator"
            )
    return None


def _has_calls(uid: str, counters: set[str]) -> bool:
    return all(f"{uid}.{name}" in counters for name in _CALLS)


def _counted(moment: Moment, names: Sequence[str]) -> int:
    return sum(moment.counters.get(name, 0) for name in names)


def _input(moment: Moment, uid: str) -> int:
    """Return how many records an operator received; without a plan, all rows."""
    return moment.inputs.get(uid, moment.rows)


def _span(fault: Fault) -> str:
    return f"{fault.span // MINUTE} minutes"


RECORD_RULES = (repeated_tasks, restarting_homes, lost_records, dead_letters, failing_calls)
