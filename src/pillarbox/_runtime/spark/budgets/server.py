"""Serves the driver's ledger (the use of all budgets) to executors over TCP."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from pillarbox._errors import ConfigurationError, describe
from pillarbox._graph.budgets import budgets_of, check_equal
from pillarbox._graph.program import Program
from pillarbox._operators.budgets.account import (
    AHEAD,
    LATE,
    Account,
    AccountPeriod,
    AccountRefusal,
    AccountReport,
    AccountRetry,
)
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._operators.budgets.driver_ledger import DriverLedger
from pillarbox._operators.budgets.wire import BudgetConnection, BudgetMessageError, token_id
from pillarbox._runtime.spark.session.session import session_of
from pillarbox._time.system_clock import system_clock_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger("pillarbox")
# Maximum duration of the handshake (seconds).
_HELLO = 10.0
# Seconds without requests until the exact charge is written to checkpoints.
_IDLE = 2.0

#: The setting for the port of the driver's ledger.
PORT = "spark.pillarbox.budgets.port"
#: Writes a ceiling's charge to a query's checkpoint. Returns whether the query is still running.
Write = Callable[[str, AccountPeriod], bool]


class _Booking(NamedTuple):
    connection: BudgetConnection
    number: int
    estimates: list[float]
    arrived: float


class _SharedAccount:
    """A budget's use, and the waiting bookings in order of arrival. Server thread only."""

    def __init__(self, limits: BudgetLimits, server: BudgetServer) -> None:
        self.account: Account = _new_account(limits)
        self.users: set[BudgetConnection] = set()
        self.writes: list[Write] = []
        self._server = server
        self._waiting: deque[_Booking] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._is_writing = False
        self._is_held = False
        self._idle: asyncio.TimerHandle | None = None

    def book(self, booking: _Booking) -> None:
        self._waiting.append(booking)
        self.serve()

    def leave(self, connection: BudgetConnection) -> None:
        self.users.discard(connection)
        self._waiting = deque(booking for booking in self._waiting if booking.connection is not connection)

    def settle(self, report: AccountReport) -> None:
        if self.account.settle(report, time.monotonic()):
            for connection in self.users:
                connection.send("void", self.account.limits.name)
        self.serve()

    def serve(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            booking, now = self._waiting[0], time.monotonic()
            outcome = self.account.book(booking.estimates, now, system_clock_ms())
            if self.writes:
                self._write(booking.estimates[0])
            if isinstance(outcome, AccountRetry):
                if outcome.why and not self._is_held:
                    _log.warning("budget %r: %s; requests wait", self.account.limits.name, outcome.why)
                self._is_held = bool(outcome.why)
                self._timer = asyncio.get_running_loop().call_later(max(0.001, outcome.at - now), self.serve)
                return
            self._is_held = False
            self._waiting.popleft()
            kind = "refused" if isinstance(outcome, AccountRefusal) else "slots"
            booking.connection.send(kind, booking.number, booking.arrived, time.monotonic(), *outcome)
        if self.writes and self._idle is None and self.account.allowance > self.account.period.spent:
            self._idle = asyncio.get_running_loop().call_later(_IDLE, self._give_back, self.account.period.spent)

    def _give_back(self, spent: float) -> None:
        """After a pause without requests, save the units spent, instead of the larger amount charged in advance."""
        self._idle = None
        account = self.account
        if account.period.spent != spent or self._is_writing or self._waiting:
            self.serve()
        elif account.allowance > spent:
            account.allowance = spent
            self._write_period(spent)

    def _write(self, estimate: float) -> None:
        """Save the next part of the ceiling as charged, before requests may use this part."""
        account = self.account
        allowance = account.next_allowance(estimate)
        if allowance is not None and not self._is_writing:
            self._write_period(allowance)

    def _write_period(self, allowance: float) -> None:
        account = self.account
        self._is_writing = True
        period = AccountPeriod(account.period.began, allowance, account.period.clock)
        writes, name = list(self.writes), account.limits.name

        def write_all() -> list[Write]:
            return [write for write in writes if not write(name, period)]

        def written(done: asyncio.Future[list[Write]]) -> None:
            self._is_writing = False
            error = done.exception()
            if error is not None:
                _log.error(
                    "budget %r: its spent units cannot be written to the checkpoint. Requests wait, and the write is"
                    " retried each second: %s",
                    *(name, describe(error)),
                )
                asyncio.get_running_loop().call_later(1.0, self.serve)
                return
            if self.account.period.began == period.began and self.writes == writes:
                self.account.allowance = allowance
            self.writes = [write for write in self.writes if write not in done.result()]
            if not self.writes:
                self.account.allowance = float("inf")  # no running query has a checkpoint to write to
            self.serve()

        asyncio.get_running_loop().run_in_executor(self._server.writer, write_all).add_done_callback(written)

    def limit(self, limits: BudgetLimits) -> None:
        """Replace the limits. The ceiling's charge stays."""
        earlier, self.account = self.account, _new_account(limits)
        self.account.period, self.account.allowance = earlier.period, earlier.allowance


def _new_account(limits: BudgetLimits) -> Account:
    # An earlier server may have booked slots up to now.
    return Account(limits, time.monotonic() + AHEAD + LATE)


class BudgetServer:
    """The server, with its own thread."""

    def __init__(self, host: str, address: str, port: int = 0) -> None:
        self.host = host
        self.writer: ThreadPoolExecutor = ThreadPoolExecutor(1, "pillarbox budgets")
        # The fields below are used only in the server's thread.
        self._shared: dict[str, _SharedAccount] = {}
        self._accounts: dict[bytes, dict[str, _SharedAccount]] = {}
        self._tokens: dict[bytes, bytes] = {}
        self._programs: dict[str, dict[str, _SharedAccount]] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="pillarbox budgets", daemon=True).start()
        self._server: asyncio.Server = self._call(lambda: asyncio.start_server(self._serve, address, port))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _call(self, function: Callable[[], Any]) -> Any:
        async def call() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result()

    def register(self, program: str, budgets: Iterable[BudgetLimits]) -> DriverLedger:
        token = secrets.token_bytes(32)
        self._call(lambda: self._register(program, token, list(budgets)))
        return DriverLedger(self.host, self.port, token)

    def _register(self, program: str, token: bytes, budgets: list[BudgetLimits]) -> None:
        accounts: dict[str, _SharedAccount] = {}
        for limits in budgets:
            if limits.name.startswith("\0"):
                shared = _SharedAccount(limits, self)
            else:
                shared = self._shared.setdefault(limits.name, _SharedAccount(limits, self))
            if shared.account.limits != limits:
                if shared.users:
                    check_equal(shared.account.limits, limits)
                shared.limit(limits)  # a notebook's cell was changed and run again
            accounts[limits.name] = shared
        self._accounts[token], self._tokens[token_id(token)] = accounts, token
        self._programs[program] = accounts

    def ceilings(self, program: str) -> list[str]:
        def names() -> list[str]:
            accounts = self._programs.get(program, {})
            return [name for name, shared in accounts.items() if shared.account.limits.ceiling is not None]

        ceiling_names: list[str] = self._call(names)
        return ceiling_names

    def resume(self, name: str, charges: Iterable[AccountPeriod], write: Write) -> None:
        """Count the charges restored from checkpoints against a budget's ceiling. ``write`` saves later charges."""

        def resume() -> None:
            shared = self._shared[name]
            account = shared.account
            for charge in charges:
                account.period.merge(charge, account.limits.period)
            shared.writes.append(write)
            account.allowance = 0.0  # so that it is written before it is spent

        self._call(resume)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        used: dict[_SharedAccount, BudgetConnection] = {}
        try:
            accepting = BudgetConnection.to_executor(reader, writer, self._tokens.get)
            connection, token = await asyncio.wait_for(accepting, _HELLO)
            accounts = self._accounts[token]
            while True:
                kind, *content = await connection.receive()
                if kind == "time":
                    connection.send("time", content[0], time.monotonic())
                    continue
                name = content[1] if kind == "book" else content[0]
                shared = accounts[name]
                shared.users.add(connection)
                used[shared] = connection
                if kind == "book":
                    shared.book(_Booking(connection, content[0], content[2], time.monotonic()))
                else:
                    units, outcomes, probe, stop, unused, period = content[1]
                    shared.settle(AccountReport(units, tuple(outcomes), probe, stop, tuple(unused), period))
        except (OSError, EOFError, BudgetMessageError, asyncio.TimeoutError):
            pass  # the peer has exited, or is not an executor
        except Exception:
            _log.exception("the budget server drops a connection")
        finally:
            writer.close()
            for shared, connection in used.items():
                shared.leave(connection)


# Servers by host. A later session may have a different host.
_servers: dict[str, BudgetServer] = {}
_opening = threading.Lock()


def server_of(spark: SparkSession) -> BudgetServer:
    """Return the server. The first call starts it."""
    settings = session_of(spark).settings()
    host = settings.get("spark.driver.host", "127.0.0.1")
    with _opening:
        if host not in _servers:
            address, port = settings.get("spark.driver.bindAddress", host), settings.get(PORT, "0")
            try:
                _servers[host] = BudgetServer(host, address, int(port))
            except (OSError, ValueError) as error:
                raise ConfigurationError(
                    f"the driver cannot open its budget server at {address}, port {port}: {describe(error)}: set {PORT}"
                    " to a free port, and spark.driver.bindAddress to an address of this machine"
                ) from None
        return _servers[host]


def ceilings_of(programs: Iterable[str]) -> dict[str, BudgetServer]:
    """Map the names of budgets with a ceiling to the server."""
    opened = list(_servers.values())
    return {name: server for program in programs for server in opened for name in server.ceilings(program)}


def ledger_for(spark: SparkSession, program: Program) -> DriverLedger | None:
    """Return the ledger's address for a program's tasks, or None without budgets or under Spark Connect."""
    budgets = budgets_of(program.vertices)
    if not budgets:
        return None
    if session_of(spark).has_jvm:
        return server_of(spark).register(program.id, budgets)
    for limits in budgets:
        if limits.ceiling is not None:
            raise ConfigurationError(
                f"budget {limits.name!r} has a ceiling, which is enforced by the process that starts the query. Under"
                " Spark Connect, tasks cannot reach it: start the query in a classic session, or drop ceiling="
            )
    return None
