"""The metrics that exporters tell of, each with its names in Prometheus and in OpenTelemetry.

OpenTelemetry's exporters, and Prometheus itself, make the same name in Prometheus of the name in OpenTelemetry and its
unit, so that a board reads both.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

_SUFFIXES = {"s": "_seconds", "By": "_bytes"}


class Metric(NamedTuple):
    """A metric.

    Attributes:
        name: in OpenTelemetry, after ``pillarbox.``.
        kind: a ``counter`` never falls while its query runs in this process.
        unit: by UCUM; those in braces are words for people.
        help: what it is.
        labels: besides ``query``, which all metrics have.
        divisor: the number by which values are divided to be in the unit.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    divisor: int = 1

    @property
    def prometheus_name(self) -> str:
        """The name of its samples in Prometheus."""
        total = "_total" if self.kind == "counter" else ""
        return f"pillarbox_{self.name.replace('.', '_')}{_SUFFIXES.get(self.unit, '')}{total}"

    @property
    def otel_name(self) -> str:
        """The name of its instrument in OpenTelemetry."""
        return f"pillarbox.{self.name}"


#: Of each metric that is of one operator, or of the operators that run in one task, which the head's uid stands for.
OPERATOR = ("operator",)

# -- the query --

INFO = Metric("query.info", "gauge", "", "1; the labels tell what runs the query.", ("query_id", "spark", "version"))
UP = Metric("query.up", "gauge", "", "1 while the query runs, 0 when it has ended.")
STARTS = Metric("query.starts", "counter", "{start}", "Starts of the query, by the history of its checkpoint.")
FAILURES = Metric(
    "query.failures", "counter", "{failure}", "Runs of the query that failed, or whose driver was lost, by its history."
)
CONDITION = Metric("query.condition", "gauge", "", "1 while the query has this condition, else 0.", ("condition",))
RUN_BEGAN = Metric("run.began.timestamp", "gauge", "s", "When this run was started (Unix time).", divisor=1000)
EPOCH_RUNNING = Metric(
    "epoch.running", "gauge", "s", "How long the epoch has run that runs now; 0: none does.", divisor=1000
)
INPUT_AGE = Metric("input.age", "gauge", "s", "How long ago the last epoch with rows ended.", divisor=1000)
TRIGGER = Metric("trigger.interval", "gauge", "s", "The interval of the query's trigger, if it has one.", divisor=1000)
EPOCHS = Metric("epochs", "counter", "{epoch}", "Epochs that were committed.")
EPOCH_TIME = Metric("epoch.time", "counter", "s", "The time that epochs took, from trigger to commit.", divisor=1000)
EPOCH_DURATION = Metric("epoch.duration", "gauge", "s", "The time that the newest epoch took.", divisor=1000)
EPOCH_NUMBER = Metric("epoch.number", "gauge", "", "The number of the newest epoch: Spark's batch id.")
EPOCH_END = Metric("epoch.end.timestamp", "gauge", "s", "When the newest epoch ended (Unix time).", divisor=1000)
SPARK_TIME = Metric(
    "spark.time",
    "counter",
    "s",
    "The time of Spark's parts of epochs; addBatch has the tasks.",
    ("part",),
    divisor=1000,
)
STATE_COMMIT = Metric(
    "state.commit.time",
    "counter",
    "s",
    "The time that the commits of Spark's state stores took.",
    divisor=1000,
)
ROWS_IN = Metric("rows.in", "counter", "{row}", "Rows that came in from all sources.")
ROWS_OUT = Metric("rows.out", "counter", "{row}", "Rows that the sink says it has written.")
SOURCE_ROWS = Metric("source.rows", "counter", "{row}", "Rows that came in from a source.", ("source",))
SOURCE_BACKLOG = Metric(
    "source.backlog", "gauge", "{row}", "How far a source's newest offsets were ahead of what was read.", ("source",)
)
WORKER_MEMORY = Metric("worker.memory", "gauge", "By", "The resident memory of the fullest worker process.")
LEFT_OUT = Metric("metrics.left_out", "gauge", "", "Names of user metrics beyond the most that are exported.")

# -- tasks: all of a vertex together --

TASKS = Metric("tasks", "counter", "{task}", "Tasks that ran, one an epoch and subtask.", OPERATOR)
REPEATED = Metric("tasks.repeated", "counter", "{task}", "Tasks that Spark had to repeat.", OPERATOR)
UNFINISHED = Metric("tasks.unfinished", "gauge", "{task}", "Tasks with requests for the next epoch.", OPERATOR)
SENT = Metric("records.sent", "counter", "{record}", "Records that were sent, to each task that gets one.", OPERATOR)
BYTES_SENT = Metric("buffers.sent", "counter", "By", "Bytes of the buffers that were sent.", OPERATOR)
BUSY = Metric("busy.time", "counter", "s", "The time in which tasks worked.", OPERATOR, 1000)
IDLE = Metric("idle.time", "counter", "s", "The time in which tasks had no input.", OPERATOR, 1000)
BACK_PRESSURED = Metric(
    "back_pressured.time", "counter", "s", "The time in which the output of tasks was not taken.", OPERATOR, 1000
)
STATE_TIME = Metric("state.time", "counter", "s", "The time in which tasks loaded and wrote state.", OPERATOR, 1000)
BUSIEST = Metric("busiest_task.time", "counter", "s", "The busy time of each epoch's busiest task.", OPERATOR, 1000)
MEAN = Metric("mean_task.time", "counter", "s", "The mean busy time of each epoch's tasks.", OPERATOR, 1000)
HOME_RESTARTS = Metric(
    "home.restarts", "counter", "{start}", "Homes started because the one before ended, hung or was lost.", OPERATOR
)
HOME_COLD_STARTS = Metric("home.cold_starts", "counter", "{start}", "Homes that had nothing of the run.", OPERATOR)
HOME_ADOPTIONS = Metric("home.adoptions", "counter", "{home}", "Homes that a new starter took over.", OPERATOR)
FALLBACKS = Metric(
    "tasks.fallback",
    "counter",
    "{task}",
    "Tasks that ran in a Python worker although they should have homes.",
    OPERATOR,
)
WATERMARK = Metric("watermark.timestamp", "gauge", "s", "The lowest watermark of a task (Unix time).", OPERATOR, 1000)
WATERMARK_LAG = Metric(
    "watermark.lag", "gauge", "s", "The end of the newest epoch minus the lowest watermark.", OPERATOR, 1000
)
KEYS = Metric("keys", "gauge", "{key}", "Keys with state or timers.", OPERATOR)
TIMERS = Metric("timers", "gauge", "{timer}", "Timers of all keys, of both clocks.", OPERATOR)
STATE_SIZE = Metric("state.size", "gauge", "By", "The approximate size of the state when it is written.", OPERATOR)
STATE_WRITTEN = Metric("state.written", "counter", "By", "Bytes of state that were written.", OPERATOR)

# -- operators, also those that are chained --

OPERATOR_INFO = Metric(
    "operator.info",
    "gauge",
    "",
    "1; the labels tell what an operator is, and which operator heads its task.",
    ("operator", "name", "task", "level"),
)
RECORDS_IN = Metric("records.in", "counter", "{record}", "Records that came to an operator.", OPERATOR)
RECORDS_OUT = Metric("records.out", "counter", "{record}", "Records that an operator emitted.", OPERATOR)
LATE = Metric("late_records_dropped", "counter", "{record}", "Records that came too late and went nowhere.", OPERATOR)
DEAD_LETTERS = Metric(
    "dead_letters", "counter", "{record}", "Records and timers whose function raised, with on_error.", OPERATOR
)
REQUESTS = Metric("async.requests", "counter", "{request}", "Requests of an asynchronous operator.", OPERATOR)
RETRIED = Metric("async.retried", "counter", "{request}", "Requests that repeat one.", OPERATOR)
COMPLETED = Metric("async.completed", "counter", "{record}", "Records with a result of their request.", OPERATOR)
FAILED = Metric("async.failed", "counter", "{record}", "Records whose last request failed.", OPERATOR)
TIMED_OUT = Metric("async.timed_out", "counter", "{record}", "Records whose requests took too long.", OPERATOR)
DROPPED = Metric("async.dropped", "counter", "{record}", 'Records that on_failure="drop" dropped.', OPERATOR)
CACHE_HITS = Metric("async.cache_hits", "counter", "{record}", "Records without a request of their own.", OPERATOR)
IN_FLIGHT = Metric("async.in_flight", "gauge", "{request}", "Requests under way at an epoch's end.", OPERATOR)
IN_FLIGHT_MAX = Metric(
    "async.in_flight.max", "gauge", "{request}", "The most requests of a task that were under way at a time.", OPERATOR
)
LATENCY = Metric(
    "async.latency",
    "gauge",
    "s",
    "How long answers took, of the task with the longest.",
    ("operator", "quantile"),
    1_000_000,
)
COPIES = Metric(
    "copy.time", "counter", "s", "The time that copies of emitted values took.", ("operator", "class"), 1000
)
RATE_LIMITED = Metric(
    "rate_limited.time",
    "counter",
    "s",
    "The time in which the next request of a task waited for a rate limit; of each epoch, the longest wait.",
    OPERATOR,
    1000,
)

# -- metrics of users' functions --

_USER = ("operator", "name")
USER_COUNT = Metric("user.count", "counter", "", "Counters of functions; an epoch with a sum below 0 adds 0.", _USER)
USER_MIN = Metric("user.gauge.min", "gauge", "", "The lowest value of a gauge of functions, over tasks.", _USER)
USER_MAX = Metric("user.gauge.max", "gauge", "", "The highest value of a gauge of functions, over tasks.", _USER)

#: All of them, in the order in which they are told.
METRICS: tuple[Metric, ...] = (
    *(
        INFO,
        UP,
        STARTS,
        FAILURES,
        CONDITION,
        RUN_BEGAN,
        EPOCH_RUNNING,
        INPUT_AGE,
        TRIGGER,
        EPOCHS,
        EPOCH_TIME,
        EPOCH_DURATION,
        EPOCH_NUMBER,
        EPOCH_END,
        SPARK_TIME,
    ),
    *(STATE_COMMIT, ROWS_IN, ROWS_OUT, SOURCE_ROWS, SOURCE_BACKLOG, WORKER_MEMORY, LEFT_OUT),
    *(TASKS, REPEATED, UNFINISHED, SENT, BYTES_SENT, BUSY, IDLE, BACK_PRESSURED, STATE_TIME, BUSIEST, MEAN),
    *(HOME_RESTARTS, HOME_COLD_STARTS, HOME_ADOPTIONS, FALLBACKS),
    *(WATERMARK, WATERMARK_LAG, KEYS, TIMERS, STATE_SIZE, STATE_WRITTEN),
    *(OPERATOR_INFO, RECORDS_IN, RECORDS_OUT, LATE, DEAD_LETTERS, REQUESTS, RETRIED, COMPLETED, FAILED, TIMED_OUT),
    *(DROPPED, CACHE_HITS, IN_FLIGHT, IN_FLIGHT_MAX, LATENCY, RATE_LIMITED, COPIES, USER_COUNT, USER_MIN, USER_MAX),
)

#: How the operators' own counters are exported, by their names; the label that some have besides ``operator``.
OF_COUNTERS: dict[str, tuple[Metric, tuple[str, ...]]] = {
    "late_records_dropped": (LATE, ()),
    "dead_letters": (DEAD_LETTERS, ()),
    "requests": (REQUESTS, ()),
    "retried": (RETRIED, ()),
    "completed": (COMPLETED, ()),
    "failed": (FAILED, ()),
    "timed_out": (TIMED_OUT, ()),
    "dropped": (DROPPED, ()),
    "cache_hits": (CACHE_HITS, ()),
    "in_flight": (IN_FLIGHT, ()),
    "in_flight_max": (IN_FLIGHT_MAX, ()),
    "latency_p50_us": (LATENCY, ("0.5",)),
    "latency_p95_us": (LATENCY, ("0.95",)),
    "latency_p99_us": (LATENCY, ("0.99",)),
    "rate_limited_ms": (RATE_LIMITED, ()),
}
