"""Scores payments with a model that is replaced when fraud changes, and compares the accuracy."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from model import predict, train
from pyspark.sql import DataFrame

from pillarbox import (
    KeyedBroadcastProcessFunction,
    MapStateDescriptor,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    local_session,
)

NOON, TWO = datetime(2026, 3, 2, 12), datetime(2026, 3, 2, 14)  # when fraud changes, and when the new model comes
PAYMENT = "id LONG, at TIMESTAMP, amount DOUBLE, abroad DOUBLE, pause DOUBLE, fraud INT"
FEATURES = ("amount", "abroad", "pause")
MODELS = MapStateDescriptor[int, Any]("models")  # by the time since when


class WithModel(KeyedBroadcastProcessFunction[int, Row, Row, Any]):
    """Holds each payment until event time reaches it, when all earlier models have arrived."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_state(ValueStateDescriptor[Row]("waiting"))

    def process_element(self, payment: Row, ctx: Any) -> None:
        self.waiting.update(payment)
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def process_broadcast_element(self, model: Row, ctx: Any) -> None:
        ctx.get_broadcast_state(MODELS).put(ctx.timestamp(), (model.name, list(model.weights)))

    def on_timer(self, now: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        models, payment = ctx.get_broadcast_state(MODELS), self.waiting.value()
        self.waiting.clear()
        if payment is not None:
            name, weights = models.get(max(at for at in models if at <= now))
            yield payment.at, payment.fraud, name, weights, [payment[feature] for feature in FEATURES]


def score(payments: list[Row]) -> list[tuple[Any, ...]]:
    """Score a batch of payments in a thread. During numpy's computations, other threads can run."""
    chances = predict([payment.weights for payment in payments], [payment.features for payment in payments])
    return [(row.at, row.fraud, row.model, int(chance > 0.5)) for row, chance in zip(payments, chances)]


def trained_on(payments: DataFrame) -> list[float]:
    rows = payments.orderBy("id").collect()
    weights: list[float] = train([[row[feature] for feature in FEATURES] for row in rows], [row.fraud for row in rows])
    return weights


spark = local_session()
history, payments = (
    spark.read.csv(str(Path(__file__).parent / f"{name}.csv"), header=True, schema=PAYMENT)
    for name in ("history", "payments")
)
rows = [
    ("old", datetime(2026, 3, 2), trained_on(history)),
    ("new", TWO, trained_on(payments.where(payments.at.between(NOON, TWO)))),
]
models = spark.createDataFrame(rows, "name STRING, at TIMESTAMP, weights ARRAY<DOUBLE>")
env = StreamExecutionEnvironment.get_execution_environment(spark)
times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")
keyed = env.from_dataframe(payments, "payments").assign_timestamps_and_watermarks(times).key_by("id")
for_all = env.from_dataframe(models, "models").assign_timestamps_and_watermarks(times).broadcast(MODELS)
columns = "at TIMESTAMP, fraud INT, model STRING, weights ARRAY<DOUBLE>, features ARRAY<DOUBLE>"
asked = keyed.connect(for_all).process(WithModel(), columns).uid("with-model")
scored = asked.map_async(score, "at TIMESTAMP, fraud INT, model STRING, guess INT", batch_size=200).uid("score")
scored.to_dataframe().createOrReplaceTempView("scored")
part = f"CASE WHEN at < '{NOON}' THEN 'morning' WHEN at < '{TWO}' THEN 'noon to two' ELSE 'after two' END"
accuracy = "count(*) AS payments, round(avg(int(fraud = guess)), 2) AS accuracy"
spark.sql(f"SELECT {part} AS part, model, {accuracy} FROM scored GROUP BY part, model ORDER BY min(at)").show()
