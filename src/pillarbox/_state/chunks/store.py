"""Where a state log lies: binary values by number.

The store is Spark's state store under Spark, a dictionary elsewhere. Only the mailbox thread may touch it.
"""

from __future__ import annotations

from typing import Protocol


class ChunkStore(Protocol):
    """Binary values by number, written together or not at all."""

    def get(self, number: int) -> bytes | None: ...

    def put(self, number: int, value: bytes) -> None: ...

    def remove(self, number: int) -> None: ...


class MemoryChunkStore:
    """A chunk store in a dictionary, with the number of bytes that were put into it."""

    def __init__(self) -> None:
        self.chunks: dict[int, bytes] = {}
        self.bytes_put: int = 0

    def get(self, number: int) -> bytes | None:
        return self.chunks.get(number)

    def put(self, number: int, value: bytes) -> None:
        self.chunks[number] = value
        self.bytes_put += len(value)

    def remove(self, number: int) -> None:
        del self.chunks[number]

    def copy(self) -> MemoryChunkStore:
        """Return a store with the same chunks: a savepoint."""
        other = MemoryChunkStore()
        other.chunks = dict(self.chunks)
        return other
