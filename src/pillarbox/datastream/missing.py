"""Methods that are asked of the wrong kind of stream: which kind has them."""

from __future__ import annotations

from pillarbox.errors import ProgramError

__all__ = ["MissingMethodError", "missing"]

# Methods of PyFlink's DataStream that have no equivalent of the same name.
_INSTEAD = {
    "add_sink": "end the stream with to_dataframe(...), and write that with Spark",
    "cache": "end the stream with to_dataframe(...), and persist that",
    "force_non_parallel": "say set_parallelism(1)",
    "project": "say map(...)",
    "set_buffer_timeout": "buffers are sent when they are full, and when a micro-batch ends",
    "set_description": "say name(...)",
    "set_max_parallelism": "it is one number for the program: say env.set_max_parallelism(...)",
    "set_uid_hash": "state is stored under the uid: say uid(...)",
    "sink_to": "end the stream with to_dataframe(...), and write that with Spark",
    "slot_sharing_group": "Spark schedules the tasks",
}
_CLOSES_WINDOWS = "reduce(...), aggregate(...), apply(...) or process(...)"


class MissingMethodError(ProgramError, AttributeError):
    """A stream of this kind has no such method: it is an ``AttributeError``, so ``hasattr`` says no."""


def missing(stream: object, name: str) -> AttributeError:
    """Return the error for a method that a stream does not have."""
    from pillarbox.datastream.data_stream import DataStream
    from pillarbox.datastream.keyed_stream import KeyedStream
    from pillarbox.datastream.windowed_stream import WindowedStream

    kind = type(stream).__name__
    said = f"{kind!r} object has no attribute {name!r}"
    if name.startswith("_") or not isinstance(stream, DataStream):
        if not name.startswith("_") and hasattr(KeyedStream, name):
            said = f"{name}() cannot be asked of windows, which have no results yet: put {_CLOSES_WINDOWS} before it"
            return MissingMethodError(said)
        return AttributeError(said, name=name, obj=stream)
    if name in _INSTEAD:
        said = f"{name}() is a method of Flink's streams, and not of pillarbox's: {_INSTEAD[name]}"
    elif name in ("window", "count_window"):
        said = (
            f"{name}() divides a stream by key: put key_by(...) before it, or use {name}_all(...) for all of the stream"
        )
    elif hasattr(KeyedStream, name):
        said = f"{name}() works by key: put key_by(...) before it"
        if hasattr(WindowedStream, name):
            said += ", or window_all(...) for windows over all of the stream"
    elif hasattr(WindowedStream, name):
        before = "window(...)" if isinstance(stream, KeyedStream) else "key_by(...).window(...), or window_all(...),"
        said = f"{name}() is a method of windows: put {before} before it"
    else:
        return AttributeError(said, name=name, obj=stream)
    return MissingMethodError(said)
