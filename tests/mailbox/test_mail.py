# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from concurrent.futures import Future

import pytest

from pillarbox.mailbox import (
    MAX_PRIORITY,
    MIN_PRIORITY,
    Mail,
    MailOptions,
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
