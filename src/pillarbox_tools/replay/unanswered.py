"""Replaces operators that call services, in a replay: they report the pending requests and stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pillarbox._elements import Records
from pillarbox._errors import PillarboxError, shorten_record
from pillarbox._operators.frame.operator import StreamOperator
from pillarbox._task.vertex import Vertex

_TOLD = 5


class UnansweredError(PillarboxError):
    """A replay has reached a call that the recording has no answer to. ``calls`` are the first requests, as text."""

    def __init__(self, uid: str, asked: list[Any]) -> None:
        self.calls: list[str] = [shorten_record(call) for call in asked[:_TOLD]]
        more = len(asked) - len(self.calls)
        super().__init__(
            f"operator {uid!r} calls a service, and the recording has no answers. Pending requests:"
            f" {', '.join(self.calls)}{f', and {more} more' if more else ''}. Pass --allow-calls to make the calls"
        )


class UnansweredOperator(StreamOperator):
    """Replaces an operator that calls a service, and stops at its first request."""

    def process_records(self, records: Records) -> None:
        raise UnansweredError(self.context.uid, list(records.values))

    def restore_state(self, state: Any) -> None:
        entries = state or ()
        carried = [value for what, *content in entries if what in ("request", "answer") for value in content[0]]
        carried += [content[2] for what, *content in entries if what == "element"]
        carried += [f"timers of key {content[0]!r}" for what, *content in entries if what == "visit"]
        if carried:
            raise UnansweredError(self.context.uid, carried)


def without_calls(vertex: Vertex) -> None:
    for node in vertex.nodes:
        if node.factory.wakes_up:
            node.factory = replace(node.factory, make=UnansweredOperator, wakes_up=False)
