"""Operators that keep records for a while, because many at once cost less."""

from __future__ import annotations

from pillarbox._operators.frame.operator import StreamOperator


class GatheringOperator(StreamOperator):
    """An operator whose records wait: until there are many, or until something other than records comes.

    It is named before the class whose methods hand on what is no record.
    """

    def work_off(self) -> None:
        """Handle the records that wait."""
        raise NotImplementedError

    def process_watermark(self, timestamp: int) -> None:
        """Handle the records that wait, and then a watermark."""
        self.work_off()
        super().process_watermark(timestamp)

    def process_status(self, idle: bool) -> None:
        """Handle the records that wait, and then a change between idle and active."""
        self.work_off()
        super().process_status(idle)

    def end_input(self) -> None:
        """Handle what waits: the input has ended."""
        self.work_off()

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> None:
        """Handle what waits: the epoch ends."""
        self.work_off()
