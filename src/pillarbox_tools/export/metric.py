"""The exported metrics, with their names in Prometheus and in OpenTelemetry.

OpenTelemetry's exporters, and Prometheus itself, derive the same Prometheus name from the OpenTelemetry name and unit,
so a board can read both.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


class Metric(NamedTuple):
    """A metric.

    Attributes:
        kind: a ``counter`` never decreases while its query runs in this process.
        name: OpenTelemetry name, without ``pillarbox.``.
        unit: UCUM unit; a unit in braces is a word.
        help: description.
        labels: labels besides ``query``, which all metrics have.
        divisor: divides reported values into the unit; reports have milliseconds.
        field: its field of ``OperatorReport``, or empty.
        counter: its operator counter, or empty.
    """

    kind: Literal["counter", "gauge"]
    name: str
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1
    field: str = ""
    counter: str = ""

    @property
    def prometheus_name(self) -> str:
        """The Prometheus name of its samples."""
        total = "_total" if self.kind == "counter" else ""
        return f"pillarbox_{self.name.replace('.', '_')}{_SUFFIXES.get(self.unit, '')}{total}"

    @property
    def otel_name(self) -> str:
        """The OpenTelemetry name of its instrument."""
        return f"pillarbox.{self.name}"


#: Label of an operator's metrics. The head's uid stands for all operators of its task.
OPERATOR = ("operator",)

#: All metrics, in export order.
METRICS: list[Metric] = []


def _metric(
    kind: Literal["counter", "gauge"],
    name: str,
    unit: str,
    help: str,
    labels: tuple[str, ...] = (),
    *,
    divisor: int | None = None,
    field: str = "",
    counter: str = "",
) -> Metric:
    if field or counter:
        labels = OPERATOR
    if divisor is None:
        divisor = 1000 if unit == "s" else 1
    METRICS.append(Metric(kind, name, unit, help, labels, divisor, field, counter))
    return METRICS[-1]


_counter, _gauge = partial(_metric, "counter"), partial(_metric, "gauge")

# -- the query --

INFO = _gauge("query.info", "", "1; the labels tell what runs the query.", ("query_id", "spark", "version"))
UP = _gauge("query.up", "", "1 while the query runs, 0 when it has ended.")
STARTS = _counter("query.starts", "{start}", "Starts of the query, by the history of its checkpoint.")
FAILURES = _counter(
    "query.failures", "{failure}", "Runs of the query that failed, or whose driver was lost, by its history."
)
CONDITION = _gauge("query.condition", "", "1 while the query has this condition, else 0.", ("condition",))
RUN_BEGAN = _gauge("run.began.timestamp", "s", "When this run was started (Unix time).")
EPOCH_RUNNING = _gauge("epoch.running", "s", "How long the epoch has run that runs now; 0: none does.")
INPUT_AGE = _gauge("input.age", "s", "How long ago the last epoch with rows ended.")
TRIGGER = _gauge("trigger.interval", "s", "The interval of the query's trigger, if it has one.")
EPOCHS = _counter("epochs", "{epoch}", "Epochs that were committed.")
EPOCH_TIME = _counter("epoch.time", "s", "The time that epochs took, from trigger to commit.")
EPOCH_DURATION = _gauge("epoch.duration", "s", "The time that the newest epoch took.")
EPOCH_NUMBER = _gauge("epoch.number", "", "The number of the newest epoch: Spark's batch id.")
EPOCH_END = _gauge("epoch.end.timestamp", "s", "When the newest epoch ended (Unix time).")
SPARK_TIME = _counter("spark.time", "s", "The time of Spark's parts of epochs; addBatch has the tasks.", ("part",))
STATE_COMMIT = _counter("state.commit.time", "s", "The time that the commits of Spark's state stores took.")
ROWS_IN = _counter("rows.in", "{row}", "Rows that came in from all sources.")
ROWS_OUT = _counter("rows.out", "{row}", "Rows that the sink says it has written.")
SOURCE_ROWS = _counter("source.rows", "{row}", "Rows that came in from a source.", ("source",))
SOURCE_BACKLOG = _gauge(
    "source.backlog", "{row}", "How far a source's newest offsets were ahead of what was read.", ("source",)
)
WORKER_MEMORY = _gauge("worker.memory", "By", "The resident memory of the fullest worker process.")
LEFT_OUT = _gauge("metrics.left_out", "", "Names of user metrics beyond the most that are exported.")

# -- tasks: all of a vertex --

TASKS = _counter("tasks", "{task}", "Tasks that ran, one an epoch and subtask.", field="tasks")
REPEATED = _counter("tasks.repeated", "{task}", "Tasks that Spark had to repeat.", field="repeated")
UNFINISHED = _gauge("tasks.unfinished", "{task}", "Tasks with requests for the next epoch.", OPERATOR)
SENT = _counter("records.sent", "{record}", "Records that were sent, to each task that gets one.", field="records_out")
BYTES_SENT = _counter("buffers.sent", "By", "Bytes of the buffers that were sent.", field="bytes_out")
BUSY = _counter("busy.time", "s", "The time in which tasks worked.", field="busy_ms")
IDLE = _counter("idle.time", "s", "The time in which tasks had no input.", field="idle_ms")
BACK_PRESSURED = _counter(
    "back_pressured.time", "s", "The time in which the output of tasks was not taken.", field="back_pressured_ms"
)
STATE_TIME = _counter("state.time", "s", "The time in which tasks loaded and wrote state.", field="state_ms")
BUSIEST = _counter("busiest_task.time", "s", "The busy time of each epoch's busiest task.", field="busiest_ms")
MEAN = _counter("mean_task.time", "s", "The mean busy time of each epoch's tasks.", OPERATOR)
HOME_RESTARTS = _counter(
    "home.restarts", "{start}", "Homes started because the one before ended, hung or was lost.", field="home_restarts"
)
HOME_COLD_STARTS = _counter(
    "home.cold_starts", "{start}", "Homes that had nothing of the run.", field="home_cold_starts"
)
HOME_ADOPTIONS = _counter("home.adoptions", "{home}", "Homes that a new starter took over.", field="home_adoptions")
FALLBACKS = _counter(
    "tasks.fallback", "{task}", "Tasks that ran in a Python worker although they should have homes.", OPERATOR
)
WATERMARK = _gauge("watermark.timestamp", "s", "The lowest watermark of a task (Unix time).", OPERATOR)
WATERMARK_LAG = _gauge("watermark.lag", "s", "The end of the newest epoch minus the lowest watermark.", OPERATOR)
KEYS = _gauge("keys", "{key}", "Keys with state or timers.", field="keys")
TIMERS = _gauge("timers", "{timer}", "Timers of all keys, of both clocks.", field="timers")
STATE_SIZE = _gauge("state.size", "By", "The approximate size of the state when it is written.", field="state_bytes")
STATE_WRITTEN = _counter("state.written", "By", "Bytes of state that were written.", field="state_bytes_written")

# -- operators, including chained ones --

OPERATOR_INFO = _gauge(
    "operator.info",
    "",
    "1; the labels tell what an operator is, and which operator heads its task.",
    ("operator", "name", "task", "level"),
)
RECORDS_IN = _counter("records.in", "{record}", "Records that came to an operator.", OPERATOR)
RECORDS_OUT = _counter("records.out", "{record}", "Records that an operator emitted.", OPERATOR)
LATE = _counter(
    "late_records_dropped", "{record}", "Records that came too late and went nowhere.", counter="late_records_dropped"
)
DEAD_LETTERS = _counter(
    "dead_letters", "{record}", "Records and timers whose function raised, with on_error.", counter="dead_letters"
)
REQUESTS = _counter("async.requests", "{request}", "Requests of an asynchronous operator.", counter="requests")
RETRIED = _counter("async.retried", "{request}", "Requests that repeat one.", counter="retried")
COMPLETED = _counter("async.completed", "{record}", "Records with a result of their request.", counter="completed")
FAILED = _counter("async.failed", "{record}", "Records whose last request failed.", counter="failed")
TIMED_OUT = _counter("async.timed_out", "{record}", "Records whose requests took too long.", counter="timed_out")
DROPPED = _counter("async.dropped", "{record}", 'Records that on_failure="drop" dropped.', counter="dropped")
CACHE_HITS = _counter("async.cache_hits", "{record}", "Records without a request of their own.", counter="cache_hits")
IN_FLIGHT = _gauge("async.in_flight", "{request}", "Requests under way at an epoch's end.", counter="in_flight")
IN_FLIGHT_MAX = _gauge(
    "async.in_flight.max",
    "{request}",
    "The most requests of a task that were under way at a time.",
    counter="in_flight_max",
)
LATENCY = _gauge(
    "async.latency",
    "s",
    "How long answers took, of the task with the longest.",
    ("operator", "quantile"),
    divisor=1_000_000,
)
RATE_LIMITED = _counter(
    "rate_limited.time",
    "s",
    "The time in which the next request of a task waited for a rate limit; of each epoch, the longest wait.",
    counter="rate_limited_ms",
)
COPIES = _counter("copy.time", "s", "The time that copies of emitted values took.", ("operator", "class"))

# -- metrics of user functions --

_USER = ("operator", "name")
USER_COUNT = _counter("user.count", "", "Counters of functions; an epoch with a sum below 0 adds 0.", _USER)
USER_MIN = _gauge("user.gauge.min", "", "The lowest value of a gauge of functions, over tasks.", _USER)
USER_MAX = _gauge("user.gauge.max", "", "The highest value of a gauge of functions, over tasks.", _USER)

#: The metrics of ``OperatorReport`` fields.
OF_FIELDS = [metric for metric in METRICS if metric.field]
#: Metrics of operators' own counters, by counter name, with the value of a second label if the metric has one.
OF_COUNTERS: dict[str, tuple[Metric, tuple[str, ...]]] = {
    **{metric.counter: (metric, ()) for metric in METRICS if metric.counter},
    **{
        f"latency_p{name}_us": (LATENCY, (quantile,))
        for name, quantile in (("50", "0.5"), ("95", "0.95"), ("99", "0.99"))
    },
}
