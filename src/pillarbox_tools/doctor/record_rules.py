"""Rules about current, repeated faults of records, calls, tasks and home processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pillarbox_tools.doctor.query_rules import moments_of
from pillarbox_tools.model.call_counters import OUTCOMES, has_requests
from pillarbox_tools.model.condition import clock
from pillarbox_tools.model.snapshot import Snapshot, SnapshotMoment
from pillarbox_tools.model.windows import HOUR, MINUTE, QUARTER, WindowFault, fault_in, within

_SOME = 3


def repeated_tasks(snapshot: Snapshot) -> str | None:
    moments_of(snapshot)
    fault = fault_in(
        snapshot, lambda moment: moment.repeated, lambda moment: moment.epochs, least=2, share=0.05, window=HOUR
    )
    if fault is None:
        return None
    return (
        f"Spark has repeated {fault.count} tasks in {fault.of} epochs of the last {_span(fault)}, since"
        f" {clock(fault.since)}: check the log of the executors for the cause, such as a lack of memory"
    )


def restarting_homes(snapshot: Snapshot) -> str | None:
    """Check that home processes do not end repeatedly. Losing all homes of an executor counts once."""
    moments_of(snapshot)
    recent = [moment for moment in within(snapshot, HOUR) if moment.home_restarts]
    if len(recent) < _SOME or not any(moment.home_restarts for moment in within(snapshot, QUARTER)):
        return None
    count = sum(moment.home_restarts for moment in recent)
    return (
        f"{count:,} home processes were restarted in {len(recent)} of the last 60 minutes, and each read all of its"
        " state again. Likely causes: the system killed them for memory (see pillarbox memory), a function crashes or"
        " calls os._exit(), or a function does not return within five seconds when its epoch is cancelled. The"
        " executors' log has the exit of each process"
    )


def lost_records(snapshot: Snapshot) -> str | None:
    return _share_of_input(
        snapshot,
        "late_records_dropped",
        "were late and dropped: raise the bound of the watermark strategy, or send them to a side output"
        " (side_output_late_data)",
    )


def dead_letters(snapshot: Snapshot) -> str | None:
    return _share_of_input(
        snapshot, "dead_letters", "became dead letters: the side output of on_error= has the records and errors"
    )


def _share_of_input(snapshot: Snapshot, counter: str, what: str) -> str | None:
    names = {name for moment in moments_of(snapshot) for name in moment.counters if name.endswith(f".{counter}")}
    for uid in sorted(name.rpartition(".")[0] for name in names):
        bad = partial(_counted, names=[f"{uid}.{counter}"])
        fault = fault_in(snapshot, bad, partial(_input, uid=uid), least=10, share=0.01)
        if fault is not None:
            return (
                f"{fault.count:,} of {fault.of:,} records of {uid!r} ({fault.share:.1%}) in the last {_span(fault)},"
                f" since {clock(fault.since)}, {what}"
            )
    return None


def failing_calls(snapshot: Snapshot) -> str | None:
    counters = {name for moment in moments_of(snapshot) for name in moment.counters}
    operators = {uid for vertex in snapshot.vertices for uid in vertex.calls}
    operators |= {uid for name in counters if has_requests(uid := name.rpartition(".")[0], counters)}
    for uid in sorted(operators):
        bad, every = ([f"{uid}.{name}" for name in names] for names in (OUTCOMES[1:], OUTCOMES))
        # An async keyed function counts only timeouts.
        of = partial(_counted, names=every) if every[0] in counters else partial(_input, uid=uid)
        fault = fault_in(snapshot, partial(_counted, names=bad), of, least=10, share=0.05)
        if fault is not None:
            return (
                f"{fault.count:,} of {fault.of:,} records of {uid!r} ({fault.share:.0%}) in the last {_span(fault)}"
                f" failed or timed out, since {clock(fault.since)}: check the service, and timeout=, retry_strategy="
                " and rate_limit= of the operator"
            )
    return None


def _counted(moment: SnapshotMoment, names: Sequence[str]) -> int:
    return sum(moment.counters.get(name, 0) for name in names)


def _input(moment: SnapshotMoment, uid: str) -> int:
    return moment.inputs.get(uid, moment.rows)


def _span(fault: WindowFault) -> str:
    return f"{fault.span // MINUTE} minutes"


RECORD_RULES = (repeated_tasks, restarting_homes, lost_records, dead_letters, failing_calls)
