"""A task's input in batch mode, ordered: broadcast records, then other records without keys, then keyed records.

Follows Flink's batch execution mode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pillarbox._elements.records import Records
from pillarbox._operators.frame.keyed_run import KeyedRun
from pillarbox._task.network.key_sorter import KeySorter
from pillarbox._task.network.partitioner import BroadcastPartitioner, KeyGroupPartitioner
from pillarbox._task.network.spool import RecordSpool
from pillarbox._task.vertex import InputEdge


class BatchInput:
    """Stores records until all records that must precede them have arrived. Mailbox thread only."""

    def __init__(self, operator: str, edges: Sequence[InputEdge], *, by_key: bool) -> None:
        self._by_key = by_key
        self._has_broadcast = any(isinstance(edge.partitioner, BroadcastPartitioner) for edge in edges)
        self._waiting = RecordSpool(operator)
        self._sorter = KeySorter(operator)
        self.complete: bool = False

    def takes(self, edge: InputEdge, records: Records, size: int) -> bool:
        if self._by_key and isinstance(edge.partitioner, KeyGroupPartitioner):
            self._sorter.add(edge.index, records, edge.partitioner.keying, size)
        elif self._has_broadcast and not isinstance(edge.partitioner, BroadcastPartitioner):
            self._waiting.add(edge.index, records)
        else:
            return False
        return True

    def in_order(self) -> Iterator[KeyedRun]:
        self.complete = True
        for index, records in self._waiting:
            yield KeyedRun(index, records)
        yield from self._sorter.runs()

    def close(self) -> None:
        self._waiting.close()
        self._sorter.close()
