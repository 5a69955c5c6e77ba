"""The ends of streams within a program: sinks, and records that were collected."""

from __future__ import annotations

from pillarbox._generics import Generic, T
from pillarbox.datastream.operator_settings import set_chaining, set_parallelism
from pillarbox.graph import ChainingStrategy, SinkTransformation

__all__ = ["CollectedResults", "DataStreamSink"]


class CollectedResults(list[T], Generic[T]):
    """The records that a program emitted, as a list; a context manager, as PyFlink's iterator is."""

    def close(self) -> None:
        """Do nothing: no resources are held."""

    def __enter__(self) -> CollectedResults[T]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class DataStreamSink:
    """The end of a stream within the program."""

    def __init__(self, step: SinkTransformation) -> None:
        self._step = step

    def name(self, name: str) -> DataStreamSink:
        """Name the sink, for people: in plans, metrics and errors."""
        self._step.name = name
        return self

    def uid(self, uid: str) -> DataStreamSink:
        """Set the uid that the sink's state is stored under."""
        self._step.uid = uid
        return self

    def set_parallelism(self, parallelism: int) -> DataStreamSink:
        """Set the number of the sink's subtasks; by default it works where its records are made.

        Args:
            parallelism: the number, from 1 to that of the program.

        Raises:
            ProgramError: it is not a whole number from 1; (when the program is run) it is above the program's.
        """
        set_parallelism(self._step, parallelism)
        return self

    def disable_chaining(self) -> DataStreamSink:
        """Let the sink run in tasks of its own."""
        set_chaining(self._step, ChainingStrategy.NEVER, "disable_chaining")
        return self
