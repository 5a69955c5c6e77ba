"""The timer queue contains and returns the same timers as a plain set."""

from __future__ import annotations

import gc
import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox._state.heap import timer_queue
from pillarbox._state.heap.timer_queue import TimerQueue


def load(queue, timestamps, owners):
    queue.load(np.array(timestamps, np.int64), owners)


def take(queue, timestamp):
    owners = list(queue.pop(timestamp))
    queue.size -= len(owners)
    return owners


TIMERS = st.tuples(st.integers(-5, 5), st.sampled_from("abc"))


@given(st.sets(TIMERS), st.lists(st.tuples(st.sampled_from(["add", "add", "discard", "discard", "pop"]), TIMERS)))
def test_against_a_set(loaded, steps):
    queue: TimerQueue = TimerQueue()
    load(queue, [timestamp for timestamp, _ in loaded], [owner for _, owner in loaded])
    timers = set(loaded)
    for what, (timestamp, owner) in steps:
        if what == "add" and (timestamp, owner) not in timers:
            queue.add(timestamp, owner)
            timers.add((timestamp, owner))
        elif what == "discard" and (timestamp, owner) in timers:
            queue.discard(timestamp, owner)
            timers.discard((timestamp, owner))
        elif what == "pop" and timers:
            earliest = min(timer[0] for timer in timers)
            owners = take(queue, earliest)
            due = {timer for timer in timers if timer[0] == earliest}
            assert sorted((earliest, owner) for owner in owners) == sorted(due)
            timers -= due
        assert len(queue) == len(timers)
        assert queue.next_timestamp() == min((timer[0] for timer in timers), default=None)


def test_owners_of_one_timestamp_come_in_the_order_in_which_they_were_added():
    queue = TimerQueue()
    for owner in ("c", "a", "b"):
        queue.add(7, owner)
    queue.discard(7, "a")
    queue.add(7, "a")
    assert take(queue, 7) == ["c", "b", "a"]
    assert take(queue, 7) == []


@pytest.mark.parametrize("loads", [False, True])
@pytest.mark.parametrize("old", ["", "z", "zyx"])
def test_owners_of_before_the_epoch_come_first_in_an_order_of_their_own(loads, old):
    queue = TimerQueue()
    if loads:
        load(queue, [7] * len(old), list(old))
    else:
        for owner in old:
            queue.add(7, owner)
        queue.end_epoch()
    for owner in "cab":
        queue.add(7, owner)
    assert list(queue.pop(7, sorted)) == [*sorted(old), "c", "a", "b"]


def test_timers_that_move_leave_nothing_behind():
    queue = TimerQueue()
    for timestamp in range(100_000):
        queue.add(timestamp, "k")
        if timestamp:
            queue.discard(timestamp - 1, "k")
    assert len(queue) == 1
    assert len(queue._heap) < 200
    assert queue.next_timestamp() == 99_999


def test_restored_timers_that_move_leave_nothing_behind():
    for first in ("discard", "look"):
        queue = TimerQueue()
        count = 20_000
        load(queue, [10**9 + owner for owner in range(count)], [Owner(owner) for owner in range(count)])
        if first == "look":
            assert queue.next_timestamp() == 10**9
        for owner in range(1, count):
            queue.discard(10**9 + owner, Owner(owner))
            queue.add(2 * 10**9 + owner, owner)
        assert len(queue) == count
        assert sum(isinstance(tracked, Owner) for tracked in gc.get_objects()) < 3_000
        assert queue.next_timestamp() == 10**9
        assert take(queue, 10**9) == [Owner(0)]
        assert queue.next_timestamp() == 2 * 10**9 + 1


def test_restored_timers_that_have_fired_are_freed():
    queue = TimerQueue()
    load(queue, list(range(20_000)), [Owner(owner) for owner in range(20_000)])
    while (earliest := queue.next_timestamp()) is not None and earliest < 15_000:
        take(queue, earliest)
    assert sum(isinstance(tracked, Owner) for tracked in gc.get_objects()) < 10_000


@pytest.mark.parametrize("swept", [0, 3])
def test_sweeping_changes_nothing(swept, monkeypatch):
    monkeypatch.setattr(timer_queue, "_SWEPT", swept)
    test_against_a_set()
    test_loaded_timers_come_in_portions_and_in_order()
    test_many_timers()


@dataclass(frozen=True)
class Owner:
    number: int


def test_many_timers():
    queue = TimerQueue()
    order = random.Random(1)
    timers = {(order.randrange(50_000), order.randrange(1_000)) for _ in range(30_000)}
    for timestamp, owner in timers:
        queue.add(timestamp, owner)
    gone = [timer for timer in timers if timer[1] % 3 == 0]
    for timestamp, owner in gone:
        queue.discard(timestamp, owner)
    left = timers - set(gone)
    assert len(queue) == len(left)
    popped = []
    while (earliest := queue.next_timestamp()) is not None:
        popped += [(earliest, owner) for owner in take(queue, earliest)]
    assert popped == sorted(popped, key=lambda timer: timer[0])
    assert set(popped) == left and len(popped) == len(left)


def test_loaded_timers_come_in_portions_and_in_order():
    order = random.Random(2)
    timestamps = [order.randrange(3_000) for _ in range(10_000)]
    queue = TimerQueue()
    load(queue, timestamps[:4_000], list(range(4_000)))
    load(queue, timestamps[4_000:], list(range(4_000, 10_000)))
    assert len(queue) == 10_000
    for owner in range(0, 10_000, 2):
        queue.discard(timestamps[owner], owner)
    queue.add(3_001, "added")
    left = []
    while (earliest := queue.next_timestamp()) is not None:
        left += [(earliest, owner) for owner in take(queue, earliest)]
    assert left.pop() == (3_001, "added")
    assert left == sorted(left, key=lambda timer: timer[0])
    assert sorted(left) == sorted((timestamps[owner], owner) for owner in range(1, 10_000, 2))
    assert len(queue) == 0


def test_what_is_not_taken_stays_and_what_comes_before_it_comes_first():
    queue = TimerQueue()
    for owner in ("a", "b", "c"):
        queue.add(10, owner)
    first = queue.pop(10)
    assert next(first) == "a" and not queue.overtaken
    queue.add(11, "later")
    assert not queue.overtaken
    queue.add(7, "earlier")
    assert queue.overtaken and queue.next_timestamp() == 7
    assert list(queue.pop(7)) == ["earlier"]
    assert queue.next_timestamp() == 10
    queue.add(10, "d")
    assert list(queue.pop(10)) == ["b", "c"]
    assert queue.next_timestamp() == 10
    assert list(queue.pop(10)) == ["d"]
    assert queue.next_timestamp() == 11


@pytest.mark.parametrize("fires", [True, False])
def test_timers_that_are_gone_leave_nothing_behind_in_a_long_epoch(fires):
    queue = TimerQueue()
    for timestamp in range(20_000):
        queue.add(timestamp, "a")
        if fires:
            assert take(queue, queue.next_timestamp()) == ["a"]
        else:
            queue.discard(timestamp, "a")
    assert len(queue._latest_alone) + len(queue._alone) + len(queue._heap) < 10_000
