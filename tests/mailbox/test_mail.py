# SPDX-License-Identifier: Apache-2.0
"""Mails (M2) and what runs them (P5)."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from pillarbox.mailbox import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    Mail,
    MailOptions,
    StreamTaskActionExecutor,
)


def nothing() -> None:
    pass


def test_m2_run_runs_the_command_and_lets_its_error_out() -> None:
    ran = []
    Mail(lambda: ran.append(1), 0, "append").run()
    assert ran == [1]

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Mail(fail, 0, "fail").run()


def test_m2_priorities() -> None:
    assert MIN_PRIORITY == -1
    assert MAX_PRIORITY == 2**31 - 1
    assert Mail(nothing, 3, "m").priority == 3
    assert Mail(nothing, 3, "m", options=MailOptions.urgent()).priority == 3
    assert Mail(nothing, 3, "m", options=MailOptions.deferrable()).priority == MIN_PRIORITY


def test_m2_options() -> None:
    assert not MailOptions.DEFAULT.is_urgent and not MailOptions.DEFAULT.is_deferrable
    assert MailOptions.urgent().is_urgent and not MailOptions.urgent().is_deferrable
    assert MailOptions.deferrable().is_deferrable and not MailOptions.deferrable().is_urgent
    assert MailOptions.urgent() is MailOptions.urgent()
    assert Mail(nothing, 0, "m").options is MailOptions.DEFAULT


def test_m2_description_is_formatted_lazily() -> None:
    class Spy:
        looked_at = 0

        def __str__(self) -> str:
            self.looked_at += 1
            return "spy"

    spy = Spy()
    mail = Mail(nothing, 0, "%s number %d", spy, 7)
    mail.run()
    assert spy.looked_at == 0
    assert str(mail) == "spy number 7"
    assert str(Mail(nothing, 0, "100% done")) == "100% done"


def test_m2_a_wrong_description_hides_no_error() -> None:
    assert str(Mail(nothing, 0, "no place", 7)) == "no place (7,)"
    assert str(Mail(nothing, 0, "%d", "seven")) == "%d ('seven',)"


def test_m2_try_cancel_cancels_future_like_commands() -> None:
    class Command(Future[None]):
        def __call__(self) -> None:
            raise AssertionError("never run here")

    future = Command()
    mail = Mail(future, 0, "future")
    assert mail.try_cancel()
    assert future.cancelled()
    assert not Mail(nothing, 0, "plain function").try_cancel()


def test_p5_immediate_adds_nothing() -> None:
    immediate = StreamTaskActionExecutor.IMMEDIATE
    ran = []
    immediate.run(lambda: ran.append(1))
    assert ran == [1]
    assert immediate.call(lambda: 5) == 5


def test_p5_synchronized_holds_its_lock_while_a_mail_runs() -> None:
    class SpyLock:
        held = 0

        def __enter__(self) -> None:
            self.held += 1

        def __exit__(self, *_: object) -> None:
            self.held -= 1

    lock = SpyLock()
    executor = StreamTaskActionExecutor.synchronized(lock)
    seen = []
    Mail(lambda: seen.append(lock.held), 0, "look", action_executor=executor).run()
    assert seen == [1]
    assert lock.held == 0
    assert executor.call(lambda: lock.held) == 1

    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        executor.run(fail)
    assert lock.held == 0


def test_p5_synchronized_keeps_another_thread_out_and_is_reentrant(threads) -> None:
    executor = StreamTaskActionExecutor.synchronized()
    inside, release = threading.Event(), threading.Event()
    order: list[str] = []

    def first() -> None:
        inside.set()
        release.wait(threads.patience)
        executor.run(lambda: order.append("first"))  # the lock a second time

    one = threads.start(executor.run, first)
    assert inside.wait(threads.patience)
    two = threads.start(executor.run, lambda: order.append("second"))
    assert order == []
    release.set()
    one.result(threads.patience)
    two.result(threads.patience)
    assert order == ["first", "second"]
