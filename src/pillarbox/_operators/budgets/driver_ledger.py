"""The executors' client of the driver's ledger (budget accounts)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pillarbox._errors import OperatorError, describe
from pillarbox._operators.budgets.account import LATE, AccountRefusal, AccountReport
from pillarbox._operators.budgets.budget import BudgetLimits
from pillarbox._operators.budgets.ledger import Ledger, LedgerConnection, LedgerSlot
from pillarbox._operators.budgets.wire import BudgetConnection, BudgetMessageError

# A report waits this long (seconds) for others or for a booking.
_GATHER = 0.02
# Seconds without a connection until the task fails.
_UNREACHABLE = 60.0
_CONNECT = 10.0
_PAUSES = (0.05, 0.2, 0.5, 1.0)
# The largest relative difference between the speeds of two machines' clocks.
_DRIFT = 2e-4

_log = logging.getLogger("pillarbox")


@dataclass(frozen=True)
class DriverLedger(Ledger):
    """The driver ledger's address and token."""

    host: str
    port: int
    token: bytes = field(repr=False)

    def open(self) -> LedgerConnection:
        return _DriverLedgerConnection(self)


class _Offset:
    """Bounds on the difference between the driver's and this process's clock, from message times."""

    def __init__(self) -> None:
        self.low, self.high, self._at = float("-inf"), float("inf"), 0.0

    def update(self, sent: float, arrived: float, answered: float, received: float) -> None:
        """Narrow the bounds by a message that arrived at ``arrived`` and was answered at ``answered`` (driver's clock).

        The time that the driver took does not widen them.
        """
        drift = (received - self._at) * _DRIFT
        low, high = max(self.low - drift, answered - received), min(self.high + drift, arrived - sent)
        if low > high:  # one of the machines was suspended
            low, high = answered - received, arrived - sent
        self.low, self.high, self._at = low, high, received


class _DriverLedgerConnection(LedgerConnection):
    """An event loop's access to the driver's ledger. Connects on first use, and after a lost connection."""

    def __init__(self, ledger: DriverLedger) -> None:
        self._ledger = ledger
        self.now = time.monotonic
        self._offset = _Offset()
        self._connection: BudgetConnection | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[list[Any]]] = {}
        # By limits and period.
        self._reports: dict[tuple[BudgetLimits, int], AccountReport] = {}
        self._sending: asyncio.TimerHandle | None = None
        self._voids: dict[str, Callable[[], None]] = {}
        self._closed = False

    async def book(self, limits: BudgetLimits, estimates: Sequence[float]) -> list[LedgerSlot] | AccountRefusal:
        while True:
            connection = await self._connected()
            number, sent = next(self._numbers), self.now()
            answer = self._answers[number] = asyncio.get_running_loop().create_future()
            self._send_reports()
            connection.send("book", number, limits.name, estimates)
            try:
                kind, arrived, answered, *content = await answer
            except ConnectionError:
                continue
            finally:
                self._answers.pop(number, None)
            self._offset.update(sent, arrived, answered, self.now())
            if kind == "refused":
                return AccountRefusal(*content)
            times, probes, period = content
            low, high = self._offset.low, self._offset.high
            return [
                LedgerSlot(at - low, at + LATE - high, estimate, probes, at, period)
                for at, estimate in zip(times, estimates)
            ]

    def report(self, limits: BudgetLimits, report: AccountReport) -> None:
        earlier = self._reports.get((limits, report.period), AccountReport())
        probe = earlier.probe if report.probe is None else report.probe
        stops = [source.stop for source in (earlier, report) if source.stop is not None]
        self._reports[limits, report.period] = AccountReport(
            earlier.units + report.units,
            earlier.outcomes + report.outcomes,
            probe,
            max(stops, default=None),
            earlier.unused + report.unused,
            report.period,
        )
        if report.stop is not None or report.probe is not None:
            self._send_reports()
        elif self._sending is None and not self._closed:
            self._sending = asyncio.get_running_loop().call_later(_GATHER, self._send_reports)

    def _send_reports(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        if self._connection is not None:
            for (limits, _), report in self._reports.items():
                self._connection.send("report", limits.name, report)
            self._reports.clear()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def on_void(self, limits: BudgetLimits, callback: Callable[[], None]) -> None:
        self._voids[limits.name] = callback

    async def _connected(self) -> BudgetConnection:
        async with self._connecting:
            deadline, pauses = self.now() + _UNREACHABLE, iter(_PAUSES)
            while self._connection is None:
                ledger = self._ledger
                try:
                    connecting = BudgetConnection.to_driver(ledger.host, ledger.port, ledger.token)
                    connection = await asyncio.wait_for(connecting, _CONNECT)
                    number, sent = next(self._numbers), self.now()
                    connection.send("time", number)
                    (_, _, driver) = await asyncio.wait_for(connection.receive(), _CONNECT)
                except (OSError, EOFError, BudgetMessageError, TimeoutError, asyncio.TimeoutError) as error:
                    if self.now() > deadline:
                        raise OperatorError(
                            f"cannot connect to the driver's budget server at {ledger.host}:{ledger.port}:"
                            f" {describe(error)}: allow executors to connect to the driver at this port"
                        ) from error
                    await asyncio.sleep(next(pauses, _PAUSES[-1]))
                    continue
                self._offset.update(sent, driver, driver, self.now())
                self._connection = connection
                loop = asyncio.get_running_loop()
                self._reading = Context().run(loop.create_task, self._read(connection))
            return self._connection

    async def _read(self, connection: BudgetConnection) -> None:
        error: BaseException = ConnectionError("it is closed")
        try:
            while True:
                kind, *content = await connection.receive()
                if kind == "void":
                    self._voids[content[0]]()
                    continue
                answer = self._answers.get(content[0])
                if answer is not None and not answer.done():
                    answer.set_result([kind, *content[1:]])
        except (OSError, EOFError, BudgetMessageError) as lost:
            error = lost
        finally:
            connection.close()
            self._connection = None
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionError(str(error)))

    def close(self) -> None:
        self._closed = True
        self._send_reports()
        with contextlib.suppress(RuntimeError):
            if self._reading is not None:
                self._reading.cancel()
            if self._connection is not None:
                self._connection.close()
