from __future__ import annotations

import pickle

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pillarbox._time.timestamp_assigner import MAX_WATERMARK, MIN_TIMESTAMP
from pillarbox._time.valve import StatusWatermarkValve


class Sink:
    def __init__(self):
        self.got = []

    def process_watermark(self, timestamp):
        self.got.append(timestamp)

    def process_status(self, idle):
        self.got.append("idle" if idle else "active")

    def take(self):
        got, self.got = self.got, []
        return got


class Valve:
    def __init__(self, channels):
        self.valve = StatusWatermarkValve(channels)
        self.sink = Sink()

    def __call__(self, channel, word):
        if word == "idle" or word == "active":
            self.valve.input_status(channel, word == "idle", self.sink)
        else:
            self.valve.input_watermark(channel, word, self.sink)
        return self.sink.take()


def test_one_channel_passes_on_what_goes_up():
    valve = Valve(["a"])
    assert valve.valve.current_watermark == MIN_TIMESTAMP
    assert valve("a", 5) == [5]
    assert valve("a", 5) == []
    assert valve("a", 3) == []
    assert valve("a", MAX_WATERMARK) == [MAX_WATERMARK]
    assert valve.valve.current_watermark == MAX_WATERMARK


def test_the_minimum_over_the_channels_counts():
    valve = Valve("abc")
    assert valve("a", 10) == []
    assert valve("b", 20) == []
    assert valve("c", 5) == [5]
    assert valve("c", 7) == [7]
    assert valve("b", 30) == []
    assert valve("c", 15) == [10]
    assert valve("a", 40) == [15]


def test_an_idle_channel_is_left_out_and_its_watermarks_are_ignored():
    valve = Valve("ab")
    assert valve("a", 10) == []
    assert valve("b", "idle") == [10]
    assert valve("b", "idle") == []
    assert valve("b", 11) == []
    assert valve("a", 20) == [20]
    assert valve("b", "active") == []
    assert valve("b", 21) == []  # its watermark while idle did not count
    assert valve("a", 30) == [21]


@pytest.mark.parametrize("order", ["abc", "cba", "bac"])
def test_watermarks_of_one_moment_have_no_order(order):
    def at_once(**watermarks):
        valve.valve.input_at_once({name: watermarks[name] for name in order if name in watermarks}, valve.sink)
        return valve.sink.take()

    valve = Valve("abc")
    assert at_once() == []
    assert at_once(a=(10, None), b=(20, None)) == []
    assert at_once(c=(15, None), a=(12, True)) == [15]
    assert at_once(a=(16, False), b=(30, None), c=(40, None)) == [16]  # it had caught up with 15
    assert at_once(a=(None, True), b=(35, None)) == [35]
    assert at_once(a=(34, False), b=(50, None), c=(60, None)) == [50]  # it had not
    assert at_once(a=(70, True), b=(None, True), c=(None, True)) == [70, "idle"]
    assert at_once(a=(69, True)) == []
    assert at_once(a=(80, True)) == ["active", 80, "idle"]
    assert at_once(b=(100, False), c=(90, False)) == ["active", 90]
    with pytest.raises(ValueError, match="the valve has no channel 'd'"):
        valve.valve.input_at_once({"d": (1, None)}, valve.sink)


def test_a_channel_without_a_watermark_that_becomes_idle_does_not_hold_back():
    valve = Valve("ab")
    assert valve("a", "idle") == []
    assert valve("b", 5) == [5]


def test_a_channel_that_is_active_again_has_to_catch_up_first():
    valve = Valve("abc")
    for channel in "abc":
        valve(channel, 10)
    assert valve("a", "idle") == []
    assert valve("b", 20) == []
    assert valve("c", 20) == [20]
    assert valve("a", "active") == []
    assert valve("a", 15) == []  # behind: not counted
    assert valve("b", 30) == []
    assert valve("c", 25) == [25]  # and holds no channel back
    assert valve("a", 25) == []  # caught up: equal is enough
    assert valve("c", 30) == []  # now it does
    assert valve("a", 28) == [28]


def test_a_channel_that_is_active_again_and_not_behind_counts_at_once():
    valve = Valve("ab")
    valve("a", 10)
    valve("b", 5)
    assert valve("a", "idle") == []
    assert valve("a", "active") == []
    assert valve("b", 20) == [10]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_the_largest_watermark_is_emitted_when_all_channels_become_idle(order):
    valve = Valve("ab")
    valve("a", 10)
    assert valve("b", 5) == [5]
    assert valve(order[0], "idle") + valve(order[1], "idle") == [10, "idle"]
    assert valve.valve.is_idle
    assert valve("a", 50) == []


def test_the_flush_counts_channels_that_were_idle_before_and_behind_ones():
    # Flink 1.x omits this flush unless the last active channel has the minimum.
    valve = Valve("abc")
    valve("a", 100)
    valve("b", 5)
    valve("c", 5)
    assert valve("a", "idle") == []
    assert valve("b", "idle") == []
    assert valve("c", 7) == [7]
    assert valve("b", "active") == []
    assert valve("c", "idle") == []
    assert valve("b", "idle") == [100, "idle"]


def test_the_status_comes_before_what_follows():
    valve = Valve("ab")
    valve("a", "idle")
    assert valve("b", "idle") == ["idle"]
    assert valve("a", "active") == ["active"]
    assert valve("a", 5) == [5]
    assert valve("b", "active") == []
    assert valve("b", 3) == []
    assert valve("a", 6) == [6]


def test_unknown_channels_are_an_error():
    valve = Valve("ab")
    with pytest.raises(ValueError, match=r"no channel 7, only \['a', 'b'\]"):
        valve(7, 5)
    with pytest.raises(ValueError, match="no channel 7"):
        valve(7, "idle")


def test_the_sink_may_look_at_the_valve():
    class Looker(Sink):
        def process_watermark(self, timestamp):
            self.got.append((timestamp, valve.current_watermark))

    valve = StatusWatermarkValve("a")
    sink = Looker()
    valve.input_watermark("a", 5, sink)
    assert sink.got == [(5, 5)]


class TestRestore:
    def make(self):
        valve = Valve("abc")
        valve("a", 10)
        valve("b", 20)
        valve("c", "idle")
        return valve

    def test_it_goes_on_where_it_was(self):
        snapshot = pickle.loads(pickle.dumps(self.make().valve.snapshot()))
        assert snapshot == {
            "watermark": 10,
            "idle": False,
            "channels": {
                "a": (10, False, True),
                "b": (20, False, True),
                "c": (MIN_TIMESTAMP, True, False),
            },
        }
        valve = Valve("abc")
        valve.valve.restore(snapshot)
        assert valve.valve.current_watermark == 10
        assert valve.valve.snapshot() == snapshot
        assert valve("a", 9) == []
        assert valve("c", "active") == []
        assert valve("a", 15) == [15]

    def test_channels_that_are_gone_do_not_hold_back(self):
        valve = Valve("bc")
        valve.valve.restore(self.make().valve.snapshot())
        assert valve("c", "idle") == [20]

    def test_channels_that_are_new_hold_the_output(self):
        valve = Valve("abcd")
        valve.valve.restore(self.make().valve.snapshot())
        assert valve("a", 15) == []
        assert valve("d", 12) == [12]

    def test_the_status_is_put_right_with_the_next_input(self):
        snapshot = self.make().valve.snapshot()
        gone = Valve("c")
        gone.valve.restore(snapshot)
        assert gone("c", "idle") == ["idle"]
        idle = Valve("a")
        idle("a", "idle")
        more = Valve("ab")
        more.valve.restore(idle.valve.snapshot())
        assert more("b", 5) == ["active", 5]

    def test_a_snapshot_is_a_copy(self):
        valve = self.make()
        snapshot = valve.valve.snapshot()
        valve("a", 12)
        assert snapshot["channels"]["a"] == (10, False, True)


class ModelChannel:
    def __init__(self):
        self.watermark = MIN_TIMESTAMP
        self.idle = False
        self.aligned = True
        # Never idle, so no output may exceed its watermark.
        self.waited_for = True


class ValveMachine(RuleBasedStateMachine):
    """The valve, compared with a model that recomputes the definition after each step."""

    names = st.sampled_from("abcd")
    times = st.integers(0, 30)

    @initialize(names=st.sets(names, min_size=1))
    def start(self, names):
        self.valve = Valve(sorted(names))
        self.model = {name: ModelChannel() for name in sorted(names)}
        self.output = MIN_TIMESTAMP
        self.idle = False
        self.all_got: list[object] = []

    def check(self, got):
        expected: list[object] = []
        channels = self.model.values()
        if all(c.idle for c in channels):
            if not self.idle:
                highest = max(c.watermark for c in channels)
                if highest > self.output:
                    expected.append(highest)
                expected.append("idle")
            self.idle = True
        else:
            if self.idle:
                expected.append("active")
            self.idle = False
            lowest = min((c.watermark for c in channels if c.aligned), default=MIN_TIMESTAMP)
            if lowest > self.output:
                expected.append(lowest)
        assert got == expected
        for word in got:
            if isinstance(word, int):
                assert word > self.output
                assert all(c.watermark >= word for c in channels if c.waited_for)
                self.output = word
        self.all_got += got

    @rule(data=st.data(), timestamp=times)
    def watermark(self, data, timestamp):
        name = data.draw(st.sampled_from(sorted(self.model)))
        channel = self.model[name]
        if not channel.idle:
            channel.watermark = max(channel.watermark, timestamp)
            channel.aligned |= channel.watermark >= self.output
        self.check(self.valve(name, timestamp))

    @rule(data=st.data(), idle=st.booleans())
    def status(self, data, idle):
        name = data.draw(st.sampled_from(sorted(self.model)))
        channel = self.model[name]
        if idle:
            channel.idle, channel.aligned, channel.waited_for = True, False, False
        elif channel.idle:
            channel.idle, channel.aligned = False, channel.watermark >= self.output
        self.check(self.valve(name, "idle" if idle else "active"))

    @rule()
    def restart(self):
        snapshot = pickle.loads(pickle.dumps(self.valve.valve.snapshot()))
        self.valve = Valve(list(self.model))
        self.valve.valve.restore(snapshot)
        assert self.valve.valve.snapshot() == snapshot

    @invariant()
    def agrees(self):
        if hasattr(self, "valve"):
            assert self.valve.valve.current_watermark == self.output
            assert self.valve.valve.is_idle == self.idle
            assert set(self.valve.valve.channels) == set(self.model)
            statuses = [word for word in self.all_got if isinstance(word, str)]
            assert statuses == (["idle", "active"] * len(statuses))[: len(statuses)]


TestValveAgainstItsModel = ValveMachine.TestCase
