"""Functions for the operator table, which use their operators' features."""

from __future__ import annotations

import asyncio

from pillarbox import (
    AggregateFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    ValueStateDescriptor,
)

RULES = MapStateDescriptor("rules")


class Timed(KeyedProcessFunction):
    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.add(value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, list(self.seen)


class AsyncTimed(Timed):
    async def process_element(self, value, ctx):
        await asyncio.sleep(0)
        super().process_element(value, ctx)

    async def on_timer(self, timestamp, ctx):
        for result in super().on_timer(timestamp, ctx):
            await asyncio.sleep(0)
            yield result


class Raising(Timed):
    """Changes state and timers, then raises for some records and timers."""

    def process_element(self, value, ctx):
        super().process_element(value, ctx)
        yield 1 // (value.n % 3)

    def on_timer(self, timestamp, ctx):
        yield from super().on_timer(timestamp, ctx)
        self.seen.add(timestamp)
        yield 1 // (timestamp % 2)


class Either(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield "one", value.n, ctx.timestamp()

    def process_element2(self, value, ctx):
        yield "two", value.n, ctx.timestamp()


class AnyOf(CoMapFunction):
    def map1(self, value):
        return value.n if value.n % 2 else None

    def map2(self, value):
        return -value.n


class Seen(CoFlatMapFunction):
    def open(self, runtime_context):
        self.ones = runtime_context.get_list_state(ListStateDescriptor("ones"))
        self.twos = runtime_context.get_list_state(ListStateDescriptor("twos"))

    def flat_map1(self, value):
        self.ones.add(value.n)
        return [(value.n, list(self.twos))]

    def flat_map2(self, value):
        self.twos.add(value.n)
        return [(value.n, list(self.ones)), value.n]


class Pairs(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.left = runtime_context.get_state(ValueStateDescriptor("left"))

    def process_element1(self, value, ctx):
        self.left.update(value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)

    def process_element2(self, value, ctx):
        yield self.left.value(), value.n

    def on_timer(self, timestamp, ctx):
        yield "over", timestamp, self.left.value()
        self.left.clear()


class AsyncPairs(Pairs):
    async def process_element2(self, value, ctx):
        await asyncio.sleep(0)
        return super().process_element2(value, ctx)


class Ruled(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value.n, ctx.get_broadcast_state(RULES).get(value.key)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value.key, value.n)
        yield "rule", len(list(ctx.get_broadcast_state(RULES)))


class KeyedRuled(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value.n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 5)
        yield value.key, self.sum.value(), ctx.get_broadcast_state(RULES).get(value.key)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES)[value.key] = value.n
        ctx.apply_to_keyed_state(ValueStateDescriptor("sum"), lambda key, sum: sum.update(sum.value() + 100))

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.sum.value(), sorted(ctx.get_broadcast_state(RULES).items())


class AsyncKeyedRuled(KeyedRuled):
    async def process_element(self, value, ctx):
        await asyncio.sleep(0)
        return super().process_element(value, ctx)


class Asked(AsyncFunction):
    async def async_invoke(self, value):
        return [value.n, value.n * 10]


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value.n

    def get_result(self, accumulator):
        return accumulator

    def merge(self, accumulator, other):
        return accumulator + other


class Numbers(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, context.window().start, sorted(value.n for value in elements)


class RaisingNumbers(Numbers):
    def process(self, key, context, elements):
        yield from super().process(key, context, elements)
        yield 1 // (len(elements) % 3)
