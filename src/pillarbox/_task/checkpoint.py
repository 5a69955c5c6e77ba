"""Checkpoints as one task sees them: snapshot in order, and what operators hear of it afterwards.

Source of the behaviour: Flink's ``SubtaskCheckpointCoordinatorImpl``. Only the mailbox thread may touch it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pillarbox._elements import Barrier
from pillarbox._task.network.record_writer import RecordWriter
from pillarbox._task.operator_chain import OperatorChain

__all__ = ["SubtaskCheckpointCoordinator"]


class SubtaskCheckpointCoordinator:
    """Takes checkpoints, and tells operators which are committed: each hears of each once, in order (C2).

    Nobody hears of one that failed: a task that took it does not go on, it is closed and made anew.
    """

    def __init__(self, chain: OperatorChain, writer: RecordWriter) -> None:
        self._chain = chain
        self._writer = writer
        self.latest_completed: int = 0

    def checkpoint_state(self, checkpoint_id: int, write: Callable[[dict[str, Any]], None]) -> None:
        """Take a checkpoint (C4): operators emit what must go first, the barrier goes downstream, state is written.

        Args:
            write: writes keyed state, and the operators' own that it is given.
        """
        self._chain.prepare_snapshot_pre_barrier(checkpoint_id)
        # Unlike Flink's without the time: a task that is tried again sends the same bytes.
        self._writer.broadcast(Barrier(checkpoint_id))
        write(self._chain.snapshot_state(checkpoint_id))

    def restored(self, checkpoint_id: int) -> None:
        """Take note that the task is at a checkpoint: completions of older ones are passed over, its own is not."""
        self.latest_completed = max(self.latest_completed, checkpoint_id - 1)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the operators that a checkpoint is committed; one that they know of is skipped."""
        if checkpoint_id <= self.latest_completed:
            return
        self.latest_completed = checkpoint_id
        for operator in self._chain.operators:
            operator.notify_checkpoint_complete(checkpoint_id)
