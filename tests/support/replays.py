"""Epochs of a query on Spark, recorded and replayed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pillarbox
from pillarbox import ProgramError
from pillarbox._runtime.recording.recording import read_recording
from pillarbox._runtime.recording.replay import replay
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint


def replay_epochs(
    writer: Any, checkpoint: str, tasks: Iterable[tuple[str, int]], folder: Path, *, newest: int = 100
) -> int:
    """Record the newest committed epochs of some tasks, and replay them; return how many there were.

    A task that had nothing to do in an epoch has no recording of it.

    Args:
        tasks: uid and subtask, or partition, of each.
    """
    count = 0
    last = Checkpoint(writer._spark, checkpoint).last_committed
    for epoch in range(max(0, last - newest + 1), last + 1):
        for uid, subtask in tasks:
            place = folder / f"{uid}-{subtask}-{epoch}"
            try:
                pillarbox.record(
                    writer, str(place), epoch=epoch, uid=uid, subtask=subtask, checkpointLocation=checkpoint
                )
            except ProgramError as error:
                assert "it had no input, and nothing was due" in str(error)
                continue
            recording = read_recording(place)
            found = replay(recording, diff=True)
            assert (found.error, found.differs, found.state or []) == (None, [], []), (place, found.reasons)
            assert found.state is not None or not recording.facts.level
            count += 1
    return count
