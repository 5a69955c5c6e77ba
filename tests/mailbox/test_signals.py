"""Mails from real signal handlers at any point of the mailbox.

Each test has its own process, because only a main thread handles signals, and a failing mailbox hangs or spins. The
duration depends on the number of signals, not on the clock.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from tests.support.budgets import LONG

pytestmark = [
    pytest.mark.slow("a process for each test, and its signals take their time"),
    pytest.mark.skipif(sys.platform == "win32", reason="needs interval timers"),
]

# Seconds; only a test that fails waits for it.
_PATIENCE = 600.0
# How many signals each program gets; the many of `make test-all` hit rarer places.
_SIGNALS = 4000 if LONG else 500

_COMMON = """
import itertools, os, signal, threading
from collections import Counter
from pillarbox.mailbox import Mail, MailboxProcessor, MailOptions, TaskMailbox

ringing = False

def ring():
    if ringing:
        signal.setitimer(signal.ITIMER_REAL, 0.00002 + next(moments) * 0.00001)

def signals(handler):
    "Signals at odd moments, until stop() is called: the next one is set when one was handled, so that work goes on."
    global ringing
    def handle(*args):
        try:
            handler(*args)
        finally:
            ring()
    signal.signal(signal.SIGALRM, handle)
    ringing = True
    ring()

def stop():
    global ringing
    ringing = False
    signal.setitimer(signal.ITIMER_REAL, 0)

moments = itertools.cycle([0, 7, 3, 14, 1, 10, 5])

def nothing():
    pass
"""


def run(program: str) -> None:
    source = _COMMON + textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr


_TAKING = """
    box = TaskMailbox()
    mails, taken, handled, caught = [], [], 0, 0

    def new(options=MailOptions.DEFAULT):
        mail = Mail(nothing, 0, "mail", options=options)
        mails.append(mail)
        return mail

    def handler(*_):
        global handled
        handled += 1
        if handled % 5 == 0:
            box.put(new(MailOptions.urgent()))
        elif handled % 7 == 0:
            box.put_first(new())
        else:
            box.put(new())
        {and_then}

    def work():
        "All ways of taking, by turns."
        while handled < {count}:
            for _ in range(20):
                box.put(new())
            way = handled % 4
            if way == 0:
                box.create_batch()
                while (mail := box.try_take_from_batch()) is not None:
                    taken.append(mail)
            elif way == 1:
                while (mail := box.try_take(0)) is not None:
                    taken.append(mail)
            elif way == 2:
                taken.extend(box.drain())
            else:
                for _ in range(25):
                    taken.append(box.take(0))
"""


def test_a_mail_from_a_signal_handler_is_taken_once() -> None:
    run(
        _TAKING.format(count=_SIGNALS, and_then="")
        + """
    signals(handler)
    work()
    stop()
    taken.extend(box.drain())
    assert Counter(map(id, taken)) == Counter(map(id, mails)), (len(taken), len(mails))
    assert not box.has_mail() and not box.has_new_mail and box.size() == 0
    """
    )


def test_a_signal_handler_that_raises_doubles_no_mail() -> None:
    run(
        _TAKING.format(count=_SIGNALS, and_then="strike()")
        + f"""
    armed = False

    def strike():
        global armed
        if armed and handled % 3 == 0:
            armed = False
            raise KeyboardInterrupt

    def put_and_take():
        for _ in range(20):
            box.put(new())
        if handled % 2:
            box.create_batch()
            while (mail := box.try_take_from_batch()) is not None:
                taken.append(mail)
        else:
            while (mail := box.try_take(0)) is not None:
                taken.append(mail)

    signals(handler)
    while handled < {_SIGNALS}:
        try:
            armed = True
            # A function: Python 3.12 and 3.13 do not catch what is raised at the jump back of a `while` in a `try`.
            put_and_take()
            armed = False
        except KeyboardInterrupt:
            caught += 1
    stop()
    assert caught
    taken.extend(box.drain())
    counts = Counter(map(id, taken))
    assert set(counts.values()) == {{1}}
    assert len(mails) - len(taken) <= caught, (len(mails), len(taken), caught)
    # The mailbox is none the worse for it.
    mail = new()
    box.put(mail)
    assert box.take(0) is mail and box.size() == 0
    """
    )


def test_suspend_from_a_signal_handler_always_leaves_the_loop() -> None:
    run(
        f"""
    rounds, left, busy = {_SIGNALS // 2}, 0, itertools.count()

    def action(controller):
        if left % 3 == 0:
            controller.suspend_default_action()
        elif next(busy) % 3 == 0:
            processor.get_main_mailbox_executor().execute(nothing, "mail")

    processor = MailboxProcessor(action)
    signal.signal(signal.SIGALRM, lambda *_: processor.suspend())
    for left in range(rounds):
        signal.setitimer(signal.ITIMER_REAL, 0.00002 + left % 50 * 0.00001)
        processor.run_mailbox_loop()
        if processor._suspended_default_action is not None:
            processor._suspended_default_action.resume()
    processor.close()
    """
    )


def test_resume_from_a_signal_handler_wakes_the_loop() -> None:
    run(
        f"""
    rounds, resumed = {_SIGNALS // 2}, 0

    def action(controller):
        global suspension, resumed
        resumed += 1
        if resumed > rounds:
            controller.all_actions_completed()
            return
        suspension = controller.suspend_default_action()
        signal.setitimer(signal.ITIMER_REAL, 0.00002 + resumed % 50 * 0.000002)

    processor = MailboxProcessor(action)
    signal.signal(signal.SIGALRM, lambda *_: suspension.resume())
    processor.run_mailbox_loop()
    assert resumed == rounds + 1
    processor.close()
    """
    )


@pytest.mark.parametrize("put", ["put", "put_first"])
def test_a_mail_from_a_signal_handler_wakes_the_take_beneath_it(put: str) -> None:
    run(
        f"""
    box = TaskMailbox()
    signal.signal(signal.SIGALRM, lambda *_: box.{put}(Mail(nothing, 0, "mail")))
    for n in range({_SIGNALS // 2}):
        signal.setitimer(signal.ITIMER_REAL, 0.00002 + n % 50 * 0.000001)
        assert str(box.take(0)) == "mail"
    assert box.size() == 0
    """
    )


def test_sigterm_ends_a_loop_in_good_order() -> None:
    run(
        f"""
    processor = MailboxProcessor(lambda controller: controller.suspend_default_action())
    signal.signal({int(signal.SIGTERM)}, lambda *_: processor.suspend())
    processor.get_main_mailbox_executor().execute(
        threading.Timer(0.05, os.kill, (os.getpid(), {int(signal.SIGTERM)})).start, "kill"
    )
    processor.run_mailbox_loop()
    processor.prepare_close()
    processor.close()
    """
    )
