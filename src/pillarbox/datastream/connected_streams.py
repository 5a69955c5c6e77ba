"""Two streams that share the state of one operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pillarbox.datastream.code_search import uses_processing_time
from pillarbox.errors import ProgramError, shorten
from pillarbox.graph import KeyByTransformation
from pillarbox.operators.functions import KeyedCoProcessFunction, KeySelector, check_plain
from pillarbox.operators.keyed_co_process import KeyedCoProcessOperator
from pillarbox.state.key_note import are_other_types

if TYPE_CHECKING:
    from pillarbox.datastream.data_stream import DataStream, KeyedStream

__all__ = ["ConnectedStreams"]

Key = Callable[[Any], Any] | KeySelector | str | Sequence[str]


class ConnectedStreams:
    """Two streams, of records of any two kinds, for an operator that handles both (PyFlink's ``ConnectedStreams``).

    Made by ``DataStream.connect``. Both streams are keyed, before they are connected or by :meth:`key_by`: what has
    the same key meets in the same subtask, and in the same state.
    """

    def __init__(self, first: DataStream, second: DataStream) -> None:
        self._first = first
        self._second = second

    def key_by(self, first_key: Key, second_key: Key) -> ConnectedStreams:
        """Spread both streams by key: each by a function, or by names of columns.

        Args:
            first_key: how the records of the first stream get their keys.
            second_key: how those of the second do; equal keys of both share their state.
        """
        return ConnectedStreams(self._first.key_by(first_key), self._second.key_by(second_key))

    def process(
        self, func: KeyedCoProcessFunction, output_type: Any = None, *, processing_time: bool | None = None
    ) -> DataStream:
        """Handle the records of both streams, with keyed state, timers and side outputs.

        Event time is the least of both streams': timers wait for the slower one.

        Args:
            func: ``process_element1`` gets the records of the first stream, ``process_element2`` those of the second.
            output_type: what it emits.
            processing_time: as in ``KeyedStream.process``.

        Raises:
            ProgramError: a stream has no key, or the keys are of different types.
        """
        from pillarbox.datastream.data_stream import KeyedStream

        if not isinstance(func, KeyedCoProcessFunction):
            hint = f"an instance: {func.__name__}()" if isinstance(func, type) else "a KeyedCoProcessFunction"
            raise ProgramError(f"process() of connected streams got {shorten(func)}: give it {hint}")
        for method in ("process_element1", "process_element2", "on_timer"):
            check_plain(func, method, asked_by="process()", many=True)
        first, second = self._first, self._second
        if not isinstance(first, KeyedStream) or not isinstance(second, KeyedStream):
            which = "first" if not isinstance(first, KeyedStream) else "second"
            raise ProgramError(
                f"process() of connected streams: the {which} one has no key, so it is not known which of its records"
                " belong together with those of the other: connect(...).key_by(first_key, second_key)"
            )
        _check_key_types(first, second)
        keyings = (first._keying, second._keying)
        return first._apply(
            "process",
            func,
            lambda name, uid: KeyedCoProcessOperator(name, func, keyings, uid),
            output_type,
            keyed=True,
            uses_processing_time=uses_processing_time(func) if processing_time is None else processing_time,
            more_inputs=[second._step],
        )


def _check_key_types(first: KeyedStream, second: KeyedStream) -> None:
    """Refuse keys that can never be equal, as far as their types are known."""
    steps = [stream._step for stream in (first, second)]
    one, other = (step.key_types if isinstance(step, KeyByTransformation) else None for step in steps)
    if one is not None and other is not None and (len(one) != len(other) or are_other_types(one, other)):
        raise ProgramError(
            f"process() of connected streams: the keys of the first are {', '.join(one).upper()}, those of the second"
            f" {', '.join(other).upper()}: they are never equal, so no records would meet; key both by the same type"
        )
