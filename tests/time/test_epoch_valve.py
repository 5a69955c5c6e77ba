from __future__ import annotations

from itertools import permutations

import pytest

from pillarbox._time.epoch_valve import EpochValve
from tests.time.test_valve import Sink


class Valve:
    """A valve with the channels a and b. Each epoch returns its output during the epoch and at the end."""

    def __init__(self):
        self.valve = EpochValve("ab")
        self.sink = Sink()

    def epoch(self, *inputs, fails=False):
        self.valve.begin_epoch()
        for channel, word in inputs:
            if word == "idle" or word == "active":
                self.valve.status_came(channel, word == "idle")
            else:
                self.valve.watermark_came(channel, word, self.sink)
        meanwhile = self.sink.take()
        if not fails:
            self.valve.end_epoch(self.sink)
        return meanwhile, self.sink.take()


def test_watermarks_of_aligned_channels_count_as_they_come():
    valve = Valve()
    assert valve.epoch(("a", 5), ("b", 3)) == ([3], [])
    assert valve.epoch(("b", 9)) == ([5], [])


def test_statuses_wait_for_the_end_of_the_epoch_and_so_does_what_the_channel_says_after_them():
    valve = Valve()
    valve.epoch(("a", 5), ("b", 3))
    assert valve.epoch(("b", "idle"), ("a", 8)) == ([], [8])
    # An idle channel does not count; an active one counts again.
    assert valve.epoch(("b", 100), ("a", 9)) == ([], [9])
    assert valve.epoch(("b", "active"), ("b", 20), ("a", 12)) == ([], [12])
    assert valve.epoch(("a", 30)) == ([20], [])


def test_watermarks_of_a_channel_that_became_idle_do_not_count():
    valve = Valve()
    valve.epoch(("a", 5), ("b", 3))
    assert valve.epoch(("b", "idle")) == ([], [5])
    assert valve.epoch(("b", "active"), ("b", 6), ("b", "idle"), ("a", 9)) == ([], [9])


def test_the_greatest_watermark_of_a_channel_that_catches_up_counts():
    for permutation in permutations([("b", 4), ("b", 12), ("b", 7), ("a", 15)]):
        valve = Valve()
        valve.epoch(("a", 10), ("b", 3))
        valve.epoch(("b", "idle"))
        assert valve.epoch(("b", "active"), *permutation) == ([], [12])


def test_uncounted_watermarks_of_a_failed_epoch_are_dropped():
    valve = Valve()
    valve.epoch(("a", 5), ("b", 3))
    assert valve.epoch(("b", "idle"), ("b", 50), fails=True) == ([], [])
    assert valve.epoch(("a", 8), ("b", 4)) == ([4], [])


def test_other_channels_say_their_words_at_the_end():
    valve = Valve()
    valve.epoch(("a", 5), ("b", 3))
    valve.valve.begin_epoch()
    valve.valve.watermark_came("a", 9, valve.sink)
    valve.valve.end_epoch(valve.sink, {"b": (7, None)})
    assert valve.sink.take() == [7]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("word", [7, "idle", "active"])
def test_a_channel_that_there_is_not_is_named(waits, word):
    valve = Valve()
    if waits:
        valve.epoch(("b", "idle"))
    with pytest.raises(ValueError, match="the valve has no channel 'c', only"):
        valve.epoch(("c", word))
