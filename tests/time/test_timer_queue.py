"""The timer queue against a set (T3)."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from pillarbox.time.timer_queue import TimerQueue

TIMERS = st.tuples(st.integers(-5, 5), st.sampled_from("abc"))


@given(st.lists(st.tuples(st.sampled_from(["add", "add", "discard", "pop"]), TIMERS)))
def test_against_a_set(steps):
    queue: TimerQueue = TimerQueue()
    timers = set()
    for what, (timestamp, owner) in steps:
        if what == "add":
            queue.add(timestamp, owner)
            timers.add((timestamp, owner))
        elif what == "discard":
            queue.discard(timestamp, owner)
            timers.discard((timestamp, owner))
        else:
            assert {(timestamp, owner) for owner in queue.pop(timestamp)} == {t for t in timers if t[0] == timestamp}
            timers = {timer for timer in timers if timer[0] != timestamp}
        assert len(queue) == len(timers)
        assert queue.next_timestamp() == min((timer[0] for timer in timers), default=None)


def test_owners_of_one_timestamp_come_in_the_order_in_which_they_were_added():
    queue = TimerQueue()
    for owner in ("c", "a", "b", "a"):
        queue.add(7, owner)
    queue.discard(7, "a")
    queue.add(7, "a")
    assert list(queue.pop(7)) == ["c", "b", "a"]
    assert list(queue.pop(7)) == []


def test_timers_that_move_leave_nothing_behind():
    """A timer that is put off with every record, as of a session, must not fill the heap."""
    queue = TimerQueue()
    for timestamp in range(100_000):
        queue.add(timestamp, "k")
        queue.discard(timestamp - 1, "k")
    assert len(queue) == 1
    assert len(queue._heap) < 200
    assert queue.next_timestamp() == 99_999


def test_a_hundred_thousand_timers():
    queue = TimerQueue()
    order = random.Random(1)
    timers = {(order.randrange(50_000), order.randrange(1_000)) for _ in range(100_000)}
    for timestamp, owner in timers:
        queue.add(timestamp, owner)
    gone = [timer for timer in timers if timer[1] % 3 == 0]
    for timestamp, owner in gone:
        queue.discard(timestamp, owner)
    left = timers - set(gone)
    assert len(queue) == len(left)
    popped = []
    while (earliest := queue.next_timestamp()) is not None:
        popped += [(earliest, owner) for owner in queue.pop(earliest)]
    assert popped == sorted(popped, key=lambda timer: timer[0])
    assert set(popped) == left and len(popped) == len(left)


@given(st.sets(TIMERS), st.lists(TIMERS))
def test_loading_is_adding(timers, more):
    queue = TimerQueue()
    queue.add(99, "gone")
    queue.load([timer[0] for timer in timers], [timer[1] for timer in timers])
    for timestamp, owner in more:
        queue.add(timestamp, owner)
    timers |= set(more)
    assert len(queue) == len(timers)
    assert queue.next_timestamp() == min((timer[0] for timer in timers), default=None)
    assert {(timestamp, owner) for timestamp in range(-5, 6) for owner in queue.pop(timestamp)} == timers
    assert (len(queue), queue.next_timestamp()) == (0, None)
