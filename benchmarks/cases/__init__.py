# SPDX-License-Identifier: Apache-2.0
"""The cases, one per file. ``harness/case.py`` defines a case.

- ``rates`` compares rows per second with peers.
- ``epochs`` measures the costs of micro-batches, starts and task slots.
- ``state`` measures the costs of state: epochs, memory, restarts, operation.
- ``parts`` measures the mailbox and timers alone, without Spark.
- ``against`` compares this checkout with another revision, in all other cases.

Weak spot: your program may spend its time on other work than the cases.
"""

from __future__ import annotations

import importlib
from typing import Any

CASES = {
    "keyed": "rates.keyed",
    "sessions": "rates.sessions",
    "windows": "rates.windows",
    "join": "rates.join",
    "stateless": "rates.stateless",
    "copies": "rates.copies",
    "batch": "rates.batch",
    "async": "rates.async_io",
    "epoch": "epochs.epoch",
    "latency": "epochs.latency",
    "start": "epochs.start",
    "slots": "epochs.slots",
    "rate": "epochs.rate",
    "growth": "epochs.growth",
    "dashboard": "epochs.dashboard",
    "state": "state.state",
    "memory": "state.memory",
    "processes": "state.processes",
    "key-cost": "state.key_cost",
    "recovery": "state.recovery",
    "operate": "state.operate",
    "replay": "state.replay",
    "mailbox": "parts.mailbox",
    "timers": "parts.timers",
    "visit": "parts.visit",
    "against": "against",
}
"""The module of each case."""


def load(name: str) -> Any:
    """Return the module of a case."""
    return importlib.import_module(f"benchmarks.cases.{CASES[name]}")
