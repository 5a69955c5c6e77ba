"""Distributes an edge's records over the receiving subtasks.

A program's partitioner creates a selector for each sending task. Follows Flink's ``StreamPartitioner``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pillarbox._elements.records import Records
from pillarbox._errors import shorten
from pillarbox._operators.frame.captured import Captured
from pillarbox._operators.frame.keying import Keying, KeyingRouter
from pillarbox._operators.frame.user_code import raise_at_record


class ChannelSelector(ABC):
    """Divides a sending subtask's records among the receivers. Mailbox thread only."""

    def __init__(self, targets: int) -> None:
        self._targets = targets

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        """Reset the selector, so that a repeated epoch divides its records in the same way."""

    @abstractmethod
    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        """Yield ``(target index, records)`` for each target that receives records."""


class Partitioner:
    """Decides how an edge's records are distributed over the receiving subtasks.

    Attributes:
        to_output: whether the edge leads to a program output, which receives neither watermarks nor barriers.
        at_once: whether the task passes on each batch of records immediately rather than buffering it.
    """

    to_output = False
    at_once = False
    label: str
    # The class of the selector, if it needs only the number of targets.
    _selector: type[ChannelSelector]

    def selector(self, targets: int, max_parallelism: int, senders: int) -> ChannelSelector:
        """Create a sending subtask's selector. ``senders`` is the number of sending subtasks, or 0 for a source."""
        return self._selector(targets)


class _SingleTargetSelector(ChannelSelector):
    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        yield 0, records


class OutputPartitioner(Partitioner):
    """Sends records to a program output. ``at_once``: whether a caller is waiting for the records."""

    to_output = True
    label = "rows"
    _selector = _SingleTargetSelector

    def __init__(self, *, at_once: bool = False) -> None:
        self.at_once = at_once


class KeyGroupPartitioner(Partitioner):
    """Sends a record to the subtask that owns its key group. Flink's ``KeyGroupStreamPartitioner``."""

    def __init__(self, keying: Keying) -> None:
        self.keying = keying
        self.label: str = "key by " + (", ".join(keying.columns) if keying.columns else "function")

    def selector(self, targets: int, max_parallelism: int, senders: int) -> ChannelSelector:
        return _KeyGroupSelector(KeyingRouter(self.keying, targets, max_parallelism), targets)


class _KeyGroupSelector(ChannelSelector):
    def __init__(self, router: KeyingRouter, targets: int) -> None:
        super().__init__(targets)
        self._router = router

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        # Refuses keys that cannot be routed, even for a single target.
        subtasks = self._router.subtasks_of(records)
        if self._targets == 1:
            yield 0, records
        else:
            yield from _scatter(records, np.asarray(subtasks), self._targets)


def _scatter(records: Records, subtasks: npt.NDArray[np.int64], targets: int) -> Iterator[tuple[int, Records]]:
    # NumPy sorts small integer types with a radix sort, which is several times as fast.
    order = np.argsort(subtasks.astype(np.min_scalar_type(targets)), kind="stable")
    ends = np.cumsum(np.bincount(subtasks, minlength=targets)).tolist()
    ordered = records.take(order)
    start = 0
    for target, end in enumerate(ends):
        if end > start:
            yield target, ordered.slice(start, end)
        start = end


class _BroadcastSelector(ChannelSelector):
    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        for target in range(self._targets):
            yield target, records


class BroadcastPartitioner(Partitioner):
    """Sends all records to every subtask."""

    label = "broadcast"
    _selector = _BroadcastSelector


class _RebalanceSelector(ChannelSelector):
    def __init__(self, targets: int) -> None:
        super().__init__(targets)
        self._next = 0

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        # Begin with different targets, so that not all remainders are sent to the first.
        self._next = (subtask + epoch) % self._targets

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        share, left_over = divmod(len(records), self._targets)
        start = 0
        for turn in range(self._targets):
            end = start + share + (turn < left_over)
            if end > start:
                yield (self._next + turn) % self._targets, records.slice(start, end)
            start = end
        self._next = (self._next + left_over) % self._targets


class RebalancePartitioner(Partitioner):
    """Sends an equal share of the records to each subtask.

    Flink's ``RebalancePartitioner`` distributes single records; this class slices each batch, without copying columns.
    A repeated epoch sends records to the same subtasks if they arrive in the same order.
    """

    label = "rebalance"
    _selector = _RebalanceSelector


class _ShuffleSelector(ChannelSelector):
    def __init__(self, targets: int) -> None:
        super().__init__(targets)
        self._random = np.random.default_rng()

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        self._random = np.random.default_rng((subtask, epoch))

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        yield from _scatter(records, self._random.integers(self._targets, size=len(records)), self._targets)


class ShufflePartitioner(Partitioner):
    """Sends records to random subtasks (the same if the epoch is repeated)."""

    label = "shuffle"
    _selector = _ShuffleSelector


class _ForwardSelector(ChannelSelector):
    def __init__(self, targets: int) -> None:
        super().__init__(targets)
        self._target = 0

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        self._target = subtask % self._targets

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        yield self._target, records


class ForwardPartitioner(Partitioner):
    """Sends a subtask's records to the subtask with the same index, and a source's partitions round-robin."""

    label = "forward"
    _selector = _ForwardSelector


class RescalePartitioner(Partitioner):
    """Sends a subtask's records to its share of the receivers, round-robin. Several subtasks may share a receiver."""

    label = "rescale"

    def selector(self, targets: int, max_parallelism: int, senders: int) -> ChannelSelector:
        return _RescaleSelector(targets, senders) if senders else _ForwardSelector(targets)


class _RescaleSelector(ChannelSelector):
    def __init__(self, targets: int, senders: int) -> None:
        super().__init__(targets)
        self._senders = senders
        self._first = 0
        self._turns = _RebalanceSelector(1)

    def begin_epoch(self, subtask: int, epoch: int) -> None:
        targets, senders = self._targets, self._senders
        if senders < targets:
            self._first = -(-subtask * targets // senders)
            self._turns = _RebalanceSelector(-(-(subtask + 1) * targets // senders) - self._first)
        else:
            self._first = ((subtask + 1) * targets - 1) // senders
            self._turns = _RebalanceSelector(1)
        self._turns.begin_epoch(0, epoch)

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        for target, share in self._turns.divide(records):
            yield self._first + target, share


class GlobalPartitioner(Partitioner):
    """Sends all records to the first subtask."""

    label = "global"
    _selector = _SingleTargetSelector


class CustomPartitioner(Partitioner):
    """Sends a record to the subtask ``f(key, number of receivers)``. Flink's ``CustomPartitionerWrapper``."""

    label = "partition custom"

    def __init__(self, function: Callable[[Any, int], int], keying: Keying) -> None:
        self._captured = Captured(function)
        self._keying = keying

    def selector(self, targets: int, max_parallelism: int, senders: int) -> ChannelSelector:
        return _CustomSelector(self._captured.function, self._keying, targets)


class _CustomSelector(ChannelSelector):
    def __init__(self, function: Callable[[Any, int], int], keying: Keying, targets: int) -> None:
        super().__init__(targets)
        self._function = function
        self._keying = keying

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        where = f"operator {self._keying.operator!r}: the partitioner"
        keys = self._keying.keys_of(records)
        pending = iter(keys)
        try:
            chosen = [self._checked(self._function(key, self._targets)) for key in pending]
        except BaseException as error:
            raise_at_record(error, where, records.values, pending, operator=self._keying.operator)
        yield from _scatter(records, np.array(chosen, np.int64), self._targets)

    def _checked(self, target: Any) -> int:
        if isinstance(target, bool) or not isinstance(target, (int, np.integer)) or not 0 <= target < self._targets:
            raise ValueError(
                f"it returned {shorten(target)}, but there are {self._targets} subtasks: return a number from 0 to"
                f" {self._targets - 1}"
            )
        return int(target)
