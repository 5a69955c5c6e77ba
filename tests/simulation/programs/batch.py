"""Programs for batch mode, where all input arrives in one epoch.

Some outcomes depend on an order that only batch mode guarantees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from pillarbox import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    RuntimeExecutionMode,
    WatermarkStrategy,
)
from pillarbox.testing._program_harness import Build
from tests.simulation.oracles import by_key
from tests.simulation.programs.program import Inputs, SimulatedProgram
from tests.simulation.programs.two_inputs import two_streams
from tests.support.programs import first

__all__ = ["in_batch_mode"]

KNOWN = MapStateDescriptor("known")


class Known(BroadcastProcessFunction):
    """Emits each record with the broadcast values so far."""

    def process_element(self, value, ctx):
        yield value, len(list(ctx.get_broadcast_state(KNOWN)))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(KNOWN).put(value[2], True)


class KnownByKey(KeyedBroadcastProcessFunction):
    """Emits each record with its index among its key's records, and the broadcast values so far."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.add(value[2])
        yield value[0], tuple(self.seen), len(list(ctx.get_broadcast_state(KNOWN)))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(KNOWN).put(value[2], True)


def broadcast_first(env, lefts, rights):
    timed = _by_number(lefts, 0)
    return {
        "each": lefts.connect(rights.broadcast(KNOWN)).process(Known()),
        "by key": timed.key_by(first).connect(rights.broadcast(KNOWN)).process(KnownByKey()),
    }


def all_are_known(inputs: Inputs) -> dict[str, Any]:
    lefts, count = inputs["lefts"], len(inputs["rights"])
    places = [
        (key, tuple(numbers[:end]), count)
        for key, values in by_key(lefts).items()
        for numbers in [[value[2] for value in values]]
        for end in range(1, len(numbers) + 1)
    ]
    return {"each": [(value, count) for value in lefts], "by key": places}


class InTurn(KeyedCoProcessFunction):
    """Emits a key's records stream by stream, and again at the key's end."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element1(self, value, ctx):
        yield self.came(0, value, ctx)

    def process_element2(self, value, ctx):
        yield self.came(1, value, ctx)

    def came(self, stream, value, ctx):
        self.seen.add((stream, value[2]))
        ctx.timer_service().register_event_time_timer(0)
        ctx.timer_service().register_processing_time_timer(0)
        return value[0], tuple(self.seen), ctx.timer_service().current_watermark()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), ctx.time_domain().value, tuple(self.seen), ctx.timer_service().current_watermark()


def both_in_turn(env, lefts, rights):
    left, right = _by_number(lefts, 0), _by_number(rights, 1)
    return left.connect(right).key_by(first, first).process(InTurn())


def in_turn(inputs: Inputs) -> dict[str, Any]:
    numbered = [(n, 0, key) for key, _, n in inputs["lefts"]] + [(n, 1, key) for key, _, n in inputs["rights"]]
    results: list[Any] = []
    for key, group in by_key(sorted(numbered), lambda pair: pair[2]).items():
        seen = tuple((stream, n) for n, stream, _ in group)
        results += [(key, seen[:end], -(2**63)) for end in range(1, len(seen) + 1)]
        results += [(key, clock, seen, 2**63 - 1) for clock in ("event time", "processing time")]
    return {"output": results}


def _by_number(stream: Any, further: int) -> Any:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value: 2 * value[2] + further)
    return stream.assign_timestamps_and_watermarks(at)


_ONLY = {
    "broadcast-first": SimulatedProgram(broadcast_first, two_streams, order={"by key": first}, oracle=all_are_known),
    "both-in-turn": SimulatedProgram(both_in_turn, two_streams, order={"output": first}, oracle=in_turn),
}


def in_batch_mode(programs: Mapping[str, SimulatedProgram]) -> dict[str, SimulatedProgram]:
    return {f"{name}-in-batch-mode": _in_batch_mode(program) for name, program in {**programs, **_ONLY}.items()}


def _in_batch_mode(program: SimulatedProgram) -> SimulatedProgram:
    oracle = program.batch_oracle or program.oracle
    return replace(
        program,
        build=_built(program.build),
        batch=True,
        key_by_key=program.sorted_in_batch,
        view=program.batch_view or program.view,
        oracle=None if isinstance(oracle, str) else oracle,
    )


def _built(build: Build) -> Build:
    @wraps(build)
    def built(env: Any, *streams: Any) -> Any:
        return build(env.set_runtime_mode(RuntimeExecutionMode.BATCH), *streams)

    return built
