"""Rules about a query: what its newest epochs and its history tell."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import pairwise, takewhile
from statistics import median

from pillarbox._copies import COPY_MS
from pillarbox._task.memory import readable
from pillarbox._time.timestamps import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox_tools.doctor.facts import Facts
from pillarbox_tools.doctor.unknown import UnknownFactsError, known
from pillarbox_tools.model.executor_memory import executor_memory_of
from pillarbox_tools.model.growth import bytes_of, memory_of
from pillarbox_tools.model.held_watermarks import held_watermarks
from pillarbox_tools.model.skew import skew_of
from pillarbox_tools.model.snapshot import EpochRun, Moment, Snapshot, VertexRun

_HOUR, _DAY = 3_600_000, 86_400_000
# Fewer epochs with rows tell nothing.
_FEW = 10
# A fault in so many moments is no accident.
_SOME = 3


def _query(facts: Facts) -> Snapshot:
    return known(facts.snapshot, "the query: give a checkpoint")


def _epochs(facts: Facts) -> list[EpochRun]:
    """Return the newest epochs with rows."""
    found = [each for each in _query(facts).epochs if each.rows]
    if not found:
        raise UnknownFactsError("the epochs of the query: none with rows has ended yet")
    return found


def _moments(facts: Facts) -> list[Moment]:
    found = _query(facts).run.moments
    if not found:
        raise UnknownFactsError("the history of the query: no epoch has ended yet")
    return found


def _name(snapshot: Snapshot, program: str, vertex: int) -> str:
    plan = snapshot.plan
    names = {} if plan is None else {(each.program, each.number): each.uid or each.name for each in plan.vertices}
    return repr(names.get((program, vertex), f"vertex {vertex}"))


def executor_memory(facts: Facts) -> str | None:
    """Check that the fullest worker process has a fifth of its memory left."""
    limit = known(
        bytes_of(facts.settings.get("spark.executor.pyspark.memory")),
        "the memory that workers may use: spark.executor.pyspark.memory is not set",
    )
    used = known(memory_of(_query(facts)).bytes, "the memory of the workers")
    if used < 0.8 * limit:
        return None
    return (
        f"a worker process uses {used / limit:.0%} of its {limit >> 20} MiB: raise spark.executor.pyspark.memory, keep"
        " less for each key, or raise the parallelism with pillarbox rescale"
    )


def container_memory(facts: Facts) -> str | None:
    """Check that each executor needs at most nine tenths of its container."""
    executors = executor_memory_of(_query(facts))
    limited = [(each, each.limit) for each in executors if each.limit]
    if not limited:
        raise UnknownFactsError("the memory of the containers: no task has read a limit, and no setting has one")
    fullest, limit = max(limited, key=lambda pair: (pair[0].heap + pair[0].needed) / pair[1])
    if fullest.heap + fullest.needed <= 0.9 * limit:
        return None
    measured = "" if fullest.home_bytes is None else f", of which its homes have taken {readable(fullest.home_bytes)}"
    return (
        f"the executor on {fullest.name} needs {readable(fullest.heap + fullest.needed)} of the"
        f" {readable(limit)} of its container: heap {readable(fullest.heap)},"
        f" {', '.join(f'{each.name} {readable(each.bytes)}' for each in fullest.terms)}{measured}; set"
        f" spark.executor.memoryOverhead to {fullest.overhead >> 20}m (see pillarbox memory), or use more executors"
    )


def memory_runs_out(facts: Facts) -> str | None:
    """Check that memory lasts for a week."""
    memory = memory_of(_query(facts))
    if memory.full_at is None:
        if memory.limit is not None and memory.per_day is not None:
            return None
        raise UnknownFactsError(f"when memory runs out: {memory.message}")
    days = (memory.full_at - _query(facts).at) / _DAY
    if days > 7:
        return None
    when = datetime.fromtimestamp(memory.full_at / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"memory runs out in {max(0.0, days):.1f} days, on {when}, if it keeps growing at this rate: give state"
        " a time-to-live, or raise spark.executor.pyspark.memory"
    )


def heavy_keys(facts: Facts) -> str | None:
    """Check that no key has so many records that its task is what the epoch waits for."""
    for skew in skew_of(_with_tasks(facts)):
        for key in skew.heavy:
            if key.share - key.error > 0.25 and skew.tasks > 2 and skew.factor > 2 and skew.busiest_ms > 500:
                return (
                    f"key {key.key} has {key.share:.0%} (plus or minus {key.error:.0%}) of the records of"
                    f" {_name(_query(facts), skew.program, skew.vertex)}, and its subtask is busy {skew.factor:.1f}"
                    " times as long as the mean: aggregate before key_by(...), or make the key finer"
                )
    return None


def skewed_tasks(facts: Facts) -> str | None:
    """Check that no task is busy for much longer than the others."""
    for skew in skew_of(_with_tasks(facts)):
        if skew.factor > 4 and skew.tasks >= 4 and skew.busiest_ms > 1000:
            return (
                f"subtask {skew.busiest} of {_name(_query(facts), skew.program, skew.vertex)} is busy"
                f" {skew.factor:.1f} times as long as the mean of its tasks: look at its heavy keys, or at the"
                " partitions of the source"
            )
    return None


def _with_tasks(facts: Facts) -> EpochRun:
    found = [each for each in _epochs(facts) if each.tasks]
    if not found:
        raise UnknownFactsError("the tasks of an epoch with rows")
    return found[-1]


def stuck_watermark(facts: Facts) -> str | None:
    """Check that event time goes forward while newer records come."""
    epochs, snapshot = _epochs(facts), _query(facts)
    if len(epochs) < _FEW:
        raise UnknownFactsError(f"whether event time goes forward: fewer than {_FEW} epochs with rows have ended")
    if not _newer_records_come(epochs):
        return None  # the program has no event time, or its records are of one time: of a day, perhaps
    for place, runs in _runs(epochs).items():
        watermark, count = runs[-1].watermark, _standing([each.watermark for each in runs])
        if count < _FEW or watermark in (None, MAX_WATERMARK):
            continue
        if watermark == MIN_TIMESTAMP and not runs[-1].timers:
            continue  # nothing waits for it
        why = next((held.message for held in held_watermarks(snapshot) if (held.program, held.vertex) == place), "")
        said = "has not begun" if watermark == MIN_TIMESTAMP else "has stood still"
        return (
            f"event time of {_name(snapshot, *place)} {said} in {count} epochs with rows:"
            f" {why or 'its input holds it'}; see with_idleness(...) for sources that may be silent"
        )
    return None


def _standing(watermarks: list[int | None]) -> int:
    """Return how many of the last watermarks are the same."""
    return len(list(takewhile(lambda each: each == watermarks[-1], reversed(watermarks))))


def _newer_records_come(epochs: list[EpochRun]) -> bool:
    """Return whether the newest records are newer than they were some epochs ago, as far as tasks are known."""
    newest = [
        max(times) for epoch in epochs if (times := [each.event_times[1] for each in epoch.tasks if each.event_times])
    ]
    return len(newest) > 1 and newest[-1] > newest[0]


def _runs(epochs: list[EpochRun]) -> dict[tuple[str, int], list[VertexRun]]:
    """Return the runs of each vertex, the oldest first."""
    found: dict[tuple[str, int], list[VertexRun]] = {}
    for epoch in epochs:
        for run in epoch.vertices:
            found.setdefault((run.program, run.vertex), []).append(run)
    return found


def slow_epochs(facts: Facts) -> str | None:
    """Check that an epoch takes no longer than the trigger's interval."""
    interval = known(facts.trigger_ms, "the trigger of the query")
    if not interval:
        return None
    durations = [each.duration for each in _epochs(facts)][-_FEW:]
    if len(durations) < 3:
        raise UnknownFactsError("how long epochs take: fewer than 3 with rows have ended")
    usual = median(durations)
    if usual <= interval:
        return None
    return (
        f"an epoch takes {usual / 1000:.1f} s, and the trigger's interval is {interval / 1000:g} s: raise the interval,"
        " or the parallelism, or see which level takes longest"
    )


def piling_timers(facts: Facts) -> str | None:
    """Check that keys have a few timers each."""
    for vertex in (runs[-1] for runs in _runs(_epochs(facts)).values()):
        timers, keys = vertex.timers or 0, vertex.keys or 0
        if keys and timers > 100 * keys and timers > 10_000:
            return (
                f"the keys of {_name(_query(facts), vertex.program, vertex.vertex)} have {timers / keys:,.0f} timers"
                f" each, {timers:,} in all: register one timer and move it, as in"
                " ctx.timer_service().delete_event_time_timer(...)"
            )
    return None


def endless_state(facts: Facts) -> str | None:
    """Check that state does not grow for ever."""
    moments = _moments(facts)
    if moments[-1].at - moments[0].at < _HOUR:
        raise UnknownFactsError("whether state grows for ever: the history is shorter than an hour")
    for uid, keys in moments[-1].keys.items():
        known_keys = [each.keys[uid] for each in moments if uid in each.keys]
        grew = all(one <= other for one, other in pairwise(known_keys))
        middle = known_keys[len(known_keys) // 2]
        if len(known_keys) >= _FEW and grew and keys > 100_000 and keys > 1.2 * middle:
            hours = (moments[-1].at - moments[0].at) / _HOUR
            return (
                f"the keys of {uid!r} have grown from {known_keys[0]:,} to {keys:,} in {hours:.1f} hours, and never"
                " became fewer: give its states a time-to-live (StateTtlConfig), or clear them in a timer"
            )
    return None


def partitions_and_cores(facts: Facts) -> str | None:
    """Check that there are not many more state partitions than cores."""
    cores = known(facts.cores, "the cores of the cluster")
    said = facts.settings.get("parallelism", "")
    if not said.isdigit():
        raise UnknownFactsError("the parallelism of the query")
    partitions = int(said)
    if partitions > 8 * cores and partitions > 32:
        return (
            f"the query has {partitions} state partitions and {cores} cores: each partition costs an epoch some"
            f" milliseconds, so rescale it to {2 * cores}, with pillarbox rescale"
        )
    return None


def back_pressure(facts: Facts) -> str | None:
    """Check that the JVM takes what tasks emit."""
    for vertex in _epochs(facts)[-1].vertices:
        if vertex.back_pressured_ms > max(3 * vertex.busy_ms, 2000) and _is_usual(facts, vertex):
            return (
                f"tasks of {_name(_query(facts), vertex.program, vertex.vertex)} waited"
                f" {vertex.back_pressured_ms / 1000:.1f} s for their output to be taken, and were busy for"
                f" {vertex.busy_ms / 1000:.1f} s: the sink is slower than the program, so look at it first"
            )
    return None


def _is_usual(facts: Facts, vertex: VertexRun) -> bool:
    """Return whether a vertex was back-pressured in most of the last epochs."""
    runs = [
        each
        for epoch in _epochs(facts)[-_FEW:]
        for each in epoch.vertices
        if (each.program, each.vertex) == (vertex.program, vertex.vertex)
    ]
    return sum(each.back_pressured_ms > 3 * each.busy_ms for each in runs) > len(runs) / 2


def repeated_tasks(facts: Facts) -> str | None:
    """Check that Spark seldom has to repeat a task."""
    moments = _moments(facts)
    repeated, epochs = sum(each.repeated for each in moments), sum(each.epochs for each in moments)
    if repeated < 3 or repeated < epochs / 20:
        return None
    return (
        f"Spark has repeated {repeated} tasks in {epochs} epochs: look in the log of the executors for what ended the"
        " first attempts, such as a lack of memory"
    )


def tasks_in_workers(facts: Facts) -> str | None:
    """Check that tasks that should have homes have them."""
    newest = _query(facts).epochs[-_FEW:]
    if not newest:
        raise UnknownFactsError("where tasks run: no epoch has ended yet")
    for runs in _runs(newest).values():
        without = sum(sum(each.fallbacks.values()) for each in runs)
        if without:
            why = next(reason for each in reversed(runs) for reason in each.fallbacks)
            return (
                f"{without:,} of {sum(each.tasks for each in runs):,} tasks of"
                f" {_name(_query(facts), runs[-1].program, runs[-1].vertex)} in the last {len(newest)} epochs ran in"
                f" Python workers, as no home could be had: {why}. There, an epoch may read the whole log of its task,"
                ' and on_barrier="carry" waits for requests as "drain" does: look in the log of the executors, or set'
                " spark.pillarbox.homes to off if this platform starts no processes"
            )
    return None


def restarting_homes(facts: Facts) -> str | None:
    """Check that homes do not end again and again. That all of an executor's end at once is one fault."""
    moments = _moments(facts)
    recent = [each for each in moments if each.at > moments[-1].at - _HOUR and each.home_restarts]
    if len(recent) < _SOME:
        return None
    count = sum(each.home_restarts for each in recent)
    return (
        f"{count:,} homes were started again in {len(recent)} of the last 60 minutes, each with all of its state to"
        " read. Likely causes: the system ended them for memory (see pillarbox memory), a function crashes or calls"
        " os._exit(), or a function does not return within five seconds when its epoch is cancelled. The log of the"
        " executors tells how each one ended"
    )


def lost_records(facts: Facts) -> str | None:
    """Check that few records come too late."""
    return _share_of_rows(
        facts,
        "late_records_dropped",
        "came too late and went nowhere: raise the bound of the watermark strategy, or send them to a side output"
        " (side_output_late_data)",
    )


def dead_letters(facts: Facts) -> str | None:
    """Check that few records make the program fail."""
    return _share_of_rows(
        facts, "dead_letters", "became dead letters: read the side output of on_error to see which, and why"
    )


def _share_of_rows(facts: Facts, counter: str, what: str) -> str | None:
    moments = _moments(facts)
    rows = sum(each.rows for each in moments)
    counts: dict[str, int] = {}
    for moment in moments:
        for name, count in moment.counters.items():
            if name.endswith(f".{counter}"):
                counts[name] = counts.get(name, 0) + count
    for name, count in counts.items():
        if rows and count > 0.01 * rows and count > 10:
            return f"{count:,} records of {name.rpartition('.')[0]!r} ({count / rows:.1%} of all rows) {what}"
    return None


def failing_calls(facts: Facts) -> str | None:
    """Check that few calls of services fail."""
    moments = _moments(facts)
    totals: dict[str, dict[str, int]] = {}
    for moment in moments:
        for name, count in moment.counters.items():
            uid, _, counter = name.rpartition(".")
            if counter in ("completed", "failed", "timed_out"):
                totals.setdefault(uid, {})[counter] = totals.get(uid, {}).get(counter, 0) + count
    for uid, counts in totals.items():
        bad, every = counts.get("failed", 0) + counts.get("timed_out", 0), sum(counts.values())
        if every and bad > 0.05 * every and bad > 10:
            return (
                f"{bad:,} of {every:,} records of {uid!r} ({bad / every:.0%}) failed or timed out: look at the service,"
                " and at timeout, retry_strategy and rate_limit of the operator"
            )
    return None


def slow_copies(facts: Facts) -> str | None:
    """Check that copies of emitted values take little of the tasks' time."""
    newest = _epochs(facts)[-1]
    for vertex in newest.vertices:
        for name, took in vertex.counters.items():
            uid, is_copies, kind = name.rpartition(f".{COPY_MS}")
            if is_copies and took > 1000 and took > 0.2 * vertex.busy_ms:
                return (
                    f"{took / 1000:.1f} s of epoch {newest.number} went into copies of {kind}, which {uid!r} emits"
                    f" ({took / max(took, vertex.busy_ms):.0%} of its tasks' busy time): emit tuples or rows, declare"
                    f" pillarbox.immutable({kind}) if its instances never change, or call env.enable_object_reuse()"
                )
    return None


QUERY_RULES = (
    executor_memory,
    container_memory,
    memory_runs_out,
    heavy_keys,
    skewed_tasks,
    stuck_watermark,
    slow_epochs,
    piling_timers,
    endless_state,
    partitions_and_cores,
    back_pressure,
    repeated_tasks,
    tasks_in_workers,
    restarting_homes,
    lost_records,
    dead_letters,
    failing_calls,
    slow_copies,
)
