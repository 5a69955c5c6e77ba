"""Makes Spark's broadcast variables available in homes.

Workers read values from files or, with ``spark.io.encryption.enabled``, from a socket.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle

if TYPE_CHECKING:
    from pyspark.core.broadcast import Broadcast

# Broadcast numbers by thread id.
_numbers: dict[int, frozenset[int]] = {}
_lock = threading.Lock()


class _RecordingFile:
    """A file that records the bytes that ``pickle`` reads from it."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.content = bytearray()
        self.peek = file.peek

    def read(self, size: int = -1) -> bytes:
        content: bytes = self._file.read(size)
        self.content += content
        return content

    def readline(self) -> bytes:
        line: bytes = self._file.readline()
        self.content += line
        return line

    def readinto(self, buffer: memoryview) -> int:
        count: int = self._file.readinto(buffer)
        self.content += memoryview(buffer)[:count]
        return count


def keep_pickled_values() -> None:
    """Make forked workers keep the pickles of broadcast variables without a file, to send them to homes."""
    from pyspark.core.broadcast import Broadcast

    begin: Callable[..., None] = Broadcast.__init__

    def begin_pickled(self: Any, *args: Any, sock_file: Any = None, **named: Any) -> None:
        if sock_file is None or not hasattr(sock_file, "peek"):
            begin(self, *args, **({} if sock_file is None else {"sock_file": sock_file}), **named)
            return
        recorded = _RecordingFile(sock_file)
        begin(self, sock_file=recorded)
        self._pillarbox_pickled = bytes(recorded.content)

    Broadcast.__init__ = begin_pickled  # type: ignore[method-assign]


def files() -> dict[int, str | None]:
    """Map this worker's broadcast variable numbers to their files, or to None."""
    from pyspark.core.broadcast import _broadcastRegistry

    return {number: getattr(broadcast, "_path", None) for number, broadcast in _broadcastRegistry.items()}


def value(number: int) -> bytes:
    from pyspark.core.broadcast import _broadcastRegistry

    broadcast = _broadcastRegistry[number]
    pickled: bytes | None = getattr(broadcast, "_pillarbox_pickled", None)
    return _pickled(broadcast.value) if pickled is None else pickled


def values_of(broadcasts: Iterable[Any]) -> dict[int, bytes]:
    return {int(broadcast._jbroadcast.id()): _pickled(broadcast.value) for broadcast in broadcasts}


def _pickled(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        pickled: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
        return pickled


def use_values(values: Mapping[int, bytes]) -> None:
    """Set the broadcast variables in a process that is neither a worker nor a home."""
    from pyspark.core.broadcast import _broadcastRegistry

    _broadcastRegistry.clear()
    _broadcastRegistry.update({number: _unread(pickled) for number, pickled in values.items()})


def enter(files: dict[int, str | None], value_of: Callable[[int], bytes]) -> None:
    """Make broadcast variables available in a home. Values are read on first use."""
    from pyspark.core.broadcast import Broadcast, _broadcastRegistry

    for number, file in files.items():
        broadcast = _broadcastRegistry.get(number)
        if file is None:
            if broadcast is None:
                _broadcastRegistry.setdefault(number, _unread(value_of(number)))
        elif broadcast is None:
            _broadcastRegistry[number] = Broadcast(path=file)
        else:
            broadcast._path = file
    with _lock:
        _numbers[threading.get_ident()] = frozenset(files)
        used: Iterable[int] = frozenset().union(*_numbers.values())
        for number in _broadcastRegistry.keys() - used:
            del _broadcastRegistry[number]


def _unread(pickled: bytes) -> Broadcast[Any]:
    from pyspark.core.broadcast import Broadcast

    class _UnreadBroadcast(Broadcast[Any]):
        def load_from_path(self, path: str) -> Any:
            nonlocal pickled
            with reading:
                if not hasattr(self, "_value"):
                    self._value = pickle.loads(pickled)
                    pickled = b""
            return self._value

    reading = threading.Lock()
    return _UnreadBroadcast(path="")
