"""Services that count their calls, and functions that call them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.operators.async_keyed.gates import Gate, Stateful


class DeclinedError(Exception): ...


class Service:
    """A service that answers a call when the test opens the gate of the call's argument.

    Attributes:
        gate: gates by argument.
        charged: arguments of calls, by idempotency key.
        errors: errors to raise, one per call, by argument.
    """

    def __init__(self) -> None:
        self.gate = Gate()
        self.calls: list[Any] = []
        self.charged: dict[str, list[Any]] = {}
        self.errors: dict[Any, list[Exception]] = {}

    async def ask(self, name: Any) -> Any:
        self.calls.append(name)
        await self.gate(name)
        if self.errors.get(name):
            raise self.errors[name].pop(0)
        return f"answer to {name}", len(self.calls)

    async def charge(self, name: Any, *, idempotency_key: str) -> Any:
        self.charged.setdefault(idempotency_key, []).append(name)
        return await self.ask(name)

    def restart(self) -> None:
        self.gate.reset()

    @property
    def counts(self) -> Counter[Any]:
        return Counter(self.calls)


class Calling(Stateful):
    """Runs an async generator function ``f(service, value, ctx)`` for each record."""

    def __init__(self, service: Service, run: Callable[[Service, Any, Any], Any]) -> None:
        self.service = service
        self.run = run

    async def process_element(self, value: Any, ctx: Any) -> Any:
        async for result in self.run(self.service, value, ctx):
            yield result
