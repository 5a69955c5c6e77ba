# SPDX-License-Identifier: Apache-2.0
"""The cases, each in a file of its own; ``harness/case.py`` says what a case is.

- ``rates`` are rows per second beside peers.
- ``epochs`` is what micro-batches, starts and task slots cost.
- ``state`` is what state costs: epochs, memory, restarts, operating it.
- ``parts`` are the mailbox and timers by themselves, without Spark.
- ``against`` is this checkout beside another revision, by all the others.

The weak spot: a case measures what its authors thought of; a program of yours may spend its time elsewhere.
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
