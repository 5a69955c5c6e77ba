"""How the records of an edge are spread over the subtasks behind it.

A partitioner is a value of the edge, made where the program is built; a task makes its own selector of it. Source of
the names: Flink's ``StreamPartitioner`` and ``ChannelSelector``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

from pillarbox.elements import ArrowRecords, Records
from pillarbox.operators.keys import Keying, Router

__all__ = [
    "BroadcastPartitioner",
    "ChannelSelector",
    "KeyGroupPartitioner",
    "OutputPartitioner",
    "Partitioner",
    "RebalancePartitioner",
]


class ChannelSelector(Protocol):
    """Divides the runs of records of one sending subtask among the targets. Only the mailbox thread may touch it."""

    def begin_epoch(self, subtask: int) -> None:
        """Start anew, as the ``subtask``-th sender: an epoch that is run again divides its records the same way."""

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        """Yield the index of a target and its share of the records, for each target that has any."""


class Partitioner(ABC):
    """How records are spread over the targets of an edge.

    Attributes:
        to_output: whether the edge leads out of the program: records go there, and no watermarks or barriers.
    """

    to_output = False

    @property
    @abstractmethod
    def label(self) -> str:
        """The label of the edge in a plan."""

    @abstractmethod
    def selector(self, targets: int, max_parallelism: int) -> ChannelSelector:
        """Return what divides the records of one sending subtask among ``targets`` receivers."""


class OutputPartitioner(Partitioner):
    """To an output of the program, which is one target."""

    to_output = True

    @property
    def label(self) -> str:
        """The label of the edge in a plan."""
        return "rows"

    def selector(self, targets: int, max_parallelism: int) -> ChannelSelector:
        """Return what hands on all records."""
        return _ToTheOnlyTarget()


class _ToTheOnlyTarget:
    def begin_epoch(self, subtask: int) -> None: ...

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        yield 0, records


class KeyGroupPartitioner(Partitioner):
    """By key: all records of a key go to the subtask that owns the key's group.

    Flink's ``KeyGroupStreamPartitioner``.
    """

    def __init__(self, keying: Keying) -> None:
        self.keying = keying

    @property
    def label(self) -> str:
        """The label of the edge in a plan."""
        return "key by " + (", ".join(self.keying.columns) if self.keying.columns else "function")

    def selector(self, targets: int, max_parallelism: int) -> ChannelSelector:
        """Return what divides records by their keys."""
        return _ByKeyGroup(Router(self.keying, targets, max_parallelism), targets)


class _ByKeyGroup:
    def __init__(self, router: Router, targets: int) -> None:
        self._router = router
        self._targets = targets

    def begin_epoch(self, subtask: int) -> None: ...

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        # Also where there is one target: a key that cannot be routed is refused at any parallelism.
        subtasks = self._router.subtasks_of(records)
        if self._targets == 1:
            yield 0, records
        else:
            yield from self._scatter(records, np.asarray(subtasks))

    def _scatter(self, records: Records, subtasks: npt.NDArray[np.int64]) -> Iterator[tuple[int, Records]]:
        order = np.argsort(subtasks, kind="stable")
        ends = np.cumsum(np.bincount(subtasks, minlength=self._targets)).tolist()
        if isinstance(records, ArrowRecords):
            ordered: Records = records.take(order)
        else:
            positions = order.tolist()
            values = list(map(records.values.__getitem__, positions))
            timestamps = records.timestamps
            ordered = Records(values, None if timestamps is None else list(map(timestamps.__getitem__, positions)))
        start = 0
        for target, end in enumerate(ends):
            if end > start:
                yield target, ordered.slice(start, end)
            start = end


class BroadcastPartitioner(Partitioner):
    """All records to every subtask. Flink's ``BroadcastPartitioner``."""

    @property
    def label(self) -> str:
        """The label of the edge in a plan."""
        return "broadcast"

    def selector(self, targets: int, max_parallelism: int) -> ChannelSelector:
        """Return what hands on all records to all receivers."""
        return _ToAll(targets)


class _ToAll:
    def __init__(self, targets: int) -> None:
        self._targets = targets

    def begin_epoch(self, subtask: int) -> None: ...

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        for target in range(self._targets):
            yield target, records


class RebalancePartitioner(Partitioner):
    """In equal shares, regardless of the records.

    Flink's ``RebalancePartitioner`` deals out single records; here each run is cut into as many pieces as there are
    targets, so that columns need not be copied.

    An epoch that is run again deals the same records out to the same subtasks if they come in the same order.
    """

    @property
    def label(self) -> str:
        """The label of the edge in a plan."""
        return "rebalance"

    def selector(self, targets: int, max_parallelism: int) -> ChannelSelector:
        """Return what deals records out."""
        return _InTurn(targets)


class _InTurn:
    def __init__(self, targets: int) -> None:
        self._targets = targets
        self._next = 0

    def begin_epoch(self, subtask: int) -> None:
        # Senders begin with different targets, so that the remainder does not always fall to the first.
        self._next = subtask % self._targets

    def divide(self, records: Records) -> Iterator[tuple[int, Records]]:
        share, left_over = divmod(len(records), self._targets)
        start = 0
        for turn in range(self._targets):
            end = start + share + (turn < left_over)
            if end > start:
                yield (self._next + turn) % self._targets, records.slice(start, end)
            start = end
        self._next = (self._next + left_over) % self._targets
