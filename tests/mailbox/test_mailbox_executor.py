from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from functools import partial

import pytest

from pillarbox.mailbox import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    MailboxClosedError,
    MailboxController,
    MailboxExecutor,
    MailboxProcessor,
    MailOptions,
    RejectedExecutionError,
    TaskMailbox,
    WrongThreadError,
)


@pytest.fixture
def mailbox() -> TaskMailbox:
    return TaskMailbox()


def test_m9_execute_puts_a_mail_with_its_priority(mailbox: TaskMailbox) -> None:
    executor = MailboxExecutor(mailbox, 4)
    ran: list[int] = []
    executor.execute(lambda: ran.append(1), "number %d", 7)
    assert ran == []
    mail = mailbox.take(4)
    assert (mail.priority, str(mail), mail.options) == (4, "number 7", MailOptions.DEFAULT)
    assert executor.priority == 4
    mail.run()
    assert ran == [1]


def test_m9_execute_hands_on_options(mailbox: TaskMailbox) -> None:
    executor = MailboxExecutor(mailbox, 0)
    executor.execute(lambda: None, "later")
    executor.execute(lambda: None, "now", options=MailOptions.urgent())
    assert str(mailbox.take(0)) == "now"


def test_m9_submit_gives_result_and_error_to_the_future(mailbox: TaskMailbox, threads) -> None:
    executor = MailboxExecutor(mailbox, 0)
    good = threads.call(executor.submit, lambda: 5, "five")
    bad = executor.submit(lambda: 1 // 0, "divide by %d", 0)
    assert not good.done()
    assert executor.try_yield()
    assert executor.try_yield()  # the error is not raised here
    assert good.result(0) == 5
    with pytest.raises(ZeroDivisionError):
        bad.result(0)


def test_m9_a_submitted_command_may_be_cancelled(mailbox: TaskMailbox) -> None:
    executor = MailboxExecutor(mailbox, 0)
    ran: list[int] = []
    future = executor.submit(lambda: ran.append(1), "never", options=MailOptions.urgent())
    assert future.cancel()
    assert executor.try_yield()
    assert ran == []
    with pytest.raises(CancelledError):
        future.result(0)


def test_m9_ctrl_c_in_a_submitted_command_reaches_the_thread_too(mailbox: TaskMailbox) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    executor = MailboxExecutor(mailbox, 0)
    future = executor.submit(interrupt, "interrupt")
    with pytest.raises(KeyboardInterrupt):
        executor.try_yield()
    assert isinstance(future.exception(0), KeyboardInterrupt)


@pytest.mark.parametrize("end", ["quiesce", "close"])
def test_m9_rejected_when_not_open(mailbox: TaskMailbox, threads, end: str) -> None:
    executor = MailboxExecutor(mailbox, 0)
    getattr(mailbox, end)()
    with pytest.raises(RejectedExecutionError, match="too late") as caught:
        executor.execute(lambda: None, "too late")
    assert isinstance(caught.value.__cause__, MailboxClosedError)
    with pytest.raises(RejectedExecutionError):
        threads.call(executor.submit, lambda: None, "too late")


def test_m9_try_yield_runs_one_mail_of_its_own_or_downstream(mailbox: TaskMailbox) -> None:
    ran: list[int] = []
    for chain_index in (0, 1, 2, 1):
        MailboxExecutor(mailbox, chain_index).execute(partial(ran.append, chain_index), "mail of %d", chain_index)
    middle = MailboxExecutor(mailbox, 1)
    assert middle.try_yield()
    assert ran == [1]
    assert middle.try_yield()
    assert middle.try_yield()
    assert ran == [1, 2, 1]
    assert not middle.try_yield()
    assert MailboxExecutor(mailbox, MIN_PRIORITY).try_yield()
    assert ran == [1, 2, 1, 0]


@pytest.mark.parametrize("priority", [42, MIN_PRIORITY])
def test_m9_yielding_leaves_deferrable_mails_alone(mailbox: TaskMailbox, priority: int) -> None:
    executor = MailboxExecutor(mailbox, priority)
    ran: list[str] = []
    executor.execute(lambda: ran.append("later"), "later", options=MailOptions.deferrable())
    assert not executor.try_yield()
    mailbox.create_batch()
    assert not executor.try_yield()
    executor.execute(lambda: ran.append("now"), "now")
    executor.yield_()
    executor.execute(lambda: ran.append("now"), "now")
    assert executor.try_yield()
    assert ran == ["now", "now"]
    assert executor.should_interrupt()
    mailbox.take(MIN_PRIORITY).run()
    assert ran == ["now", "now", "later"]


def test_m9_yield_waits_for_a_mail_it_may_run(mailbox: TaskMailbox, threads) -> None:
    executor = MailboxExecutor(mailbox, 1)
    ran: list[str] = []

    def note(priority: int) -> None:
        ran.append(f"{priority} in {threading.current_thread().name}")

    def put() -> None:
        for priority, options in [
            (0, MailOptions.DEFAULT),
            (MAX_PRIORITY, MailOptions.deferrable()),
            (1, MailOptions.DEFAULT),
        ]:
            threads.until(lambda: mailbox._waiting)
            MailboxExecutor(mailbox, priority).execute(
                partial(note, priority),
                "append",
                options=options,
            )

    putting = threads.start(put)
    executor.yield_()
    putting.result(threads.patience)
    assert ran == [f"1 in {threading.current_thread().name}"]
    assert mailbox.size() == 2


def test_m9_what_a_mail_raises_comes_out_of_the_yield(mailbox: TaskMailbox) -> None:
    executor = MailboxExecutor(mailbox, 0)
    executor.execute(lambda: 1 // 0, "divide")
    with pytest.raises(ZeroDivisionError):
        executor.yield_()
    executor.execute(lambda: 1 // 0, "divide")
    with pytest.raises(ZeroDivisionError):
        executor.try_yield()


def test_m9_yielding_and_looking_belong_to_the_mailbox_thread(mailbox: TaskMailbox, threads) -> None:
    executor = MailboxExecutor(mailbox, 0)
    for method in (executor.yield_, executor.try_yield, executor.should_interrupt):
        with pytest.raises(WrongThreadError):
            threads.call(method)


def test_m9_should_interrupt_when_mail_waits(mailbox: TaskMailbox) -> None:
    executor = MailboxExecutor(mailbox, 0)
    assert not executor.should_interrupt()
    executor.execute(lambda: None, "m")
    assert executor.should_interrupt()


def test_m9_is_idle_without_mail_and_default_action() -> None:
    controllers: list[MailboxController] = []
    processor = MailboxProcessor(controllers.append)
    executor = processor.get_mailbox_executor(0)
    assert not executor.is_idle()  # there is a default action to be called
    processor.run_mailbox_step()
    suspension = controllers[0].suspend_default_action()
    assert executor.is_idle()
    executor.execute(lambda: None, "m")
    assert not executor.is_idle()
    processor.run_mailbox_step()
    assert executor.is_idle()
    suspension.resume()
    assert not executor.is_idle()
    controllers[0].suspend_default_action()
    processor.prepare_close()
    assert not executor.is_idle()


def test_m9_is_idle_needs_a_processor(mailbox: TaskMailbox) -> None:
    with pytest.raises(RuntimeError, match="processor"):
        MailboxExecutor(mailbox, 0).is_idle()
