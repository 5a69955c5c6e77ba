"""Counts the records that operators emit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pillarbox._elements.records import Records
from pillarbox._operators.frame.operator import Input
from pillarbox._task.vertex import ChainNode

#: Maps side-output tags to outputs. None stands for the main output.
Outputs = Mapping[str | None, "CountedOutput"]


class CountedOutput:
    """Forwards an operator's output and counts its records in an epoch. Mailbox thread only."""

    __slots__ = ("_process", "count", "process_status", "process_watermark")

    def __init__(self, output: Input) -> None:
        self.count = 0
        self._process = output.process_records
        self.process_watermark = output.process_watermark
        self.process_status = output.process_status

    def process_records(self, records: Records) -> None:
        self.count += len(records)
        self._process(records)


def records_by_operator(nodes: Sequence[ChainNode], outputs: Sequence[Outputs], records_in: int) -> list[list[int]]:
    counts = [[0, sum(output.count for output in by_tag.values())] for by_tag in outputs]
    counts[0][0] = records_in
    for node, by_tag in zip(nodes, outputs):
        for tag, consumers in [(None, node.output), *node.side_outputs.items()]:
            for consumer in consumers.nodes:
                counts[consumer.node][0] += by_tag[tag].count
    return counts
