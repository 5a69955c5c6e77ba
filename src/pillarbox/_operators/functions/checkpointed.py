"""Functions with operator state, which belongs to a subtask rather than to a key, as in Flink."""

from __future__ import annotations

from abc import ABC, abstractmethod

from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import V
from pillarbox._state.descriptors import ListState, ListStateDescriptor
from pillarbox._state.heap.backend import KeyedStateBackend


def no_operator_state(name: str) -> str:
    return (
        f"operator {name!r} has operator state (CheckpointedFunction), which is impossible before the first shuffle,"
        " because a source's partitions have no identity across epochs: put rebalance() or key_by(...) before it"
    )


def no_undo(name: str) -> str:
    return (
        f"operator {name!r} has a side output for its errors (on_error=..., side_output_errors(...)) and operator state"
        " (CheckpointedFunction), which is not rolled back when the function raises: catch its exceptions in the"
        " function"
    )


class OperatorStateStore:
    """Declares operator state: lists, one per subtask. For a large list, an epoch stores only the added elements."""

    def __init__(self, backend: KeyedStateBackend, uid: str) -> None:
        self._backend = backend
        self._uid = uid

    def get_list_state(self, descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Return a list state. Rescaling divides its elements among the new subtasks.

        Args:
            descriptor: its name must be unique among the function's states.

        Raises:
            ProgramError: the descriptor is not a ``ListStateDescriptor`` or has a time-to-live.
        """
        return self._declared(descriptor, union=False)

    def get_union_list_state(self, descriptor: ListStateDescriptor[V]) -> ListState[V]:
        """Return a list state. After rescaling, each new subtask has all subtasks' elements.

        A restart without rescaling restores each subtask's own elements. (Flink restores all elements.) Arguments and
        errors are as in :meth:`get_list_state`.
        """
        return self._declared(descriptor, union=True)

    def delete_if_exists(self, name: str) -> None:
        """Delete a list that the checkpoint contains but the function no longer declares (Spark's ``deleteIfExists``).

        Keep the call while the program may start from a checkpoint or savepoint that contains the list.

        Raises:
            ProgramError: the function declares the list.
        """
        self._backend.delete_operator_list(name, self._uid)

    def _declared(self, descriptor: ListStateDescriptor[V], *, union: bool) -> ListState[V]:
        if not isinstance(descriptor, ListStateDescriptor):
            raise ProgramError(
                f"operator {self._backend.operator!r}: operator state is a list and needs a ListStateDescriptor,"
                f" not {shorten(descriptor)}"
            )
        return self._backend.get_operator_list(descriptor, self._uid, union=union)  # type: ignore[no-any-return]


class FunctionInitializationContext:
    """The argument of ``initialize_state``."""

    def __init__(self, store: OperatorStateStore, *, is_restored: bool) -> None:
        self._store = store
        self._is_restored = is_restored

    def is_restored(self) -> bool:
        """Return whether the state was restored from a checkpoint."""
        return self._is_restored

    def get_operator_state_store(self) -> OperatorStateStore:
        """Return the store, which declares states."""
        return self._store


class FunctionSnapshotContext:
    """The argument of ``snapshot_state``."""

    def __init__(self, checkpoint_id: int) -> None:
        self._checkpoint_id = checkpoint_id

    def get_checkpoint_id(self) -> int:
        """Return the number of the current epoch and its checkpoint. The first is 1."""
        return self._checkpoint_id


class CheckpointedFunction(ABC):
    """A mix-in that adds operator state to a keyed or non-keyed function.

    Requires a shuffle before the function, because Spark's source tasks have no identity across epochs.

    Example:
        >>> class EveryThird(FlatMapFunction[int, int], CheckpointedFunction):
        ...     def initialize_state(self, context):
        ...         store = context.get_operator_state_store()
        ...         self.seen = store.get_list_state(ListStateDescriptor[int]("seen"))
        ...
        ...     def flat_map(self, number):
        ...         self.seen.add(number)
        ...         if len(self.seen.get()) == 3:
        ...             self.seen.clear()
        ...             yield number
        >>> env.from_collection(range(1, 8)).rebalance().flat_map(EveryThird()).execute_and_collect()
        [3, 6]
    """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext, /) -> None:
        """Declare and read the states. Called once, after ``open()`` and before the first record."""

    def snapshot_state(self, context: FunctionSnapshotContext, /) -> None:
        """Update the states before the epoch stores them."""
        return
