"""Orders that nobody has paid within ten minutes: keyed state, an event-time timer, and a DataFrame on both sides."""

from pillarbox import (
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    WatermarkStrategy,
    local_session,
)


class UnpaidOrders(KeyedProcessFunction):
    """Reports each order that nobody has paid within ten minutes."""

    def open(self, runtime_context):
        self.ordered_at = runtime_context.get_state(ValueStateDescriptor("ordered_at", int))  # a value per order
        self.paid_at = runtime_context.get_state(ValueStateDescriptor("paid_at", int))

    def process_element(self, event, ctx):
        (self.paid_at if event.what == "paid" else self.ordered_at).update(event.at)
        ctx.timer_service().register_event_time_timer(event.at + 600_000)  # milliseconds

    def on_timer(self, now, ctx):
        paid_at = self.paid_at.value()
        if self.ordered_at.value() is not None and (paid_at is None or paid_at > now):
            yield ctx.get_current_key(), now
        self.ordered_at.clear()  # no state is left, even if an order is paid too late
        self.paid_at.clear()


spark = local_session()  # or the SparkSession that you have
events = spark.sql(
    "SELECT * FROM VALUES ('A1', 'ordered', 0L), ('A2', 'ordered', 60000L), ('A1', 'paid', 300000L)"
    " AS events(order_id, what, at)"
)

env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
times = WatermarkStrategy.for_bounded_out_of_orderness("1 minute").with_timestamp_assigner("at")  # LONG: Unix time, ms
unpaid = (
    env.from_dataframe(events)  # or spark.readStream...: the program stays the same
    .assign_timestamps_and_watermarks(times)
    .key_by("order_id")
    .process(UnpaidOrders())
    .uid("unpaid-orders")  # the operator's name in checkpoints
)
unpaid.to_dataframe("order_id STRING, at LONG").show()
