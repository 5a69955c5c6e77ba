"""The end of bounded data. An operator completes its work before it is finished, and nothing follows."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pillarbox._elements.buffers import Buffer, encode
from pillarbox._elements.elements import Barrier, Element, EndOfData, Watermark
from pillarbox._elements.records import Records
from pillarbox._errors import ExchangeError
from pillarbox._operators.async_io.api.options import AsyncOptions
from pillarbox._operators.async_io.operator import AsyncWaitOperator
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.functions.basic import KeyedProcessFunction
from pillarbox._operators.keyed.process import KeyedProcessOperator
from pillarbox._state.chunks.store import MemoryChunkStore
from pillarbox._task.network.input_gate import InputGate
from pillarbox._task.vertex import InputEdge
from pillarbox._time.manual_clock import ManualProcessingTimeService
from pillarbox._time.timestamp_assigner import MAX_WATERMARK
from pillarbox.mailbox import MailOptions
from tests.support.nodes import node
from tests.task.tasks import UPSTREAM, Notes, Noting, kinds, run_source, sent, share, shuffled_task, source_task

END = (Watermark(MAX_WATERMARK), EndOfData())


class Later(KeyedProcessFunction):
    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 30)
        timers.register_event_time_timer(1000)
        yield "element", value

    def on_timer(self, timestamp, ctx):
        yield ctx.time_domain().name, ctx.get_current_key()


def later():
    return node(KeyedProcessOperator, "later", Later(), Keying(lambda value: value, "key_by"))


def run_to_the_end(task, batches):
    store = MemoryChunkStore()
    assert task.restore(store)
    return [buffer for part in task.run_epoch(batches, store) for buffer in part]


def test_a_timer_that_has_fired_comes_before_the_maximum_watermark():
    clock = ManualProcessingTimeService()
    task = shuffled_task(later(), clock=clock)

    def batches():
        yield share(Records([1]), end=END)
        clock.advance(30)  # within the step that finds the end

    elements = sent(run_to_the_end(task, batches()), 5)
    assert elements[:3] == [("element", 1), ("PROCESSING_TIME", 1), ("EVENT_TIME", 1)]
    assert elements[3:-1] == list(END) and isinstance(elements[-1], Barrier)
    task.close()


@pytest.mark.parametrize("moment", ["end_input", "finish"])
def test_no_timer_fires_once_its_operator_is_finished(moment):
    """The timer's time arrives while a later operator ends. Nothing is sent after the end of the data."""
    clock = ManualProcessingTimeService()
    notes: Notes = []

    class Slow(Noting):
        def end_input(self):
            self.note("end_input")

    task = shuffled_task(
        later(), node(Slow, "tail", notes, **{moment: lambda operator: clock.advance(30)}), clock=clock
    )
    elements = sent(run_to_the_end(task, [share(Records([1]), end=END)]), 5)
    assert elements[:2] == [("element", 1), ("EVENT_TIME", 1)]
    assert elements[2:-1] == list(END) and isinstance(elements[-1], Barrier)
    assert kinds(notes, "end_input", "finish") == [("end_input", "tail"), ("finish", "tail")]
    task.close()


@pytest.mark.parametrize("on_barrier", ["carry", "drain"])
def test_requests_at_the_end_of_data(on_barrier):
    clock = ManualProcessingTimeService()
    ending, asked = threading.Event(), []

    class Between(Noting):
        def end_input(self):
            ending.set()

        def finish(self):
            ending.set()

    async def ask(value):
        asked.append(value)
        while not ending.is_set():
            await asyncio.sleep(0.001)
        clock.advance(30)
        return value

    requests = node(AsyncWaitOperator, "ask", ask, AsyncOptions("map_async", timeout=None, on_barrier=on_barrier))
    task = shuffled_task(later(), node(Between, "between", []), requests, clock=clock)
    elements = sent(run_to_the_end(task, [share(Records([0, 1]), end=END)]), 5)
    expected = [("element", value) for value in (0, 1)] + [("EVENT_TIME", value) for value in (0, 1)]
    assert elements[:-3] == expected and elements[-3:-1] == list(END)
    assert sorted(asked) == sorted(expected)
    task.close()


def test_timeouts_count_until_all_requests_have_left_also_in_the_next_epoch():
    clock = ManualProcessingTimeService()

    async def never(value):
        clock.advance(51)
        await asyncio.Event().wait()

    options = AsyncOptions("map_async", timeout=50, on_failure="drop")
    task = source_task(node(AsyncWaitOperator, "never", never, options), clock=clock)
    task.restore()
    for epoch in range(3):
        assert sent(run_source(task, [epoch], epoch=epoch, bounded=True)) == []
    task.close()


def test_p6_the_mails_of_an_operator_run_before_it_is_finished():
    notes: Notes = []

    class Posting(Noting):
        def end_input(self):
            self.note("end_input")
            execute = self.context.mailbox_executor.execute
            execute(lambda: self.note("deferrable mail"), "mail", options=MailOptions.deferrable())
            execute(lambda: self.note("mail"), "mail")

    task = source_task(node(Posting, "a", notes), node(Posting, "b", notes))
    task.restore()
    run_source(task, bounded=True)
    expected = [(what, name) for name in "ab" for what in ("end_input", "deferrable mail", "mail", "finish")]
    assert kinds(notes, "end_input", "deferrable mail", "mail", "finish") == expected
    task.close()


def test_records_after_the_end_of_a_channels_data_are_refused():
    gate = InputGate("next", [InputEdge(0, 0)])
    gate.begin_epoch(1)
    elements: list[Element] = [EndOfData(), Records([1]), Barrier(1)]
    buffers = [Buffer(9, UPSTREAM, seq, encode(element)) for seq, element in enumerate(elements)]
    assert list(gate.receive(buffers[0])) == []
    with pytest.raises(ExchangeError, match="after the end of its data"):
        list(gate.receive(buffers[1]))
