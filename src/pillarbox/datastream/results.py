"""The ends of streams within a program: sinks, and records that were collected."""

from __future__ import annotations

from pillarbox._generics import Generic, T
from pillarbox.graph import SinkTransformation

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
