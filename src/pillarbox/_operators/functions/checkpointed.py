"""Functions with state of their operator's own: of its subtask, and of no key. With Flink's names.

Source of the behaviour: Flink's ``CheckpointedFunction`` and ``OperatorStateStore``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import V
from pillarbox._state.descriptors import ListState, ListStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend


def no_operator_state(name: str) -> str:
    """Return what is wrong where an operator with state of its own stands before the first shuffle."""
    return (
        f"operator {name!r} has state of the operator itself (CheckpointedFunction), for which there is no place before"
        " the first shuffle: the partitions of a source have no identity from one epoch to the next; put rebalance() or"
        " key_by(...) before it"
    )


def no_undo(name: str) -> str:
    """Return what is wrong where an operator with state of its own also has dead letters."""
    return (
        f"operator {name!r} has a side output for its errors (on_error=..., side_output_errors(...)), and state of the"
        " operator itself (CheckpointedFunction), which is not put back when the function raises: catch in the function"
        " what it can raise"
    )


class OperatorStateStore:
    """Declares states of the operator itself: lists, of which each subtask has its own.

    They are live: what is added is written with the epoch, of a large list what is new.
    """

    def __init__(self, backend: KeyedStateBackend, uid: str) -> None:
        self._backend = backend
        self._uid = uid

    def get_list_state(self, descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Return a list state: when the number of subtasks changes, its elements are shared out among the new ones.

        Args:
            descriptor: its name is unique among the states of the function; it has no time-to-live.

        Raises:
            ProgramError: it is no ``ListStateDescriptor``, or has a time-to-live.
        """
        return self._declared(descriptor, union=False)

    def get_union_list_state(self, descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Return a list state of which each subtask gets all elements when the number of subtasks changes.

        Where it does not change, each subtask has its own again after a restart. (In Flink it has all of them then,
        too: its coordinator reads the state of all subtasks, Spark's tasks read their own.)

        Args:
            descriptor: as in :meth:`get_list_state`.

        Raises:
            ProgramError: it is no ``ListStateDescriptor``, or has a time-to-live.
        """
        return self._declared(descriptor, union=True)

    def delete_if_exists(self, name: str) -> None:
        """Delete the list that a checkpoint holds under a name that the function has no more; nothing else is done.

        It is of use as long as checkpoints and savepoints with it may be started from. Spark's ``deleteIfExists``.

        Args:
            name: the name in its descriptor.

        Raises:
            ProgramError: the function declares it.
        """
        self._backend.delete_operator_list(name, self._uid)

    def _declared(self, descriptor: ListStateDescriptor[V], *, union: bool) -> ListState[V]:
        if not isinstance(descriptor, ListStateDescriptor):
            raise ProgramError(
                f"operator {self._backend.operator!r}: the state of an operator is a list, asked for with a"
                f" ListStateDescriptor, not with {shorten(descriptor)}"
            )
        return self._backend.get_operator_list(descriptor, self._uid, union=union)  # type: ignore[no-any-return]


class FunctionInitializationContext:
    """What ``initialize_state`` is given."""

    def __init__(self, store: OperatorStateStore, *, is_restored: bool) -> None:
        self._store = store
        self._is_restored = is_restored

    def is_restored(self) -> bool:
        """Return whether the state comes from a checkpoint, and not from the beginning."""
        return self._is_restored

    def get_operator_state_store(self) -> OperatorStateStore:
        """Return the store, in which states are declared."""
        return self._store


class FunctionSnapshotContext:
    """What ``snapshot_state`` is given."""

    def __init__(self, checkpoint_id: int) -> None:
        self._checkpoint_id = checkpoint_id

    def get_checkpoint_id(self) -> int:
        """Return the number of the checkpoint, which is the number of the epoch: 1 for the first one."""
        return self._checkpoint_id


class CheckpointedFunction(ABC):
    """A function with state of the operator itself, in addition to what it is otherwise; with or without keys.

    It has a place after a shuffle only: Spark's tasks of a source have no identity from epoch to epoch.

    Example:
        >>> class Sample(FlatMapFunction[int, int], CheckpointedFunction):
        ...     '''Emits every third number that this subtask has seen.'''
        ...
        ...     def initialize_state(self, context):
        ...         store = context.get_operator_state_store()
        ...         self.held = store.get_list_state(ListStateDescriptor[int]("held"))
        ...
        ...     def flat_map(self, number):
        ...         self.held.add(number)
        ...         if len(self.held.get()) == 3:
        ...             self.held.clear()
        ...             yield number
        >>> numbers = env.from_collection([1, 2, 3, 4, 5, 6, 7]).rebalance()
        >>> numbers.flat_map(Sample()).execute_and_collect()
        [3, 6]
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext, /) -> None:
        """Declare the states, and take what is in them.

        Called once, after ``open()`` and before the first record.
        """

    def snapshot_state(self, context: FunctionSnapshotContext, /) -> None:
        """Bring the states up to date, before they are written at the end of an epoch; by default, they are."""
        return
