"""Operators that buffer records, because processing many records in one call is faster."""

from __future__ import annotations

from pillarbox._operators.frame.operator import StreamOperator


class GatheringOperator(StreamOperator):
    """Buffers records until there are many, or a watermark, status change or barrier arrives.

    In a list of base classes, it must precede the class that forwards watermarks and status changes.
    """

    def work_off(self) -> None:
        raise NotImplementedError

    def process_watermark(self, timestamp: int) -> None:
        self.work_off()
        super().process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        self.work_off()
        super().process_status(idle)

    def end_input(self) -> None:
        self.work_off()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        self.work_off()
