"""Cards that pay three times within a minute: keyed state, an event-time timer, and a DataFrame on both sides."""

from pillarbox import (
    KeyedProcessFunction,
    ListStateDescriptor,
    StreamExecutionEnvironment,
    WatermarkStrategy,
    local_session,
)


class ThreeWithinAMinute(KeyedProcessFunction):
    def open(self, runtime_context):
        self.recent = runtime_context.get_list_state(ListStateDescriptor("recent"))

    def process_element(self, payment, ctx):
        self.recent.add((ctx.timestamp(), payment.amount))
        ctx.timer_service().register_event_time_timer(ctx.timestamp())  # called in event-time order

    def on_timer(self, now, ctx):
        recent = sorted(p for p in self.recent if p[0] > now - 60_000)
        self.recent.update(recent)
        seen = [amount for at, amount in recent if at <= now]
        if len(seen) >= 3:
            yield ctx.get_current_key(), now, len(seen), sum(seen)


spark = local_session()
payments = spark.sql(
    "SELECT * FROM VALUES ('ann', 1000L, 5.0D), ('bob', 2000L, 7.5D), ('ann', 9000L, 80.0D), ('ann', 42000L, 95.0D),"
    " ('bob', 70000L, 7.5D), ('bob', 71000L, 8.0D), ('ann', 99000L, 3.0D) AS payments(card, at, amount)"
)

env = StreamExecutionEnvironment.get_execution_environment(spark).set_parallelism(2)
late_by = WatermarkStrategy.for_bounded_out_of_orderness("5 seconds").with_timestamp_assigner("at")
alerts = (
    env.from_dataframe(payments)  # or spark.readStream...: nothing else changes
    .assign_timestamps_and_watermarks(late_by)
    .key_by("card")
    .process(ThreeWithinAMinute())
    .uid("three-within-a-minute")
)
found = alerts.to_dataframe("card STRING, at LONG, payments INT, total DOUBLE")
print(env.get_execution_graph())
found.show()
