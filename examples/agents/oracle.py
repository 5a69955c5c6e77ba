"""The agents without pillarbox: plain Python answers one line after the other."""

from __future__ import annotations

import csv
import json
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from examples.agents.job import GAP, Line
from examples.agents.model import CARD, SUMMARIZE, Messages, answer, order_state


class Expected:
    """The expected answers, refusals and bill for a folder of chats.

    Attributes:
        lines: the answers and summaries.
        refused: customer and number of the refused lines.
        billed: how often the model bills each request (customer and messages, as JSON).
        tokens: number of billed tokens.
    """

    def __init__(self, folder: Path) -> None:
        self.lines: Counter[Line] = Counter()
        self.refused: Counter[tuple[str, int]] = Counter()
        self.billed: Counter[str] = Counter()
        self.tokens = 0
        memories: dict[str, Messages] = {}
        ends: dict[str, int] = {}
        for path in sorted(folder.glob("*.csv")):
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    self._line(row, memories, ends)
        for customer, memory in memories.items():
            if customer != "closing":  # event time ends before its chat
                self._sum_up(customer, memory)

    def _line(self, row: dict[str, str], memories: dict[str, Messages], ends: dict[str, int]) -> None:
        customer, number = row["customer"], int(row["number"])
        at = int(datetime.fromisoformat(row["at"]).replace(tzinfo=timezone.utc).timestamp() * 1000)
        if CARD.search(row["text"]):
            self.refused[customer, number] += 1
            return
        if customer in memories and at >= ends[customer]:
            self._sum_up(customer, memories.pop(customer))
        ends[customer] = max(ends.get(customer, 0), at + GAP)
        memory = memories.setdefault(customer, [])
        memory.append(("customer", row["text"]))
        while True:
            result = self._ask(customer, memory)
            memory.append(("agent", result["text"]))
            if result["order"] is None:
                break
            memory.append(("order", json.dumps(order_state(result["order"]))))
        self.lines[customer, number, "answer", result["text"]] += 1

    def _sum_up(self, customer: str, memory: Messages) -> None:
        result = self._ask(customer, [*memory, ("user", SUMMARIZE)])
        self.lines[customer, -1, "summary", result["text"]] += 1

    def _ask(self, customer: str, messages: Messages) -> dict[str, Any]:
        result = answer(messages)
        self.billed[json.dumps({"customer": customer, "messages": messages}, sort_keys=True)] += 1
        self.tokens += result["tokens"]
        return result
