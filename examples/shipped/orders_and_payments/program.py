"""Finds orders that are not paid within ten minutes, and payments without a waiting order."""

from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pillarbox import (
    KeyedCoProcessFunction,
    MapStateDescriptor,
    OutputTag,
    Row,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    local_session,
)

TEN_MINUTES = 600_000  # milliseconds
REFUNDS = OutputTag[tuple[Any, ...]]("refunds")


def moment(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


class Unpaid(KeyedCoProcessFunction[str, Row, Row, tuple[Any, ...]]):
    """Sets a timer for each order and payment, so that they are processed in the order of their times."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.customer = runtime_context.get_state(ValueStateDescriptor("customer", str))  # of an order that waits
        self.payments = runtime_context.get_map_state(MapStateDescriptor("payments", int, float))  # amounts, by time

    def process_element1(self, order: Row, ctx: Any) -> None:
        self.customer.update(order.customer)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + TEN_MINUTES)

    def process_element2(self, payment: Row, ctx: Any) -> None:
        self.payments[ctx.timestamp()] = payment.amount
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, now: int, ctx: Any) -> Iterator[Any]:
        amount, customer = self.payments.get(now), self.customer.value()
        self.customer.clear()
        if amount is not None:  # this is the time of a payment: the first one within ten minutes is the right one
            del self.payments[now]
            if customer is None:
                yield REFUNDS, (ctx.get_current_key(), moment(now), amount)
        elif customer is not None:  # this is the end of the ten minutes
            yield ctx.get_current_key(), customer, moment(now - TEN_MINUTES), moment(now)


spark = local_session()
here = Path(__file__).parent
env = StreamExecutionEnvironment.get_execution_environment(spark)
times = WatermarkStrategy.for_bounded_out_of_orderness("30 seconds").with_timestamp_assigner("at")
orders = spark.read.csv(str(here / "orders.csv"), header=True, schema="id STRING, customer STRING, at TIMESTAMP")
payments = spark.read.csv(str(here / "payments.csv"), header=True, schema="id STRING, at TIMESTAMP, amount DOUBLE")
unpaid = (
    env.from_dataframe(orders, "orders")
    .assign_timestamps_and_watermarks(times)
    .connect(env.from_dataframe(payments, "payments").assign_timestamps_and_watermarks(times))
    .key_by("id", "id")
    .process(Unpaid(), "order STRING, customer STRING, ordered TIMESTAMP, due TIMESTAMP")
    .uid("unpaid")
)
refunds = unpaid.get_side_output(REFUNDS)
for result, title in (
    (unpaid.to_dataframe(), "orders that were not paid within 10 minutes"),
    (refunds.to_dataframe("order STRING, paid TIMESTAMP, amount DOUBLE"), "payments that no order waits for"),
):
    print(f"{result.count()} {title}")
    result.orderBy("order").show(5)
