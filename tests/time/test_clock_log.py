from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from pillarbox._time import clock_log
from pillarbox._time.clock_log import ClockLog, LoggedClock, ReplayedClock
from pillarbox._time.manual_clock import ManualProcessingTimeService

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.just(0)),
        st.tuples(st.just("advance"), st.integers(1, 1 << 40)),
        st.tuples(st.just("buffer"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_each_reading_is_shown_again(steps):
    inner = ManualProcessingTimeService(7)
    came: list[None] = []
    clock = LoggedClock(inner, lambda: len(came))
    clock.begin_epoch()
    shown = []
    for what, amount in steps:
        if what == "read":
            shown.append(clock.current_processing_time())
        elif what == "advance":
            inner.advance(amount)
        else:
            came.append(None)
    again = ReplayedClock(ClockLog.of_text(clock.log.to_text() or ""), 7)
    again.begin_epoch()
    assert [again.current_processing_time() for _ in shown] == shown


@given(STEPS)
def test_timers_fire_after_the_same_buffers(steps):
    inner = ManualProcessingTimeService(0)
    came: list[None] = []
    fired: list[tuple[int, int]] = []
    clock = LoggedClock(inner, lambda: len(came))
    clock.begin_epoch()

    def fire(timestamp):
        clock.log_firing(timestamp)
        fired.append((timestamp, len(came)))

    for timestamp in (5, 1 << 20, 1 << 39):
        clock.register_timer(timestamp, fire)
    for what, amount in steps:
        if what == "advance":
            inner.advance(amount)
        elif what == "buffer":
            came.append(None)
    again = ReplayedClock(ClockLog.of_bytes(clock.log.to_bytes()), 0)
    seen: list[tuple[int, int]] = []
    buffers = 0
    for timestamp in (5, 1 << 20, 1 << 39):
        again.register_timer(timestamp, lambda timestamp: seen.append((timestamp, buffers)))
    again.begin_epoch()
    for portion in again.feed([came[:2], came[2:]]):
        buffers += len(portion)
    assert seen == fired


def test_other_code_is_shown_the_time_of_the_buffer():
    inner = ManualProcessingTimeService(100)
    came: list[None] = []
    clock = LoggedClock(inner, lambda: len(came))
    clock.begin_epoch()
    for time in (100, 200, 300):
        inner.set_current_time(time)
        came.append(None)
        clock.current_processing_time()
    again = ReplayedClock(clock.log, 100, is_same_code=False)
    again.begin_epoch()
    shown = [[again.current_processing_time() for _ in range(2)] for _ in again.feed([came])]
    assert shown == [[100, 100], [200, 200], [300, 300]]


def test_other_threads_and_functions_that_open_are_left_out():
    inner = ManualProcessingTimeService(1)
    clock = LoggedClock(inner, lambda: 0)
    clock.current_processing_time()
    clock.begin_epoch()
    other = threading.Thread(target=clock.current_processing_time)
    other.start()
    other.join()
    assert clock.log.to_bytes() == b""
    clock.current_processing_time()
    assert clock.log.readings == [(0, 0, 1)]
    again = ReplayedClock(clock.log, 9)
    assert again.current_processing_time() == 9  # a function is being opened
    again.begin_epoch()
    assert again.current_processing_time() == 1


def test_a_log_is_bounded_and_says_so(monkeypatch):
    monkeypatch.setattr(clock_log, "_ENTRIES", 3)
    inner = ManualProcessingTimeService()
    clock = LoggedClock(inner, lambda: 0)
    clock.begin_epoch()
    for _ in range(3):
        inner.advance(1)
        clock.current_processing_time()
    assert ClockLog.of_bytes(clock.log.to_bytes()).is_whole
    inner.advance(1)
    clock.current_processing_time()
    cut = ClockLog.of_bytes(clock.log.to_bytes())
    assert (cut.is_whole, len(cut.readings)) == (False, 3)
    assert clock.log.to_text(limit=3) is None
