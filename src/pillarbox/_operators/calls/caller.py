"""Makes service calls and records their answers, for async keyed functions.

Plain functions and file access use other threads, everything else the mailbox thread's event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Executor
from typing import Any, Protocol

from pillarbox._errors import ProgramError, describe, shorten
from pillarbox._operators.async_io.loop.turns import Turns
from pillarbox._operators.budgets.budget import Budget
from pillarbox._operators.budgets.gate import RATE_LIMITED
from pillarbox._operators.calls.digests import Callee, digest, numbered
from pillarbox._operators.calls.journal import Entry, Journal
from pillarbox._operators.calls.records import CallRecord, ElementCallRecords, Name
from pillarbox._operators.calls.replayed import ReplayedCalls
from pillarbox._operators.calls.service_call import ServiceCall, ServiceCallOptions
from pillarbox._operators.dead_letters.dead_letter import concerns_record
from pillarbox._operators.frame.operator import OperatorContext


class _CallingElement(Protocol):
    """An element (record or timer) whose function makes service calls."""

    key: Any
    arrival: int | None
    calls: ElementCallRecords | None

    @property
    def content(self) -> tuple[Any, ...]: ...


class Caller:
    """Makes the service calls of one operator's elements.

    Args:
        keeps_records: whether to keep an element's recorded calls, because the element may run again.
        journal: saves each record before its answer is used, or None.

    Attributes:
        numbers: maps (key, digest of an element's content) to the number of such elements so far.
    """

    def __init__(
        self,
        context: OperatorContext,
        *,
        keeps_records: bool,
        journal: Journal | None,
        budgets: Sequence[Budget],
        threads: Executor,
        replayed: ReplayedCalls | None = None,
    ) -> None:
        self._context = context
        self._keeps_records = keeps_records
        self._journal = journal
        self._replayed = replayed
        self._threads = threads
        scope = context.budget_scope
        tasks = scope.tasks(context.parallelism, 1)
        self._turns = {budget.name: Turns(None, [budget], scope, context.uid, tasks) for budget in budgets}
        self.numbers: dict[Any, dict[bytes, int]] = {}
        self._made = self._reused = 0

    async def call(
        self, element: _CallingElement, function: Callable[..., Any], args: tuple[Any, ...], options: ServiceCallOptions
    ) -> Any:
        """Return a call's recorded answer, or make the call and record its answer."""
        turns = None if options.budget is None else self._turns_of(options.budget)
        callee = Callee.of(function)
        needs_key = callee.takes_key or options.reconcile is not None
        if not (self._keeps_records or needs_key or options.key is not None):
            self._made += 1
            if self._replayed is not None:
                await self._replayed.before_call(callee, args)
            return await ServiceCall(function, callee, args, options, turns, element, self._threads).answer(
                was_begun=False
            )
        where = f"operator {self._context.name!r}: ctx.call() of {callee}"
        fingerprint = _fingerprint(callee, args, options.key, where)
        calls = element.calls
        if calls is None:
            calls = element.calls = ElementCallRecords()
        if self._journal is not None:
            self._journal.open()
            calls.records.update(self._journal.take(self._identity(element, calls, where)))
        name = options.key or calls.next_name(fingerprint)
        record = calls.records.get(name)
        if record is not None and record.fingerprint != fingerprint:
            raise ProgramError(
                f"{where}: this record or timer has already used the key {name!r} for a call with other arguments or"
                " of another function: use another key"
            )
        if record is not None and record.is_answered:
            self._reused += 1
            return record.answer()
        if name in calls.in_flight:
            raise ProgramError(f"{where}: a call with the key {name!r} is still running: await it, or use another key")
        idempotency_key = options.key
        if needs_key and isinstance(name, tuple):
            idempotency_key = numbered(self._identity(element, calls, where) + fingerprint, name[1]).hex()
        self._made += 1
        calls.in_flight.add(name)
        try:
            if self._replayed is not None:
                await self._replayed.before_call(callee, args)
            if options.reconcile is not None and record is None:
                await self._write(calls, name, CallRecord.begun(fingerprint))
            try:
                call = ServiceCall(function, callee, args, options, turns, element, self._threads, idempotency_key)
                answer = await call.answer(was_begun=record is not None)
            except BaseException as error:
                if isinstance(error, options.record_errors) and concerns_record(error):
                    await self._write(calls, name, CallRecord.of(fingerprint, error, where))
                else:
                    calls.release(name)
                raise
            if self._keeps_records or options.key is not None:
                await self._write(calls, name, CallRecord.of(fingerprint, answer, where))
            return answer
        finally:
            calls.in_flight.discard(name)

    async def _write(self, calls: ElementCallRecords, name: Name, record: CallRecord) -> None:
        """Record a call. The next snapshot contains the record even before it is written to the journal."""
        calls.records[name] = record
        if self._journal is not None:
            assert calls.identity is not None
            await self._journal.write(calls.identity, name, record)

    def _identity(self, element: _CallingElement, calls: ElementCallRecords, where: str) -> bytes:
        """Return a digest that identifies the element. It is the same if the element runs again."""
        if calls.identity is None:
            context = self._context
            epoch = context.epoch if element.arrival is None else element.arrival
            try:
                content = digest((context.uid, element.key, epoch, element.content))
            except Exception as error:
                raise ProgramError(
                    f"{where}: the record of key {shorten(element.key)} cannot be pickled ({describe(error)}), so the"
                    " call cannot be found after a restart: emit data that can be pickled before key_by()"
                ) from error
            numbers = self.numbers.setdefault(element.key, {})
            numbers[content] = number = numbers.get(content, 0) + 1
            calls.identity = numbered(content, number)
        return calls.identity

    def _turns_of(self, budget: Budget) -> Turns:
        turns = self._turns.get(budget.name)
        if turns is None:
            raise ProgramError(
                f"operator {self._context.name!r}: ctx.call() uses the budget {budget.name!r}, which was not passed"
                f" to process(): add it, as in process(..., budgets=[...])"
            )
        return turns

    def snapshot(self, busy_keys: Collection[Any], first_arrival: int | None) -> tuple[Any, ...] | None:
        """Return arguments for :meth:`restore` as plain data, or None.

        Args:
            first_arrival: the epoch when the oldest unfinished element arrived, or None.
        """
        self.numbers = {key: self.numbers[key] for key in busy_keys if key in self.numbers}
        epoch, entries = 0, list[Entry]()
        if self._journal is not None:
            if busy_keys:
                self._journal.open()
            epoch, entries = self._journal.snapshot(first_arrival)
        return (self.numbers, epoch, entries) if self.numbers or entries else None

    def restore(self, numbers: dict[Any, dict[bytes, int]], epoch: int, entries: list[Entry]) -> None:
        self.numbers = numbers
        if self._journal is not None:
            self._journal.add(epoch, entries)

    def budget_awaited_by(self, element: _CallingElement) -> str | None:
        return next((name for name, turns in self._turns.items() if turns.has_request_of(element)), None)

    @property
    def is_writing(self) -> bool:
        return self._journal is not None and self._journal.is_writing

    def commit(self, epoch: int) -> None:
        if self._journal is not None:
            self._journal.commit(epoch)

    def take_counts(self) -> dict[str, int]:
        counts = {"calls": self._made, "calls_reused": self._reused}
        self._made = self._reused = 0
        if self._turns:
            counts[RATE_LIMITED] = round(1000 * sum(turns.take_waited() for turns in self._turns.values()))
        for turns in self._turns.values():
            counts.update(turns.take_counts())
        return counts

    async def close(self) -> None:
        """Release the budgets' booked slots. A coroutine, because the budgets' connections belong to the event loop."""
        for turns in self._turns.values():
            turns.close()


def _fingerprint(callee: Callee, args: tuple[Any, ...], key: str | None, where: str) -> bytes:
    if key is None and callee.name.endswith("<lambda>"):
        raise ProgramError(f"{where}: a lambda has no name, so the call cannot be identified: pass key=...")
    try:
        return digest((callee.module, callee.name, callee.added, args))
    except Exception as error:
        if key is not None:
            return digest((callee.module, callee.name))
        raise ProgramError(
            f"{where}: its arguments cannot be pickled ({describe(error)}), so the call cannot be identified:"
            " pass key=..."
        ) from error
