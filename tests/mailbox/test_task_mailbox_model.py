"""The task mailbox, compared with three plain lists."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pillarbox.mailbox import (
    MIN_PRIORITY,
    Mail,
    MailboxClosedError,
    MailboxState,
    MailOptions,
    TaskMailbox,
)

PATIENCE = 60.0
PRIORITIES = st.integers(MIN_PRIORITY, 3)
OPTIONS = st.sampled_from([MailOptions.DEFAULT, MailOptions.urgent(), MailOptions.deferrable()])


def nothing() -> None:
    pass


class MailboxMachine(RuleBasedStateMachine):
    """Mails leave once, in the order urgent, batch, queue."""

    def __init__(self) -> None:
        super().__init__()
        self.other = ThreadPoolExecutor(1)
        self.mailbox = TaskMailbox()
        self.urgent: list[Mail] = []
        self.batch: list[Mail] = []
        self.queue: list[Mail] = []
        self.state = MailboxState.OPEN
        self.count = 0

    def teardown(self) -> None:
        self.other.shutdown()

    # -- the model -------------------------------------------------------------------------------

    def new_mail(self, priority: int, options: MailOptions) -> Mail:
        self.count += 1
        return Mail(nothing, priority, "mail %d", self.count, options=options)

    def batch_pulls_queue(self) -> None:
        self.batch += self.queue
        self.queue = []

    def first(self, priority: int) -> Mail | None:
        for mails in (self.urgent, self.batch, self.queue):
            for mail in mails:
                if mail.priority >= priority:
                    mails.remove(mail)
                    if mails is self.urgent and not self.batch:
                        self.batch_pulls_queue()
                    return mail
        return None

    # -- the steps -------------------------------------------------------------------------------

    @rule(priority=PRIORITIES, options=OPTIONS, elsewhere=st.booleans())
    def put(self, priority: int, options: MailOptions, elsewhere: bool) -> None:
        mail = self.new_mail(priority, options)
        try:
            if elsewhere:
                self.other.submit(self.mailbox.put, mail).result(PATIENCE)
            else:
                self.mailbox.put(mail)
        except MailboxClosedError:
            assert self.state is not MailboxState.OPEN
        else:
            assert self.state is MailboxState.OPEN
            (self.urgent if options.is_urgent else self.queue).append(mail)

    @rule(priority=PRIORITIES, options=OPTIONS, elsewhere=st.booleans())
    def put_first(self, priority: int, options: MailOptions, elsewhere: bool) -> None:
        mail = self.new_mail(priority, options)
        try:
            if elsewhere:
                self.other.submit(self.mailbox.put_first, mail).result(PATIENCE)
            else:
                self.mailbox.put_first(mail)
        except MailboxClosedError:
            assert self.state is not MailboxState.OPEN
        else:
            assert self.state is MailboxState.OPEN
            if not elsewhere:
                self.batch.insert(0, mail)
            else:
                (self.urgent if options.is_urgent else self.queue).insert(0, mail)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule(priority=PRIORITIES)
    def try_take(self, priority: int) -> None:
        assert self.mailbox.try_take(priority) is self.first(priority)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule(priority=PRIORITIES)
    def take(self, priority: int) -> None:
        expected = self.first(priority)
        if expected is not None:
            assert self.mailbox.take(priority) is expected
        elif self.state is MailboxState.QUIESCED:
            with pytest.raises(MailboxClosedError):
                self.mailbox.take(priority)
        else:
            # It would wait: so let another thread bring the mail.
            mail = self.new_mail(3, MailOptions.DEFAULT)
            putting = self.other.submit(self.mailbox.put, mail)
            assert self.mailbox.take(priority) is mail
            putting.result(PATIENCE)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule()
    def create_batch(self) -> None:
        self.batch_pulls_queue()
        assert self.mailbox.create_batch() == bool(self.urgent or self.batch)

    @precondition(lambda self: self.state is not MailboxState.CLOSED)
    @rule()
    def try_take_from_batch(self) -> None:
        expected = None
        if self.urgent:
            if not self.batch:
                self.batch_pulls_queue()
            expected = self.urgent.pop(0)
        elif self.batch:
            expected = self.batch.pop(0)
        assert self.mailbox.try_take_from_batch() is expected

    @rule()
    def drain(self) -> None:
        assert self.mailbox.drain() == self.urgent + self.batch + self.queue
        self.urgent, self.batch, self.queue = [], [], []

    # A run that ends early tests little: so the end is rare.
    @precondition(lambda self: self.count > 12)
    @rule()
    def quiesce(self) -> None:
        self.mailbox.quiesce()
        if self.state is MailboxState.OPEN:
            self.state = MailboxState.QUIESCED

    @precondition(lambda self: self.count > 20)
    @rule()
    def close(self) -> None:
        expected = self.urgent + self.batch + self.queue
        assert self.mailbox.close() == expected
        self.urgent, self.batch, self.queue = [], [], []
        self.state = MailboxState.CLOSED

    @precondition(lambda self: self.state is MailboxState.CLOSED)
    @rule(priority=PRIORITIES)
    def nothing_is_taken_when_closed(self, priority: int) -> None:
        for take in (
            lambda: self.mailbox.take(priority),
            lambda: self.mailbox.try_take(priority),
            self.mailbox.create_batch,
            self.mailbox.try_take_from_batch,
        ):
            with pytest.raises(MailboxClosedError):
                take()

    # -- invariants -----------------------------------------------------------------------

    @invariant()
    def agree(self) -> None:
        mailbox = self.mailbox
        assert mailbox.state is self.state
        assert mailbox.size() == len(self.urgent) + len(self.batch) + len(self.queue)
        assert mailbox.has_mail() == bool(self.urgent or self.batch or self.queue)
        assert mailbox.has_new_mail == bool(self.urgent or self.queue)
        assert mailbox.has_new_urgent_mail == bool(self.urgent)
        assert not mailbox._waiting
        assert mailbox._wakeup.locked()


TestMailboxModel = MailboxMachine.TestCase
