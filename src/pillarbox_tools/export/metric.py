"""The list of exported metrics. OpenTelemetry exporters derive the same Prometheus names from it."""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


class Metric(NamedTuple):
    """An exported metric.

    Attributes:
        kind: ``counter`` or ``gauge``. A counter never decreases in this process.
        name: the name in OpenTelemetry, without ``pillarbox.``.
        unit: the UCUM unit, with words in braces.
        labels: the labels, without ``query``, which all metrics have.
        divisor: divides reported values, for example to convert milliseconds to the unit.
        epoch: the attribute of ``SnapshotEpoch`` that it exports, or empty.
        field: the field of ``OperatorReport`` that it exports, or empty.
        counter: the operators' counter that it exports, or empty.
    """

    kind: Literal["counter", "gauge"]
    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1
    epoch: str = ""
    field: str = ""
    counter: str = ""

    @property
    def prometheus_name(self) -> str:
        total = "_total" if self.kind == "counter" else ""
        return f"pillarbox_{self.name.replace('.', '_')}{_SUFFIXES.get(self.unit, '')}{total}"

    @property
    def otel_name(self) -> str:
        return f"pillarbox.{self.name}"


#: Label of an operator's metrics. A task's label is the uid of its first operator.
OPERATOR = ("operator",)

METRICS: list[Metric] = []


def _metric(
    kind: Literal["counter", "gauge"], name: str, unit: str, help: str, labels: tuple[str, ...] = (), **source: Any
) -> Metric:
    if "field" in source or "counter" in source:
        labels = OPERATOR
    METRICS.append(Metric(kind, name, unit, help, labels, **{"divisor": 1000 if unit == "s" else 1, **source}))
    return METRICS[-1]


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")

# -- the query --

INFO = _gauge("query.info", "", "1; the labels have the query's id and versions.", ("query_id", "spark", "version"))
UP = _gauge("query.up", "", "1 while the query runs, 0 when it has ended.")
STARTS = _counter("query.starts", "{start}", "Starts of the query, by its checkpoint's history.")
FAILURES = _counter(
    "query.failures", "{failure}", "Runs of the query that failed, or whose driver was lost, by its history."
)
CONDITION = _gauge("query.condition", "", "1 while the query has this condition, else 0.", ("condition",))
RUN_BEGAN = _gauge("run.began.timestamp", "s", "Start of this run (Unix time).")
EPOCH_RUNNING = _gauge("epoch.running", "s", "Time since the running epoch began; 0 between epochs.")
INPUT_AGE = _gauge("input.age", "s", "Time since the last epoch with rows ended.")
TRIGGER = _gauge("trigger.interval", "s", "The query's trigger interval, if it has one.")
EPOCHS = _counter("epochs", "{epoch}", "Committed epochs.")
EPOCH_TIME = _counter("epoch.time", "s", "Total duration of epochs, from trigger to commit.", epoch="duration")
EPOCH_DURATION = _gauge("epoch.duration", "s", "Duration of the newest epoch.", epoch="duration")
EPOCH_NUMBER = _gauge("epoch.number", "", "Number of the newest epoch: Spark's batch id.", epoch="number")
EPOCH_END = _gauge("epoch.end.timestamp", "s", "End of the newest epoch (Unix time).", epoch="end")
SPARK_TIME = _counter(
    "spark.time", "s", "Duration of Spark's phases of epochs; addBatch includes the tasks.", ("part",)
)
STATE_COMMIT = _counter("state.commit.time", "s", "Commit time of Spark's state stores.", epoch="state_commit")
ROWS_IN = _counter("rows.in", "{row}", "Rows from all sources.", epoch="rows")
ROWS_OUT = _counter("rows.out", "{row}", "Rows that the sink reports as written.", epoch="output_rows")
SOURCE_ROWS = _counter("source.rows", "{row}", "Rows from a source.", ("source",))
SOURCE_BACKLOG = _gauge("source.backlog", "{row}", "A source's newest offsets minus its read offsets.", ("source",))
WORKER_MEMORY = _gauge("worker.memory", "By", "Resident memory of the largest worker process.", epoch="process_bytes")
LEFT_OUT = _gauge("metrics.left_out", "", "Names of user metrics that are beyond the limit, and not exported.")

# -- tasks: sums over a vertex --

TASKS = _counter("tasks", "{task}", "Tasks that ran: one per epoch and subtask.", field="tasks")
REPEATED = _counter("tasks.repeated", "{task}", "Tasks that Spark had to repeat.", field="repeated")
UNFINISHED = _gauge("tasks.unfinished", "{task}", "Tasks that carry requests into the next epoch.", OPERATOR)
SENT = _counter(
    "records.sent", "{record}", "Records sent; a broadcast record counts once per receiving task.", field="records_out"
)
BYTES_SENT = _counter("buffers.sent", "By", "Bytes of sent buffers.", field="bytes_out")
BUSY = _counter("busy.time", "s", "Time that tasks worked.", field="busy_ms")
IDLE = _counter("idle.time", "s", "Time that tasks waited for input.", field="idle_ms")
BACK_PRESSURED = _counter(
    "back_pressured.time", "s", "Time that tasks waited to send their output.", field="back_pressured_ms"
)
STATE_TIME = _counter("state.time", "s", "Time that tasks loaded and wrote state.", field="state_ms")
BUSIEST = _counter("busiest_task.time", "s", "Busy time of each epoch's busiest task.", field="busiest_ms")
MEAN = _counter("mean_task.time", "s", "Mean busy time of each epoch's tasks.", OPERATOR)
HOME_RESTARTS = _counter(
    "home.restarts",
    "{start}",
    "Home processes started because the previous one ended, hung or was lost.",
    field="home_restarts",
)
HOME_COLD_STARTS = _counter(
    "home.cold_starts", "{start}", "Home processes without state of the run.", field="home_cold_starts"
)
HOME_ADOPTIONS = _counter(
    "home.adoptions", "{home}", "Home processes that a new starter process took over.", field="home_adoptions"
)
FALLBACKS = _counter("tasks.fallback", "{task}", "Tasks that ran in a Python worker for lack of a home.", OPERATOR)
WATERMARK = _gauge("watermark.timestamp", "s", "Lowest watermark of a task (Unix time).", OPERATOR)
WATERMARK_LAG = _gauge("watermark.lag", "s", "The end of the newest epoch minus the lowest watermark.", OPERATOR)
KEYS = _gauge("keys", "{key}", "Keys with state or timers.", field="keys")
TIMERS = _gauge("timers", "{timer}", "Timers of all keys, of both clocks.", field="timers")
STATE_SIZE = _gauge("state.size", "By", "Approximate size of the state when it is written.", field="state_bytes")
STATE_WRITTEN = _counter("state.written", "By", "Bytes of written state.", field="state_bytes_written")

# -- operators, including chained operators --

OPERATOR_INFO = _gauge(
    "operator.info",
    "",
    "1; the labels have an operator's name, the head of its task, and its level.",
    ("operator", "name", "task", "level"),
)
RECORDS_IN = _counter("records.in", "{record}", "Records that an operator received.", OPERATOR)
RECORDS_OUT = _counter("records.out", "{record}", "Records that an operator emitted.", OPERATOR)
LATE = _counter("late_records_dropped", "{record}", "Late records that were dropped.", counter="late_records_dropped")
DEAD_LETTERS = _counter(
    "dead_letters", "{record}", "Records and timers whose function raised, with on_error.", counter="dead_letters"
)
REQUESTS = _counter("async.requests", "{request}", "Requests of an asynchronous operator.", counter="requests")
RETRIED = _counter("async.retried", "{request}", "Repeated requests.", counter="retried")
COMPLETED = _counter("async.completed", "{record}", "Records with a result of their request.", counter="completed")
FAILED = _counter("async.failed", "{record}", "Records whose last request failed.", counter="failed")
TIMED_OUT = _counter("async.timed_out", "{record}", "Records whose requests took too long.", counter="timed_out")
DROPPED = _counter("async.dropped", "{record}", 'Records dropped by on_failure="drop".', counter="dropped")
CACHE_HITS = _counter(
    "async.cache_hits", "{record}", "Records with a result but without a request of their own.", counter="cache_hits"
)
IN_FLIGHT = _gauge("async.in_flight", "{request}", "Pending requests at an epoch's end.", counter="in_flight")
IN_FLIGHT_MAX = _gauge(
    "async.in_flight.max",
    "{request}",
    "Maximum number of pending requests of a task.",
    counter="in_flight_max",
)
LATENCY = _gauge(
    "async.latency",
    "s",
    "Response time, in the task with the longest.",
    ("operator", "quantile"),
    divisor=1_000_000,
)
RATE_LIMITED = _counter(
    "rate_limited.time",
    "s",
    "Time that the next request of a task waited for a rate limit: the longest wait of each epoch.",
    counter="rate_limited_ms",
)
CALLS = _counter("async.calls", "{call}", "Calls by ctx.call, without recorded answers.", counter="calls")
CALLS_REUSED = _counter("async.calls_reused", "{call}", "Calls with a recorded answer.", counter="calls_reused")
LONGEST_KEY = _gauge("async.longest_key", "{record}", "Longest queue of a key.", counter="longest_key")
BLOCKED = _gauge(
    "async.blocked", "s", "Longest step that blocked other records; 0 up to a second.", counter="blocked_ms"
)
#: Counter of a budget -> metric.
OF_BUDGETS = {
    name: _counter(f"budget.{name}", unit, help, ("operator", "budget"))
    for name, unit, help in (
        ("granted", "{request}", "Requests that a budget allowed."),
        ("spent", "{unit}", "Units that requests cost."),
        ("refused", "{request}", "Requests that a budget refused."),
        ("stops", "{stop}", "Responses that paused a budget, such as 429."),
        ("probes", "{request}", "Requests that an open breaker allowed."),
        ("lost", "{request}", "Booked start times that passed unused."),
    )
}
COPIES = _counter("copy.time", "s", "Time spent on copying emitted values.", ("operator", "class"))

# -- metrics of user functions --

_USER = ("operator", "name")
USER_COUNT = _counter("user.count", "", "Counters of functions; an epoch with a sum below 0 adds 0.", _USER)
USER_MIN = _gauge("user.gauge.min", "", "Lowest value of a function's gauge over all tasks.", _USER)
USER_MAX = _gauge("user.gauge.max", "", "Highest value of a function's gauge over all tasks.", _USER)

OF_EPOCHS = [metric for metric in METRICS if metric.epoch]
OF_FIELDS = [metric for metric in METRICS if metric.field]
#: Name of an operator's own counter -> (metric, value of the second label, if any).
OF_COUNTERS: dict[str, tuple[Metric, tuple[str, ...]]] = {
    **{metric.counter: (metric, ()) for metric in METRICS if metric.counter},
    **{
        f"latency_p{name}_us": (LATENCY, (quantile,))
        for name, quantile in (("50", "0.5"), ("95", "0.95"), ("99", "0.99"))
    },
}
