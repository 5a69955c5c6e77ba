"""Programs and functions that tests of several layers share."""

from __future__ import annotations

from typing import Any

from pillarbox import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from pillarbox.testing import row

LATE = OutputTag("late")
UNPAID = OutputTag("unpaid")


def first(value: Any) -> Any:
    return value[0]


def second(value: Any) -> Any:
    return value[1]


def monotonous(position: int = 1) -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: value[position])


def bounded(bound: int) -> WatermarkStrategy:
    return WatermarkStrategy.for_bounded_out_of_orderness(bound).with_timestamp_assigner(lambda value: value[1])


class Tumbling(KeyedProcessFunction):
    """Sums values in tumbling event-time windows of 50 ms. Emits late records to a side output."""

    def open(self, runtime_context):
        self.sums = runtime_context.get_map_state(MapStateDescriptor("sums"))

    def process_element(self, value, ctx):
        end = value[1] // 50 * 50 + 50
        if end - 1 <= ctx.timer_service().current_watermark():
            yield LATE, value
            return
        self.sums[end] = (self.sums.get(end) or 0) + value[2]
        ctx.timer_service().register_event_time_timer(end - 1)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp + 1, self.sums[timestamp + 1]
        self.sums.remove(timestamp + 1)


def windows(env, events):
    summed = events.assign_timestamps_and_watermarks(bounded(10_000)).key_by(first).process(Tumbling())
    return {"sums": summed, "late": summed.get_side_output(LATE)}


def late_data(env, events):
    summed = events.assign_timestamps_and_watermarks(monotonous()).key_by(first).process(Tumbling())
    return {"sums": summed, "late": summed.get_side_output(LATE)}


class History(KeyedProcessFunction):
    """Stores a key's values in the order of arrival."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        self.seen.add(value)
        self.count.update((self.count.value() or 0) + 1)
        if value % 7 == 0:
            self.seen.clear()
        yield ctx.get_current_key(), self.count.value(), tuple(self.seen)


def diamond(env, source):
    doubled, negated = source.map(lambda x: 2 * x), source.map(lambda x: -x)
    return doubled.union(negated, source, source).key_by(lambda x: x).reduce(lambda a, b: a + b)


def rows_with_columns(env, payments):
    return payments.key_by("card").reduce(lambda a, b: row(card=a.card, amount=a.amount + b.amount))


class Paid(KeyedCoProcessFunction):
    """Joins an order with its payments. Emits an order without payments to a side output after ten seconds."""

    def open(self, runtime_context):
        self.order = runtime_context.get_state(ValueStateDescriptor("order"))
        self.early = runtime_context.get_list_state(ListStateDescriptor("early"))

    def process_element1(self, order, ctx):
        self.order.update(order)
        payments = list(self.early)
        self.early.clear()
        if not payments:
            ctx.timer_service().register_event_time_timer(order.at + 10_000)
        for amount in payments:
            yield order.id, amount

    def process_element2(self, payment, ctx):
        order = self.order.value()
        if order is None:
            self.early.add(payment.amount)
        else:
            ctx.timer_service().delete_event_time_timer(order.at + 10_000)
            yield order.id, payment.amount

    def on_timer(self, timestamp, ctx):
        yield UNPAID, ctx.get_current_key()


def paid(env, orders, payments):
    by_at = WatermarkStrategy.for_bounded_out_of_orderness("1 hour").with_timestamp_assigner("at")
    orders = orders.assign_timestamps_and_watermarks(by_at)
    payments = payments.assign_timestamps_and_watermarks(by_at)
    joined = orders.connect(payments).key_by("id", "order_id").process(Paid())
    return {"paid": joined, "unpaid": joined.get_side_output(UNPAID)}
