"""The report of a task: its metrics for one epoch."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class TaskReport:
    """The metrics of one task for one epoch. Durations are in ms, times are Unix times in ms.

    Attributes:
        vertex: the operators' names.
        uid: the first operator's uid, or ``""`` for a source.
        level: number of shuffles between the sources and the task.
        subtask: the subtask's index; for a source, the partition.
        busy_ms: the epoch's time minus ``idle_ms``, ``back_pressured_ms`` and ``state_ms``.
        idle_ms: time waiting for input.
        back_pressured_ms: time waiting for the output to be consumed.
        state_ms: time for syncing and writing the state.
        alignment_ms: time from the first barrier to the last.
        counters: counters of the operators and functions, by ``uid.name``.
        buffers_in: buffers received. For a source, this field and the fields below are None, unless their description
            mentions sources.
        keys: number of keys with state or timers. With many columnar windows, the number of keys in the largest window.
        next_wake_up: when the task next has work even without input, or None.
        unfinished: whether requests are carried into the next epoch.
        state_bytes: the approximate serialized size of the state.
        mailbox_latency_ms: the longest wait of the latest ten probes in the mailbox, or None unless measured
            (``measure_mailbox_latency``). Also set for sources.
        state_sync: ``"in step"`` if the task's state already had the store's version, ``"loaded"`` if it read the
            state from the store.
        state_format: ``"plain"`` for plain data of declared types, ``"pickle: "`` and the reason, or None without
            state.
        gauges: the functions' other metrics, by ``uid.name``.
        rate_limited_ms: how long an async function's next requests waited for a rate limit, or None without a limit.
        broadcast_in: number of broadcast records among the received records. Each subtask receives every broadcast
            record.
        process: pid of the process that ran the task: a home process (long-lived process of a state partition) or a
            Spark Python worker.
        attempt: the Spark task's attempt number, from 0, or None outside of Spark.
        process_bytes: resident memory of that process (Linux), including pages that home processes share.
        number: the vertex's number in the program, or -1 if unknown.
        started: when the epoch began in the task.
        operators: records in and out of each operator of the chain, from the head.
        held_by: [vertex, subtask] of the sender that holds the task's watermark back, or None. The subtask is -1 for a
            source without records in the epoch.
        event_times: [smallest, largest, source position of the largest timestamp's record] of the timestamps that the
            task assigned in the epoch, or None. A position is ``{"topic", "partition", "offset"}`` for Kafka,
            ``{"file"}`` for files, otherwise ``{}``.
        key_sample: the number of sampled records, and the most frequent keys in the sample (as text) with their counts.
            None if the stream has no keys or few records.
        versions: Python and package versions of the process. Only set in the task's first epoch in a process.
        private_bytes: memory of the process (Linux) without shared pages.
        executor: pid of the process's executor (a JVM), or None if unknown.
        memory_limit: memory limit (bytes) of the container, or None. Set in the same epoch as ``versions``.
        home_restarts: number of home processes started for this epoch because their predecessors ended, hung or were
            lost.
        home_cold_starts: number of home processes that began without the query's state, as in the task's first epoch.
        home_adoptions: number of home processes that a new starter (the process that starts them) took over from an
            ended starter.
        fallback: why the task ran in a Spark Python worker instead of its home process, or None.
        program: name of the program in Spark's metrics, set when the progress is read.
        hot_keys: maps the uid of each async keyed function to the key (as text) that the most records waited for. The
            counter ``longest_key`` counts these records. None if no record waited.
    """

    vertex: str
    uid: str
    level: int
    subtask: int
    epoch: int
    records_in: int
    records_out: int
    bytes_out: int
    mails: int
    busy_ms: int
    idle_ms: int
    back_pressured_ms: int
    state_ms: int
    alignment_ms: int
    counters: dict[str, int] = field(default_factory=dict)
    buffers_in: int | None = None
    watermark: int | None = None
    keys: int | None = None
    event_time_timers: int | None = None
    processing_time_timers: int | None = None
    next_wake_up: int | None = None
    unfinished: bool | None = None
    state_bytes: int | None = None
    state_bytes_written: int | None = None
    state_chunks: int | None = None
    state_sync: str | None = None
    state_format: str | None = None
    mailbox_latency_ms: int | None = None
    gauges: dict[str, float] = field(default_factory=dict)
    rate_limited_ms: int | None = None
    broadcast_in: int | None = None
    host: str | None = None
    process: int | None = None
    attempt: int | None = None
    process_tasks: int | None = None
    process_bytes: int | None = None
    number: int = -1
    started: int = 0
    operators: list[list[int]] | None = None
    held_by: list[int] | None = None
    event_times: list[Any] | None = None
    key_sample: list[Any] | None = None
    versions: dict[str, str] | None = None
    private_bytes: int | None = None
    executor: int | None = None
    memory_limit: int | None = None
    home_restarts: int = 0
    home_cold_starts: int = 0
    home_adoptions: int = 0
    fallback: str | None = None
    program: str = ""
    hot_keys: dict[str, str] | None = None

    @property
    def is_source(self) -> bool:
        """Whether the task runs a source, and so has neither state nor timers."""
        return self.level == 0

    @property
    def timers(self) -> int | None:
        """Total number of timers on both clocks, or None for a source."""
        return None if self.is_source else (self.event_time_timers or 0) + (self.processing_time_timers or 0)

    @property
    def total_ms(self) -> int:
        return self.busy_ms + self.idle_ms + self.back_pressured_ms + self.state_ms

    def __repr__(self) -> str:
        return metrics_repr(self, vars(self))


# Field defaults. For a field without a default, this is MISSING, which equals no value.
_DEFAULTS = [
    default_field.default if default_field.default_factory is MISSING else default_field.default_factory()
    for default_field in fields(TaskReport)
]


def text_of_report(report: TaskReport) -> str:
    """Return a report's values as a JSON array. New fields of ``TaskReport`` must be added at its end.

    Trailing default values are omitted to save memory: Spark keeps a hundred progress events per query.
    """
    values = list(vars(report).values())
    while values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    return json.dumps(values, separators=(",", ":"))


def report_of_text(text: str) -> TaskReport:
    """Parse a report, ignoring fields of later versions."""
    return TaskReport(*json.loads(text)[: len(fields(TaskReport))])


def metrics_repr(report: Any, values: dict[str, Any]) -> str:
    shown = ", ".join(f"{name}={value!r}" for name, value in values.items() if value or name in ("subtask", "epoch"))
    return f"{type(report).__name__}({shown})"
