"""The outputs of a chain's operators, which count what goes by: a call for a run of records, and none for a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pillarbox._elements import Records
from pillarbox._operators.frame.operator import Input
from pillarbox._task.vertex import ChainNode

#: The outputs of one operator, by the tag of the side output; None stands for the main one.
Outputs = Mapping[str | None, "CountedOutput"]


class CountedOutput:
    """One output of an operator. Only the mailbox thread may touch it.

    Attributes:
        count: how many records it has handed on in this epoch.
    """

    __slots__ = ("_hand_on", "count", "process_status", "process_watermark")

    def __init__(self, output: Input) -> None:
        self.count = 0
        self._hand_on = output.process_records
        self.process_watermark = output.process_watermark
        self.process_status = output.process_status

    def process_records(self, records: Records) -> None:
        """Count a run, and hand it on."""
        self.count += len(records)
        self._hand_on(records)


def records_by_operator(nodes: Sequence[ChainNode], outputs: Sequence[Outputs], records_in: int) -> list[list[int]]:
    """Return for each operator of a chain how many records came in, and how many went out.

    Args:
        outputs: the outputs of each operator.
        records_in: how many records came to the head.
    """
    counts = [[0, sum(output.count for output in each.values())] for each in outputs]
    counts[0][0] = records_in
    for node, each in zip(nodes, outputs):
        for tag, consumers in [(None, node.output), *node.side_outputs.items()]:
            for consumer in consumers.nodes:
                counts[consumer.node][0] += each[tag].count
    return counts
