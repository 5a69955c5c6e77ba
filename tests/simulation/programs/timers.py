"""Programs with processing-time timers."""

from __future__ import annotations

from pillarbox import KeyedProcessFunction, ValueStateDescriptor
from tests.simulation import oracles
from tests.simulation.programs.program import FAR, LETTERS, SimulatedProgram, of_events
from tests.support.programs import bounded, first, second


class Later(KeyedProcessFunction):
    """Sets processing-time timers, which set further timers."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        if timestamp % 4 == 0:
            ctx.timer_service().register_processing_time_timer(timestamp + 101)
        yield ctx.get_current_key(), timestamp


def processing_time(env, events):
    # A past timer fires each time it is set, so no timer may be set twice, and times are even.
    return events.key_by(first).process(Later())


class Reminder(KeyedProcessFunction):
    """Sets a key's timers in both time domains. Event-time timers delete half of the processing-time timers."""

    def open(self, runtime_context):
        self.waits = runtime_context.get_state(ValueStateDescriptor("waits"))

    def process_element(self, value, ctx):
        if value[2] % 3 == 0:
            # Not before the end of the run: event time ends first.
            ctx.timer_service().register_processing_time_timer(FAR + value[2])
            self.waits.update((*(self.waits.value() or ()), value[2]))
        ctx.timer_service().register_event_time_timer(value[1])

    def on_timer(self, timestamp, ctx):
        if timestamp >= FAR:
            yield "late", ctx.get_current_key(), timestamp - FAR
            return
        for number in self.waits.value() or ():
            if number % 2 == 0:
                ctx.timer_service().delete_processing_time_timer(FAR + number)
        self.waits.update(tuple(n for n in self.waits.value() or () if n % 2) or None)
        yield "timer", ctx.get_current_key(), timestamp


def both_kinds_of_timers(env, events):
    return events.assign_timestamps_and_watermarks(bounded(20_000)).key_by(first).process(Reminder())


PROGRAMS: dict[str, SimulatedProgram] = {
    "processing-time": SimulatedProgram(
        processing_time,
        lambda rng: {"events": [(rng.choice(LETTERS), at) for at in rng.sample(range(2, 1600, 2), rng.randrange(40))]},
        tail=(600,) * 4,
        cut_free=True,
        timed=True,
        batch_oracle=oracles.each_key(lambda key, group: [(key, at) for at in sorted(set(map(second, group)))]),
    ),
    "both-kinds-of-timers": of_events(
        both_kinds_of_timers,
        last={"events": [("z", FAR // 2, 1)]},
        tail=(2 * FAR, 1),
        cut_free=True,
        timed=True,
        batch_oracle=oracles.each_key(oracles.reminders),
    ),
}
