from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pillarbox.mailbox import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    Mail,
    MailboxClosedError,
    MailboxState,
    MailOptions,
    State,
    TaskMailbox,
    WrongThreadError,
)


def nothing() -> None:
    pass


def mail(name: object, priority: int = 0, options: MailOptions = MailOptions.DEFAULT) -> Mail:
    return Mail(nothing, priority, str(name), options=options)


def urgent(name: object, priority: int = 0) -> Mail:
    return mail(name, priority, MailOptions.urgent())


def names(mails: list[Mail]) -> list[str]:
    return [str(m) for m in mails]


def take_all(mailbox: TaskMailbox) -> list[str]:
    letters = []
    while (m := mailbox.try_take(MIN_PRIORITY)) is not None:
        letters.append(str(m))
    return letters


@pytest.fixture
def mailbox() -> TaskMailbox:
    return TaskMailbox()


OWN: dict[str, Callable[[TaskMailbox], Any]] = {
    "take": lambda m: m.take(MIN_PRIORITY),
    "try_take": lambda m: m.try_take(MIN_PRIORITY),
    "has_mail": lambda m: m.has_mail(),
    "create_batch": lambda m: m.create_batch(),
    "try_take_from_batch": lambda m: m.try_take_from_batch(),
    "drain": lambda m: m.drain(),
    "quiesce": lambda m: m.quiesce(),
    "close": lambda m: m.close(),
}


@pytest.mark.parametrize("operation", OWN)
def test_m1_what_belongs_to_the_mailbox_thread_raises_elsewhere(mailbox: TaskMailbox, threads, operation: str) -> None:
    mailbox.put(mail("a"))
    with pytest.raises(WrongThreadError):
        threads.call(OWN[operation], mailbox)
    assert mailbox.state is MailboxState.OPEN
    assert mailbox.size() == 1
    OWN[operation](mailbox)


def test_m1_any_thread_may_put_and_look(mailbox: TaskMailbox, threads) -> None:
    threads.call(mailbox.put, mail("b"))
    threads.call(mailbox.put_first, mail("a"))
    assert threads.call(mailbox.size) == 2
    assert threads.call(mailbox.run_exclusively, lambda: 5) == 5
    assert threads.call(lambda: mailbox.state) is MailboxState.OPEN
    assert mailbox.is_mailbox_thread()
    assert not threads.call(mailbox.is_mailbox_thread)
    assert take_all(mailbox) == ["a", "b"]


def test_m1_belongs_to_the_thread_it_is_given(threads) -> None:
    other = threads.call(threading.current_thread)
    mailbox = TaskMailbox(other)
    assert not mailbox.is_mailbox_thread()
    assert threads.call(mailbox.is_mailbox_thread)
    mailbox.put(mail("a"))
    assert str(threads.call(mailbox.take, MIN_PRIORITY)) == "a"


def test_m1_another_thread_takes_over(mailbox: TaskMailbox, threads) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    mailbox.put(mail("b"))
    threads.call(mailbox.bind_to_current_thread)
    assert not mailbox.is_mailbox_thread()
    with pytest.raises(WrongThreadError):
        mailbox.has_mail()
    assert threads.call(take_all, mailbox) == ["a", "b"]


def test_m1_no_takeover_beneath_a_waiting_take(mailbox: TaskMailbox, threads) -> None:
    def wait() -> str:
        mailbox.bind_to_current_thread()
        return str(mailbox.take(MIN_PRIORITY))

    waiting = threads.start(wait)
    threads.until(lambda: mailbox._waiting)
    with pytest.raises(RuntimeError, match="in use"):
        mailbox.bind_to_current_thread()
    mailbox.put(mail("a"))
    assert waiting.result(threads.patience) == "a"
    mailbox.bind_to_current_thread()


def test_m3_priority_selects_but_does_not_order(mailbox: TaskMailbox) -> None:
    for name, priority in [("c", 1), ("b", 2), ("d", 1), ("e", 3)]:
        mailbox.put(mail(name, priority))
    assert str(mailbox.take(2)) == "b"
    assert str(mailbox.take(2)) == "e"
    assert mailbox.try_take(2) is None
    assert take_all(mailbox) == ["c", "d"]


def test_m3_selects_within_the_batch_and_behind_it(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("low", 1))
    mailbox.put(mail("in batch", 2))
    assert mailbox.create_batch()
    mailbox.put(mail("low too", 1))
    mailbox.put(mail("in queue", 2))
    assert str(mailbox.take(2)) == "in batch"
    assert str(mailbox.take(2)) == "in queue"
    assert str(mailbox.try_take_from_batch()) == "low"
    assert mailbox.try_take_from_batch() is None
    assert str(mailbox.try_take(1)) == "low too"


def test_m3_a_deferrable_mail_has_the_lowest_priority(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("deferrable", MAX_PRIORITY, MailOptions.deferrable()))
    assert mailbox.try_take(0) is None
    assert str(mailbox.try_take(MIN_PRIORITY)) == "deferrable"


def test_m3_an_urgent_mail_of_too_low_priority_stays(mailbox: TaskMailbox) -> None:
    mailbox.put(urgent("low", 1))
    mailbox.put(mail("high", 2))
    assert str(mailbox.try_take(2)) == "high"
    assert str(mailbox.try_take(2)) == "None"
    assert mailbox.has_mail()
    assert str(mailbox.try_take(1)) == "low"


def test_m4_batch_and_other_takes(mailbox: TaskMailbox) -> None:
    for i in range(3):
        mailbox.put(mail(i))
    assert mailbox.create_batch()
    for i in range(3, 6):
        mailbox.put(mail(i))
    assert str(mailbox.try_take_from_batch()) == "0"
    assert str(mailbox.try_take(0)) == "1"
    assert str(mailbox.take(0)) == "2"
    assert mailbox.try_take_from_batch() is None
    assert str(mailbox.try_take(0)) == "3"
    assert str(mailbox.take(0)) == "4"
    assert names(mailbox.close()) == ["5"]


def test_m4_an_unfinished_batch_is_carried_over(mailbox: TaskMailbox) -> None:
    assert not mailbox.create_batch()
    mailbox.put(mail("a"))
    mailbox.put(mail("b"))
    assert mailbox.create_batch()
    assert str(mailbox.try_take_from_batch()) == "a"
    mailbox.put(mail("c"))
    assert mailbox.create_batch()
    assert str(mailbox.try_take_from_batch()) == "b"
    assert str(mailbox.try_take_from_batch()) == "c"
    assert not mailbox.create_batch()


class CountingLock:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.lockings = 0

    def __enter__(self) -> None:
        self.lock.acquire()
        self.lockings += 1

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def test_m4_one_locking_per_batch_none_without_mail(mailbox: TaskMailbox) -> None:
    lock = CountingLock()
    mailbox._lock = lock  # type: ignore[assignment]
    assert not mailbox.has_mail()
    assert not mailbox.create_batch()
    assert mailbox.try_take_from_batch() is None
    assert mailbox.try_take(MIN_PRIORITY) is None
    assert lock.lockings == 0

    for i in range(10):
        mailbox.put(mail(i))
    lock.lockings = 0
    assert mailbox.has_mail()
    assert mailbox.create_batch()
    assert [str(mailbox.try_take_from_batch()) for _ in range(10)] == [str(i) for i in range(10)]
    assert mailbox.try_take_from_batch() is None
    assert not mailbox.has_mail()
    assert lock.lockings == 1


def test_m4_has_mail_sees_queue_and_batch(mailbox: TaskMailbox) -> None:
    assert not mailbox.has_mail()
    mailbox.put(mail("a"))
    assert mailbox.has_new_mail
    assert mailbox.has_mail()
    mailbox.create_batch()
    assert not mailbox.has_new_mail
    assert mailbox.has_mail()
    mailbox.take(0)
    assert not mailbox.has_mail()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_m5_urgent_mail_overtakes_a_batch(mailbox: TaskMailbox, threads, elsewhere: bool) -> None:
    def put(m: Mail) -> None:
        threads.call(mailbox.put, m) if elsewhere else mailbox.put(m)

    put(mail("a"))
    put(mail("b"))
    assert mailbox.create_batch()
    assert str(mailbox.try_take_from_batch()) == "a"
    put(urgent("c"))
    assert str(mailbox.try_take_from_batch()) == "c"
    assert str(mailbox.try_take_from_batch()) == "b"


@pytest.mark.parametrize("elsewhere", [False, True])
def test_m5_urgent_mails_keep_their_order(mailbox: TaskMailbox, threads, elsewhere: bool) -> None:
    # The order of Flink's TaskMailboxImplTest.testMailOrderWithBatch.
    def put(*some: Mail) -> None:
        for m in some:
            threads.call(mailbox.put, m) if elsewhere else mailbox.put(m)

    put(mail(1), mail(2), mail(3), mail(4))
    assert mailbox.create_batch()
    assert str(mailbox.try_take_from_batch()) == "1"
    put(urgent("A"), urgent("B"), urgent("C"))
    assert str(mailbox.try_take_from_batch()) == "A"
    assert str(mailbox.try_take(0)) == "B"
    assert str(mailbox.take(0)) == "C"
    assert str(mailbox.try_take_from_batch()) == "2"
    put(mail(5), mail(6), mail(7))
    assert str(mailbox.try_take_from_batch()) == "3"
    put(urgent("D"), urgent("E"))
    assert mailbox.create_batch()
    put(urgent("F"), urgent("G"))
    assert str(mailbox.try_take_from_batch()) == "D"
    assert str(mailbox.try_take(0)) == "E"
    assert str(mailbox.take(0)) == "F"
    assert str(mailbox.try_take_from_batch()) == "G"
    assert str(mailbox.try_take_from_batch()) == "4"
    assert str(mailbox.try_take(0)) == "5"
    assert str(mailbox.take(0)) == "6"
    assert str(mailbox.try_take(0)) == "7"
    assert not mailbox.has_mail()


@pytest.mark.parametrize("take", ["try_take_from_batch", "try_take"])
def test_m5_a_mail_behind_an_urgent_one_is_not_lost(mailbox: TaskMailbox, take: str) -> None:
    # FLINK-39898: the second mail is taken from the batch although create_batch was not called.
    mailbox.put(urgent("urgent"))
    mailbox.put(mail("behind"))
    first = mailbox.try_take(0) if take == "try_take" else mailbox.try_take_from_batch()
    assert str(first) == "urgent"
    assert mailbox.has_mail()
    assert str(mailbox.try_take_from_batch()) == "behind"
    assert not mailbox.has_mail()


def test_m5_an_urgent_mail_behind_one_put_first_is_seen(mailbox: TaskMailbox, threads) -> None:
    mailbox.put(mail("batch"))
    mailbox.create_batch()
    mailbox.put(urgent("urgent"))
    threads.call(mailbox.put_first, mail("first"))
    assert str(mailbox.try_take_from_batch()) == "urgent"
    assert take_all(mailbox) == ["batch", "first"]


def test_m6_put_first_from_the_mailbox_thread_is_the_head_of_the_batch(
    mailbox: TaskMailbox,
) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    mailbox.put(mail("b"))
    mailbox.put_first(mail("first"))
    assert str(mailbox.try_take_from_batch()) == "first"
    assert str(mailbox.try_take_from_batch()) == "a"
    assert mailbox.try_take_from_batch() is None
    mailbox.put_first(mail("first again"))
    assert mailbox.has_mail()
    assert mailbox.create_batch()
    assert take_all(mailbox) == ["first again", "b"]


def test_m6_put_first_from_another_thread_is_the_head_of_the_queue(mailbox: TaskMailbox, threads) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    mailbox.put(mail("b"))
    threads.call(mailbox.put_first, mail("first"))
    assert str(mailbox.try_take_from_batch()) == "a"
    assert mailbox.create_batch()
    assert str(mailbox.try_take_from_batch()) == "first"
    assert str(mailbox.try_take_from_batch()) == "b"


@pytest.mark.parametrize("put", ["put", "put_first"])
@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.urgent()])
def test_m6_a_put_wakes_a_waiting_take(mailbox: TaskMailbox, threads, put: str, options: MailOptions) -> None:
    def put_when_waiting() -> None:
        threads.until(lambda: mailbox._waiting)
        getattr(mailbox, put)(mail("a", 0, options))

    putting = threads.start(put_when_waiting)
    assert str(mailbox.take(MIN_PRIORITY)) == "a"
    putting.result(threads.patience)


def test_m6_a_take_goes_on_waiting_for_its_priority(mailbox: TaskMailbox, threads) -> None:
    def put_low_then_high() -> None:
        for m in [mail("low", 1), urgent("urgent", 1), mail("high", 2)]:
            threads.until(lambda: mailbox._waiting)
            mailbox.put(m)

    putting = threads.start(put_low_then_high)
    assert str(mailbox.take(2)) == "high"
    putting.result(threads.patience)
    assert take_all(mailbox) == ["urgent", "low"]


def test_m7_quiesced_takes_nothing_in_but_gives_out(mailbox: TaskMailbox, threads) -> None:
    mailbox.put(mail("a"))
    mailbox.put(mail("b"))
    mailbox.put(mail("c"))
    mailbox.quiesce()
    assert mailbox.state is State.QUIESCED
    for put in (mailbox.put, mailbox.put_first):
        for m in (mail("late"), urgent("late")):
            with pytest.raises(MailboxClosedError, match="late"):
                put(m)
            with pytest.raises(MailboxClosedError, match="late"):
                threads.call(put, m)
    assert str(mailbox.take(MIN_PRIORITY)) == "a"
    assert str(mailbox.try_take(MIN_PRIORITY)) == "b"
    assert mailbox.create_batch()
    assert str(mailbox.try_take_from_batch()) == "c"
    assert mailbox.try_take(MIN_PRIORITY) is None


def test_m7_a_take_that_can_never_end_raises(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("low", 1))
    mailbox.quiesce()
    with pytest.raises(MailboxClosedError):
        mailbox.take(2)
    assert mailbox.size() == 1


def test_m7_closed_raises(mailbox: TaskMailbox, threads) -> None:
    assert mailbox.close() == []
    assert mailbox.state is MailboxState.CLOSED
    for put in (mailbox.put, mailbox.put_first):
        with pytest.raises(MailboxClosedError):
            put(mail("late"))
        with pytest.raises(MailboxClosedError):
            threads.call(put, mail("late"))
    for operation in ("take", "try_take", "create_batch", "try_take_from_batch"):
        with pytest.raises(MailboxClosedError):
            OWN[operation](mailbox)
    mailbox.quiesce()
    assert mailbox.state is MailboxState.CLOSED
    assert mailbox.size() == 0
    assert not mailbox.has_mail()


def test_m7_close_returns_what_it_drops_once(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    mailbox.put(mail("b"))
    mailbox.put(urgent("urgent"))
    assert names(mailbox.close()) == ["urgent", "a", "b"]
    assert mailbox.close() == []


def test_m7_drain_empties_batch_and_queue(mailbox: TaskMailbox) -> None:
    mailbox.put(mail("a"))
    mailbox.create_batch()
    mailbox.put(mail("b"))
    mailbox.put(urgent("urgent"))
    assert names(mailbox.drain()) == ["urgent", "a", "b"]
    assert not mailbox.has_mail()
    assert mailbox.drain() == []
    mailbox.put(mail("c"))
    assert take_all(mailbox) == ["c"]


class PuttingLock(CountingLock):
    """A lock that adds a mail before it is taken, after the unlocked check."""

    def __init__(self, mailbox: TaskMailbox, m: Mail) -> None:
        super().__init__()
        self.put: Callable[[], None] | None = partial(mailbox.put, m)

    def __enter__(self) -> None:
        if self.put is not None:
            put, self.put = self.put, None
            put()
        super().__enter__()


@pytest.mark.parametrize("options", [MailOptions.DEFAULT, MailOptions.urgent()])
@pytest.mark.parametrize("wait", ["take", "_await_new_mail"])
def test_m6_a_mail_that_comes_just_before_the_wait_is_seen(threads, options: MailOptions, wait: str) -> None:
    def run() -> str:
        mailbox = TaskMailbox()
        mailbox._lock = PuttingLock(mailbox, mail("a", 0, options))  # type: ignore[assignment]
        if wait == "_await_new_mail":
            mailbox._await_new_mail(lambda: False)
        return str(mailbox.take(MIN_PRIORITY))

    assert threads.start(run).result(threads.patience) == "a"


@pytest.mark.parametrize("end", ["quiesce", "close"])
def test_m7_the_end_reaches_all_writers(mailbox: TaskMailbox, threads, end: str) -> None:
    started = threading.Barrier(5)

    def write() -> None:
        started.wait(threads.patience)
        while True:
            mailbox.put(mail("a"))

    writers = [threads.start(write) for _ in range(4)]
    started.wait(threads.patience)
    getattr(mailbox, end)()
    for writer in writers:
        assert isinstance(writer.exception(threads.patience), MailboxClosedError)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
def test_m7_close_from_a_signal_handler_wakes_the_take_beneath_it(mailbox: TaskMailbox, threads) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: mailbox.close())
    try:
        threads.start(_signal_when_waiting, threads, mailbox, signal.SIGUSR1)
        with pytest.raises(MailboxClosedError):
            mailbox.take(MIN_PRIORITY)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
def test_ctrl_c_ends_a_waiting_take_and_does_no_harm(mailbox: TaskMailbox, threads) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        for _ in range(3):
            threads.start(_signal_when_waiting, threads, mailbox, signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                mailbox.take(MIN_PRIORITY)
            mailbox.bind_to_current_thread()  # no thread waits any more
            mailbox.put(mail("a"))
            assert str(mailbox.take(MIN_PRIORITY)) == "a"
    finally:
        signal.signal(signal.SIGINT, before)
    test_m6_a_put_wakes_a_waiting_take(mailbox, threads, "put", MailOptions.DEFAULT)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
def test_a_wake_up_that_a_signal_handler_made_useless_does_no_harm(mailbox: TaskMailbox, threads) -> None:
    def put_and_raise(*_: object) -> None:
        mailbox.put(mail("a"))
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, put_and_raise)
    try:
        threads.start(_signal_when_waiting, threads, mailbox, signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt):
            mailbox.take(MIN_PRIORITY)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert take_all(mailbox) == ["a"]
    with mailbox._lock:
        mailbox._announce_wait()
        mailbox.put(mail("b"))  # wakes: the semaphore must not have been released already
    assert str(mailbox.take(MIN_PRIORITY)) == "b"


def _signal_when_waiting(threads: Any, mailbox: TaskMailbox, number: int) -> None:
    threads.until(lambda: mailbox._waiting)
    signal.pthread_kill(threading.main_thread().ident or 0, number)


def test_m8_run_exclusively_is_one_step_for_writers_and_close(mailbox: TaskMailbox, threads) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def put_ten() -> MailboxState:
        for i in range(10):
            mailbox.put(mail(i))  # the lock is reentrant
            if i == 4:
                inside.set()
                go_on.wait(threads.patience)
        return mailbox.state

    exclusive = threads.start(mailbox.run_exclusively, put_ten)
    assert inside.wait(threads.patience)
    intruder = threads.start(mailbox.put, mail("intruder"))
    threads.start(go_on.set)
    dropped = names(mailbox.close())
    assert exclusive.result(threads.patience) is MailboxState.OPEN
    # The intruder was after the ten, or too late; never between.
    assert dropped[:10] == [str(i) for i in range(10)]
    if intruder.exception(threads.patience) is None:
        assert dropped[10:] == ["intruder"]
    else:
        assert dropped[10:] == []


def test_m8_run_exclusively_gives_back_the_lock_after_an_error(mailbox: TaskMailbox, threads) -> None:
    with pytest.raises(ZeroDivisionError):
        mailbox.run_exclusively(lambda: 1 // 0)
    threads.call(mailbox.put, mail("a"))
    assert take_all(mailbox) == ["a"]


@pytest.mark.parametrize("take", ["take", "try_take", "batch"])
def test_many_writers_lose_and_reorder_nothing(mailbox: TaskMailbox, threads, take: str) -> None:
    writers, per_writer = 6, 500
    got: dict[int, list[int]] = {w: [] for w in range(writers)}

    def write(writer: int) -> None:
        for i in range(per_writer):
            mailbox.put(Mail(partial(got[writer].append, i), 0, "%d of %d", i, writer))

    running = [threads.start(write, w) for w in range(writers)]
    count = 0
    while count < writers * per_writer:
        if take == "take":
            m: Mail | None = mailbox.take(MIN_PRIORITY)
        elif take == "try_take":
            m = mailbox.try_take(MIN_PRIORITY)
        else:
            mailbox.create_batch()
            m = mailbox.try_take_from_batch()
        if m is not None:
            m.run()
            count += 1
    for future in running:
        future.result(threads.patience)
    assert got == {w: list(range(per_writer)) for w in range(writers)}
    assert mailbox.size() == 0


class Turns:
    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)
        self.wake_ups = 0

    def wait(self) -> None:
        if not self.steps:
            raise AssertionError("it waits for ever")
        self.steps.pop(0)()

    def wake(self) -> None:
        self.wake_ups += 1


def test_a_waiter_works_while_the_mailbox_thread_waits() -> None:
    mailbox = TaskMailbox()
    waiter = Turns(nothing, partial(mailbox.put, mail("low", 0)), partial(mailbox.put, mail("high", 5)))
    mailbox.wait_in(waiter)
    assert str(mailbox.take(5)) == "high"
    assert waiter.wake_ups == 2
    mailbox._await_new_mail(lambda: False)  # the other mail is there
    assert not waiter.steps
    assert names(mailbox.drain()) == ["low"]


def test_a_mail_of_another_thread_wakes_the_waiter() -> None:
    mailbox = TaskMailbox()
    woken = threading.Event()

    class Blocked(Turns):
        def wait(self) -> None:
            threading.Thread(target=mailbox.put, args=(mail("other"),)).start()
            assert woken.wait(10)

        def wake(self) -> None:
            woken.set()

    mailbox.wait_in(Blocked())
    assert str(mailbox.take()) == "other"
    mailbox.wait_in(None)
    mailbox.put(mail("next"))
    assert str(mailbox.take()) == "next"


def test_only_the_mailbox_thread_sets_a_waiter() -> None:
    mailbox = TaskMailbox(threading.Thread())
    with pytest.raises(WrongThreadError):
        mailbox.wait_in(Turns())
