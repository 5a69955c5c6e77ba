from __future__ import annotations

import queue
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

import pytest

from pillarbox.mailbox import (
    MAX_PRIORITY,
    Mail,
    MailboxClosedError,
    MailboxController,
    MailboxProcessor,
    MailboxState,
    MailOptions,
    PeriodTimer,
    RejectedExecutionError,
    Suspension,
    TaskMailbox,
    WrongThreadError,
)


class Log(list[str]):
    def note(self, text: str) -> Callable[[], None]:
        return lambda: self.append(text)


@pytest.fixture
def log() -> Log:
    return Log()


def finish(controller: MailboxController) -> None:
    controller.all_actions_completed()


# -- M10: the loop -------------------------------------------------------------------------------


def test_m10_mails_then_one_default_action(log: Log) -> None:
    def action(controller: MailboxController) -> None:
        log.append("action")
        if log.count("action") == 2:
            controller.all_actions_completed()
        else:
            executor.execute(log.note("mail 3"), "m")
            executor.execute(log.note("mail 4"), "m")

    processor = MailboxProcessor(action)
    executor = processor.get_mailbox_executor(0)
    executor.execute(log.note("mail 1"), "m")
    executor.execute(log.note("mail 2"), "m")
    processor.run_mailbox_loop()
    assert log == ["mail 1", "mail 2", "action", "mail 3", "mail 4", "action"]


@pytest.mark.parametrize("with_urgent", [False, True])
def test_m10_mails_that_breed_mails_do_not_starve_the_default_action(with_urgent: bool) -> None:
    calls = 0
    mails = 0

    def action(controller: MailboxController) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            controller.all_actions_completed()

    def breed() -> None:
        nonlocal mails
        mails += 1
        assert mails < 100, "starved"
        if with_urgent:  # it must not pull the next mail into this round
            executor.execute(lambda: None, "urgent", options=MailOptions.urgent())
        executor.execute(breed, "breed")

    processor = MailboxProcessor(action)
    executor = processor.get_mailbox_executor(0)
    executor.execute(breed, "breed")
    processor.run_mailbox_loop()
    assert (calls, mails) == (3, 3)


def test_m10_an_urgent_mail_is_run_in_the_round_that_it_meets(log: Log) -> None:
    def first() -> None:
        log.append("first")
        executor.execute(log.note("late"), "late")
        executor.execute(log.note("urgent"), "urgent", options=MailOptions.urgent())

    def action(controller: MailboxController) -> None:
        log.append("action")
        if log.count("action") == 2:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    executor = processor.get_mailbox_executor(0)
    executor.execute(first, "first")
    executor.execute(log.note("second"), "second")
    processor.run_mailbox_loop()
    assert log == ["first", "urgent", "second", "action", "late", "action"]


def test_m10_deferrable_mails_are_run_by_the_loop(log: Log) -> None:
    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(5)
    executor.execute(log.note("deferrable"), "m", options=MailOptions.deferrable())
    processor.run_mailbox_loop()
    assert log == ["deferrable"]


def test_m10_a_mail_put_first_by_the_default_action_is_run_before_its_next_call(log: Log) -> None:
    mailbox = TaskMailbox()

    def action(controller: MailboxController) -> None:
        log.append("action")
        if log.count("action") == 2:
            controller.all_actions_completed()
        mailbox.put_first(Mail(log.note("mail"), 0, "mail"))

    MailboxProcessor(action, mailbox).run_mailbox_loop()
    # The mail of the second call stays: the poison mail is urgent.
    assert log == ["action", "mail", "action"]
    assert mailbox.size() == 1


def test_m10_no_lock_in_a_round_without_mail() -> None:
    """M4, M10: a round without mail takes no lock."""
    calls = 0

    class CountingLock:
        lockings = 0
        lock = threading.RLock()

        def __enter__(self) -> None:
            self.lockings += 1
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    lock = CountingLock()
    seen: list[int] = []

    def action(controller: MailboxController) -> None:
        nonlocal calls
        calls += 1
        seen.append(lock.lockings)
        if calls == 1000:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    processor.mailbox._lock = lock  # type: ignore[assignment]
    processor.run_mailbox_loop()
    assert calls == 1000
    assert seen[0] == seen[-1]


def test_m10_step_runs_one_mail_or_the_default_action(log: Log) -> None:
    processor = MailboxProcessor(lambda _: log.append("action"))
    executor = processor.get_main_mailbox_executor()
    executor.execute(log.note("mail 1"), "m")
    executor.execute(log.note("mail 2"), "m")
    assert processor.run_mailbox_step()
    assert log == ["mail 1"]
    assert processor.run_mailbox_step()
    assert processor.run_mailbox_step()
    assert log == ["mail 1", "mail 2", "action"]


def test_m10_step_does_nothing_where_there_is_nothing() -> None:
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
    assert processor.run_mailbox_step()
    assert not processor.is_default_action_available()
    assert not processor.run_mailbox_step()
    processor.all_actions_completed()
    assert processor.run_mailbox_step()
    assert not processor.is_mailbox_loop_running()
    assert not processor.run_mailbox_step()


def test_m10_the_loop_belongs_to_the_mailbox_thread(threads) -> None:
    processor = MailboxProcessor(finish)
    for method in (
        processor.run_mailbox_loop,
        processor.run_mailbox_step,
        processor.drain,
        processor.prepare_close,
        processor.close,
    ):
        with pytest.raises(WrongThreadError):
            threads.call(method)
    processor.run_mailbox_loop()


def test_m10_the_loop_needs_an_open_mailbox() -> None:
    processor = MailboxProcessor(finish)
    processor.prepare_close()
    with pytest.raises(MailboxClosedError):
        processor.run_mailbox_loop()


def test_m10_the_loop_does_not_run_within_itself() -> None:
    def action(controller: MailboxController) -> None:
        with pytest.raises(RuntimeError, match="another"):
            processor.run_mailbox_loop()
        with pytest.raises(RuntimeError, match="another"):
            processor.run_mailbox_step()
        controller.all_actions_completed()

    processor = MailboxProcessor(action)
    processor.run_mailbox_loop()


# -- M11: suspending the default action ----------------------------------------------------------


@pytest.mark.parametrize("how", ["other thread", "mail"])
def test_m11_not_called_until_resumed(threads, log: Log, how: str) -> None:
    suspended: Future[Suspension] = Future()

    def action(controller: MailboxController) -> None:
        log.append("action")
        if log.count("action") == 1:
            suspended.set_result(controller.suspend_default_action())
        else:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)
    executor = processor.get_mailbox_executor(0)

    def resume() -> None:
        suspension = suspended.result(threads.patience)
        executor.submit(log.note("mail 1"), "m").result(threads.patience)
        threads.until(lambda: processor.mailbox._waiting)
        executor.submit(log.note("mail 2"), "m").result(threads.patience)
        assert not processor.is_default_action_available()
        if how == "mail":
            executor.execute(suspension.resume, "resume")
        else:
            for _ in range(3):
                suspension.resume()

    resuming = threads.start(resume)
    processor.run_mailbox_loop()
    resuming.result(threads.patience)
    assert log == ["action", "mail 1", "mail 2", "action"]


def test_m11_an_old_suspension_does_not_end_a_new_one(threads) -> None:
    controllers: list[MailboxController] = []
    processor = MailboxProcessor(controllers.append)
    processor.run_mailbox_step()
    old = controllers[0].suspend_default_action()
    old.resume()
    old.resume()
    assert processor.is_default_action_available()
    threads.call(old.resume)
    assert processor.mailbox.size() == 0  # an ended processor needs no mail
    new = controllers[0].suspend_default_action()
    old.resume()
    assert not processor.is_default_action_available()
    new.resume()
    assert processor.is_default_action_available()


def test_m11_a_late_resume_mail_does_not_end_a_new_suspension(threads) -> None:
    controllers: list[MailboxController] = []
    processor = MailboxProcessor(controllers.append)
    processor.run_mailbox_step()
    old = controllers[0].suspend_default_action()
    threads.call(old.resume)  # a mail now
    old.resume()  # at once
    controllers[0].suspend_default_action()
    assert processor.run_mailbox_step()  # the mail
    assert not processor.is_default_action_available()


def test_m11_suspending_twice_or_elsewhere_raises(threads) -> None:
    controllers: list[MailboxController] = []
    processor = MailboxProcessor(controllers.append)
    processor.run_mailbox_step()
    with pytest.raises(WrongThreadError):
        threads.call(controllers[0].suspend_default_action)
    controllers[0].suspend_default_action()
    with pytest.raises(RuntimeError, match="already"):
        controllers[0].suspend_default_action()


@pytest.mark.parametrize("end", ["prepare_close", "close"])
def test_m11_resume_after_the_end_does_no_harm(threads, end: str) -> None:
    controllers: list[MailboxController] = []
    processor = MailboxProcessor(controllers.append)
    processor.run_mailbox_step()
    suspension = controllers[0].suspend_default_action()
    getattr(processor, end)()
    state = processor.mailbox.state
    assert state is (MailboxState.CLOSED if end == "close" else MailboxState.QUIESCED)
    threads.call(suspension.resume)
    suspension.resume()
    assert (processor.mailbox.state, processor.mailbox.size()) == (state, 0)
    assert len(controllers) == 1  # the default action did not run again


class FakeTimer:
    def __init__(self, log: Log) -> None:
        self.log = log

    def mark_start(self) -> None:
        self.log.append("start")

    def mark_end(self) -> None:
        self.log.append("end")


def test_m11_the_timer_measures_the_pause_without_the_mails_in_it(log: Log) -> None:
    timer = FakeTimer(log)
    assert isinstance(timer, PeriodTimer)
    suspensions: list[Suspension] = []

    def action(controller: MailboxController) -> None:
        log.append("action")
        suspensions.append(controller.suspend_default_action(timer))

    processor = MailboxProcessor(action)
    executor = processor.get_main_mailbox_executor()
    processor.run_mailbox_step()
    assert log == ["action", "start"]
    executor.execute(log.note("mail"), "m")
    processor.run_mailbox_step()
    assert log == ["action", "start", "end", "mail", "start"]
    log.clear()
    suspensions[0].resume()
    suspensions[0].resume()
    assert log == ["end"]
    log.clear()
    processor.run_mailbox_step()
    executor.execute(suspensions[1].resume, "resume")
    processor.run_mailbox_step()
    assert log == ["action", "start", "end"]


def test_m11_the_timer_stands_still_while_the_loop_is_suspended(threads, log: Log) -> None:
    timer = FakeTimer(log)

    def action(controller: MailboxController) -> None:
        if "action" in log:
            controller.all_actions_completed()
            return
        log.append("action")
        suspensions.append(controller.suspend_default_action(timer))
        executor.execute(log.note("mail 1"), "m")
        executor.execute(log.note("mail 2"), "m")
        executor.execute(processor.suspend, "suspend")

    suspensions: list[Suspension] = []
    processor = MailboxProcessor(action)
    executor = processor.get_main_mailbox_executor()
    processor.run_mailbox_loop()
    first = ["action", "start", "end", "mail 1", "mail 2", "start", "end"]
    assert log == first
    log.append("gap")
    threads.call(suspensions[0].resume)
    assert log == [*first, "gap"]
    processor.run_mailbox_loop()
    assert log == [*first, "gap", "start", "end"]
    processor.close()
    assert log[-1] == "end"


def test_m11_the_timer_starts_once_when_a_mail_suspends_the_default_action(log: Log) -> None:
    controllers: list[MailboxController] = []
    processor = MailboxProcessor(controllers.append)
    processor.run_mailbox_step()
    executor = processor.get_main_mailbox_executor()
    executor.execute(lambda: controllers[0].suspend_default_action(FakeTimer(log)), "suspend")
    processor.run_mailbox_step()
    assert log == ["start"]


def test_m11_the_timer_ends_when_the_loop_fails(log: Log) -> None:
    def action(controller: MailboxController) -> None:
        controller.suspend_default_action(FakeTimer(log))
        raise ValueError

    with pytest.raises(ValueError):
        MailboxProcessor(action).run_mailbox_loop()
    assert log == ["start", "end"]


def test_m11_ping_pong_between_two_threads(threads) -> None:
    rounds = 2_000
    lock = threading.Condition()
    current: list[Suspension] = []
    calls = 0
    over = False

    def action(controller: MailboxController) -> None:
        nonlocal calls
        calls += 1
        if calls == rounds:
            controller.all_actions_completed()
            return
        suspension = controller.suspend_default_action()
        with lock:
            # If it is called while it is suspended, the last one is still here.
            assert not current
            current.append(suspension)
            lock.notify()

    def resume() -> None:
        while True:
            with lock:
                lock.wait_for(lambda: current or over, threads.patience)
                if over:
                    return
                suspension = current.pop()
            suspension.resume()
            suspension.resume()

    processor = MailboxProcessor(action)
    resuming = threads.start(resume)
    try:
        processor.run_mailbox_loop()
    finally:
        with lock:
            over = True
            lock.notify()
    resuming.result(threads.patience)
    assert calls == rounds


# -- M12: suspending and ending the loop ---------------------------------------------------------


def test_m12_suspend_from_another_thread_and_run_again(threads, log: Log) -> None:
    working = threading.Event()
    stop = False

    def stop_it() -> None:
        nonlocal stop
        stop = True

    def action(controller: MailboxController) -> None:
        working.set()
        if stop:
            controller.all_actions_completed()

    processor = MailboxProcessor(action)

    def suspend() -> None:
        assert working.wait(threads.patience)
        processor.suspend()
        processor.get_mailbox_executor(0).execute(stop_it, "stop")

    suspending = threads.start(suspend)
    processor.run_mailbox_loop()
    suspending.result(threads.patience)
    assert not stop
    assert processor.is_mailbox_loop_running()
    processor.run_mailbox_loop()
    assert stop
    assert not processor.is_mailbox_loop_running()


def test_m12_suspend_wakes_a_loop_that_waits(threads) -> None:
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())

    def suspend() -> None:
        threads.until(lambda: processor.mailbox._waiting)
        processor.suspend()

    suspending = threads.start(suspend)
    processor.run_mailbox_loop()
    suspending.result(threads.patience)
    assert not processor.is_default_action_available()  # it stays suspended
    processor.all_actions_completed()
    processor.run_mailbox_loop()


def test_m12_suspend_in_a_mail_keeps_the_batch(log: Log) -> None:
    def first() -> None:
        log.append("1")
        processor.suspend()

    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(0)
    executor.execute(first, "m")
    executor.execute(log.note("2"), "m")
    executor.execute(log.note("3"), "m")
    processor.run_mailbox_loop()
    assert log == ["1"]
    assert processor.mailbox.size() == 2
    executor.execute(log.note("4"), "m")
    processor.run_mailbox_loop()
    assert log == ["1", "2", "3", "4"]


def test_m12_suspend_from_another_thread_keeps_the_batch(threads, log: Log) -> None:
    def first() -> None:
        log.append("1")
        threads.call(processor.suspend)

    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(0)
    executor.execute(first, "m")
    executor.execute(log.note("2"), "m")
    processor.run_mailbox_loop()
    assert log == ["1"]
    processor.run_mailbox_loop()
    assert log == ["1", "2"]


def test_m12_suspend_in_the_default_action(log: Log) -> None:
    def action(controller: MailboxController) -> None:
        log.append("action")
        controller.suspend_default_action()
        processor.suspend()

    processor = MailboxProcessor(action)
    processor.run_mailbox_loop()
    assert log == ["action"]
    processor.suspend()
    processor.run_mailbox_loop()
    assert log == ["action"]


def test_m12_poison_that_is_run_by_a_yield_ends_the_loop(log: Log) -> None:
    def action(controller: MailboxController) -> None:
        log.append("action")
        processor.suspend()
        executor.yield_()
        log.append("yielded")

    processor = MailboxProcessor(action)
    executor = processor.get_mailbox_executor(MAX_PRIORITY)
    processor.run_mailbox_loop()
    assert log == ["action", "yielded"]
    processor.run_mailbox_loop()
    assert log == ["action", "yielded"] * 2


def test_m12_suspended_before_it_was_run(log: Log) -> None:
    def action(controller: MailboxController) -> None:
        log.append("action")
        controller.all_actions_completed()

    processor = MailboxProcessor(action)
    processor.suspend()
    processor.run_mailbox_loop()
    assert log == []
    processor.run_mailbox_loop()
    assert log == ["action"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_m12_ended_for_good(threads, log: Log, elsewhere: bool) -> None:
    processor = MailboxProcessor(lambda _: log.append("action"))
    if elsewhere:
        threads.call(processor.all_actions_completed)
    else:
        processor.all_actions_completed()
    assert processor.is_mailbox_loop_running()
    processor.run_mailbox_loop()
    assert not processor.is_mailbox_loop_running()
    processor.get_main_mailbox_executor().execute(log.note("mail"), "m")
    processor.run_mailbox_loop()
    assert log == []
    processor.close()
    processor.run_mailbox_loop()
    assert log == []


@pytest.mark.parametrize("end", ["prepare_close", "close"])
def test_m12_poison_is_harmless_after_the_end(threads, end: str) -> None:
    processor = MailboxProcessor(finish)
    getattr(processor, end)()
    for call in (processor.suspend, processor.all_actions_completed):
        call()
        threads.call(call)
    assert processor.mailbox.size() == 0


def test_m12_poison_and_close_do_not_meet(threads) -> None:
    """M12: checking the state and putting the mail are one step."""
    for _ in range(50):
        processor = MailboxProcessor(finish)
        go = threading.Barrier(2)

        def poison(processor: MailboxProcessor = processor, go: threading.Barrier = go) -> None:
            go.wait(threads.patience)
            for _ in range(20):
                processor.suspend()

        poisoning = threads.start(poison)
        go.wait(threads.patience)
        processor.close()
        poisoning.result(threads.patience)
        # A poison mail after the check of the state would have been refused, or be left in the mailbox.
        assert (processor.mailbox.state, processor.mailbox.size()) == (MailboxState.CLOSED, 0)


def test_m12_the_state_is_looked_at_under_the_lock() -> None:
    mailbox = TaskMailbox()
    processor = MailboxProcessor(finish, mailbox)
    lock = mailbox._lock
    depths: list[int] = []

    class SpyLock:
        depth = 0

        def __enter__(self) -> None:
            lock.acquire()
            self.depth += 1
            depths.append(self.depth)

        def __exit__(self, *_: object) -> None:
            self.depth -= 1
            lock.release()

    mailbox._lock = SpyLock()  # type: ignore[assignment]
    processor.suspend()
    assert depths == [1, 2]  # run_exclusively, and the put within


# -- M13: errors ---------------------------------------------------------------------------------


def test_m13_what_a_mail_raises_leaves_the_loop_and_nothing_is_lost(threads, log: Log) -> None:
    processor = MailboxProcessor(finish)
    executor = processor.get_main_mailbox_executor()

    def fail() -> None:
        raise LookupError("expected")

    def post() -> None:
        executor.execute(fail, "fail")
        executor.execute(log.note("behind"), "m")

    threads.call(post)
    with pytest.raises(LookupError, match="expected"):
        processor.run_mailbox_loop()
    assert log == []
    assert processor.mailbox.size() == 1
    assert processor.is_mailbox_loop_running()
    processor.run_mailbox_loop()
    assert log == ["behind"]


def test_m13_what_the_default_action_raises_leaves_the_loop(log: Log) -> None:
    def action(controller: MailboxController) -> None:
        log.append("action")
        if len(log) == 1:
            raise LookupError("expected")
        controller.all_actions_completed()

    processor = MailboxProcessor(action)
    with pytest.raises(LookupError):
        processor.run_mailbox_loop()
    processor.run_mailbox_loop()
    assert log == ["action", "action"]


@pytest.mark.parametrize("error", [LookupError("expected"), KeyboardInterrupt("expected")])
def test_m13_report_throwable_raises_it_in_the_loop(threads, error: BaseException) -> None:
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())

    def report() -> None:
        threads.until(lambda: processor.mailbox._waiting)
        processor.report_throwable(error)

    reporting = threads.start(report)
    with pytest.raises(type(error)) as caught:
        processor.run_mailbox_loop()
    assert caught.value is error
    reporting.result(threads.patience)


def test_m13_an_error_overtakes_mails_and_is_not_overtaken_by_a_suspension(log: Log) -> None:
    processor = MailboxProcessor(finish)
    processor.get_main_mailbox_executor().execute(log.note("mail"), "m")
    processor.report_throwable(LookupError("expected"))
    processor.suspend()
    with pytest.raises(LookupError):
        processor.run_mailbox_loop()
    assert log == []
    processor.run_mailbox_loop()
    assert log == []
    processor.run_mailbox_loop()
    assert log == ["mail"]


def test_m13_an_error_that_comes_too_late_is_not_swallowed() -> None:
    processor = MailboxProcessor(finish)
    processor.close()
    error = LookupError("expected")
    with pytest.raises(MailboxClosedError) as caught:
        processor.report_throwable(error)
    assert caught.value.__cause__ is error


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill")
def test_m13_ctrl_c_leaves_a_waiting_loop_that_can_be_run_again(threads, log: Log) -> None:
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        threads.until(lambda: processor.mailbox._waiting)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    try:
        threads.start(interrupt)
        with pytest.raises(KeyboardInterrupt):
            processor.run_mailbox_loop()
    finally:
        signal.signal(signal.SIGINT, before)

    def go_on() -> None:
        threads.until(lambda: processor.mailbox._waiting)
        processor.get_main_mailbox_executor().execute(log.note("mail"), "m")
        threads.until(lambda: bool(log))
        processor.all_actions_completed()

    going_on = threads.start(go_on)
    processor.run_mailbox_loop()
    going_on.result(threads.patience)
    assert log == ["mail"]


# -- M14: closing --------------------------------------------------------------------------------


def test_m14_prepare_close_rejects_close_cancels() -> None:
    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(0)
    future = executor.submit(lambda: None, "never run")
    processor.prepare_close()
    assert processor.mailbox.state is MailboxState.QUIESCED
    with pytest.raises(RejectedExecutionError):
        executor.execute(lambda: None, "late")
    assert not future.done()
    processor.close()
    assert future.cancelled()
    processor.close()


def test_m14_one_cancellation_that_fails_keeps_none_from_the_others() -> None:
    class Stubborn:
        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self) -> None:
            raise AssertionError

        def cancel(self) -> bool:
            raise RuntimeError(self.name)

    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(0)
    executor.execute(Stubborn("one"), "m")
    executor.execute(Stubborn("two"), "m")
    executor.execute(lambda: None, "plain")
    future = executor.submit(lambda: None, "m")
    with pytest.raises(RuntimeError, match="one"):
        processor.close()
    assert future.cancelled()
    assert processor.mailbox.state is MailboxState.CLOSED


def test_m14_closes_itself_as_a_context_manager() -> None:
    with MailboxProcessor(finish) as processor:
        future = processor.get_mailbox_executor(0).submit(lambda: None, "m")
    assert future.cancelled()
    assert processor.mailbox.state is MailboxState.CLOSED


def test_m14_drain_runs_what_is_there(log: Log) -> None:
    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(0)
    executor.execute(log.note("1"), "m")
    processor.mailbox.create_batch()
    executor.execute(log.note("2"), "m")
    executor.execute(lambda: executor.execute(log.note("bred"), "m"), "m")
    processor.prepare_close()
    with pytest.raises(RejectedExecutionError):
        processor.drain()
    assert log == ["1", "2"]
    assert processor.mailbox.size() == 0


def test_m14_drain_keeps_the_mails_behind_an_error(log: Log) -> None:
    processor = MailboxProcessor(finish)
    executor = processor.get_mailbox_executor(0)
    executor.execute(lambda: 1 // 0, "m")
    executor.execute(log.note("1"), "m")
    executor.execute(log.note("2"), "m")
    with pytest.raises(ZeroDivisionError):
        processor.drain()
    assert processor.mailbox.size() == 2
    processor.drain()
    assert log == ["1", "2"]


# -- M1: changing the thread ---------------------------------------------------------------------


def test_m1_a_suspended_loop_is_taken_over_by_another_thread(threads) -> None:
    where: list[threading.Thread] = []

    def action(controller: MailboxController) -> None:
        where.append(threading.current_thread())
        processor.suspend()

    processor = MailboxProcessor(action)

    def epoch() -> threading.Thread:
        processor.rebind_to_current_thread()
        processor.run_mailbox_loop()
        return threading.current_thread()

    expected = [epoch(), threads.start(epoch).result(threads.patience), threads.call(epoch)]
    assert where == expected
    with pytest.raises(WrongThreadError):
        processor.run_mailbox_loop()


def test_m1_a_running_loop_is_not_taken_over(threads) -> None:
    def action(controller: MailboxController) -> None:
        for rebind in (
            processor.rebind_to_current_thread,
            processor.mailbox.bind_to_current_thread,
        ):
            with pytest.raises(RuntimeError, match="in use"):
                threads.call(rebind)
            with pytest.raises(RuntimeError, match="in use"):
                rebind()
        controller.all_actions_completed()

    processor = MailboxProcessor(action)
    processor.run_mailbox_loop()
    threads.call(processor.rebind_to_current_thread)
    assert not processor.is_mailbox_thread()


def test_m1_a_loop_that_failed_may_be_taken_over(threads) -> None:
    processor = MailboxProcessor(finish)
    processor.report_throwable(LookupError())
    with pytest.raises(LookupError):
        processor.run_mailbox_loop()

    def go_on() -> None:
        processor.rebind_to_current_thread()
        processor.run_mailbox_loop()

    threads.call(go_on)
    assert not processor.is_mailbox_loop_running()


# -- all together --------------------------------------------------------------------------------


def test_all_threads_at_once_meet_only_in_the_mailbox_thread(threads) -> None:
    writers, per_writer = 4, 1_000
    owner = threading.current_thread()
    total = 0
    calls = 0
    runs = 0

    def count() -> None:
        nonlocal total
        assert threading.current_thread() is owner
        seen = total
        total = seen + 1

    def action(controller: MailboxController) -> None:
        nonlocal calls
        assert threading.current_thread() is owner
        calls += 1
        resumer.put(controller.suspend_default_action())
        called.set()

    resumer: queue.SimpleQueue[Suspension | None] = queue.SimpleQueue()
    called = threading.Event()

    def resume() -> None:
        while (suspension := resumer.get(timeout=threads.patience)) is not None:
            suspension.resume()

    processor = MailboxProcessor(action)

    def write(writer: int) -> None:
        executor = processor.get_mailbox_executor(writer)
        options = [MailOptions.DEFAULT, MailOptions.urgent(), MailOptions.deferrable()]
        assert called.wait(threads.patience)
        for i in range(per_writer):
            executor.execute(count, "count", options=options[i % 3])
            if i % 100 == 0:
                processor.suspend()

    resuming = threads.start(resume)
    writing = [threads.start(write, w) for w in range(writers)]

    def finish_when_written() -> None:
        for future in writing:
            future.result(threads.patience)
        processor.get_main_mailbox_executor().execute(processor.all_actions_completed, "finish")

    finishing = threads.start(finish_when_written)
    while processor.is_mailbox_loop_running():
        processor.run_mailbox_loop()
        runs += 1
    finishing.result(threads.patience)
    resumer.put(None)
    resuming.result(threads.patience)
    assert total == writers * per_writer
    assert runs > 1
    assert calls >= 1


def test_m14_a_drain_whose_mail_closes_the_mailbox_cancels_the_rest() -> None:
    def close_and_raise() -> None:
        processor.close()
        raise ValueError("closed")

    processor = MailboxProcessor(lambda controller: None)
    executor = processor.get_main_mailbox_executor()
    executor.execute(close_and_raise, "close and raise")
    future = executor.submit(lambda: None, "never")
    with pytest.raises(ValueError, match="closed"):
        processor.drain()
    assert future.cancelled()
