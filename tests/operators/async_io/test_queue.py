"""The queues of async operators."""

from __future__ import annotations

from typing import Any

from pillarbox._elements.elements import Watermark
from pillarbox._operators.async_io.api.request import RequestState
from pillarbox._operators.async_io.queue import QueueSegment, UnorderedQueue


class Entry:
    state = RequestState.PENDING
    segment: QueueSegment | None = None


def test_an_entry_that_completes_while_another_is_taken_leaves_before_the_watermark():
    queue: UnorderedQueue[Any] = UnorderedQueue()
    first, second, watermark = Entry(), Entry(), Watermark(5)
    queue.put(first)
    queue.put(second)
    queue.put_event(watermark)
    queue.complete(first)
    ready = queue.take_ready()
    assert next(ready) is first
    queue.complete(second)
    assert list(ready) == [second, watermark]
    assert queue.is_empty()
