"""How a stream is combined with others: union, connect, join and co_group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from pillarbox._datastream.streams.partitioned_stream import PartitionedStream
from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import T1, T2, Generic, U
from pillarbox._graph import UnionTransformation

if TYPE_CHECKING:
    from pillarbox._datastream.connected.broadcast_stream import BroadcastConnectedStream, BroadcastStream
    from pillarbox._datastream.connected.connected_streams import ConnectedStreams
    from pillarbox._datastream.connected.joined_streams import CoGroupedStreams, JoinedStreams
    from pillarbox._datastream.streams.data_stream import DataStream

__all__ = ["CombinedStream"]


class CombinedStream(PartitionedStream[T1], Generic[T1]):
    """The part of a :class:`DataStream` that combines it with others."""

    def union(self, *streams: DataStream[U]) -> DataStream[T1 | U]:
        """Merge this stream with others into one.

        Args:
            streams: streams of the same environment, at least one. Their order is not kept.

        Raises:
            ProgramError: there is none, or one is not a stream of the same environment.

        Example:
            >>> odd, even = env.from_collection([1, 3]), env.from_collection([2, 4])
            >>> sorted(odd.union(even).execute_and_collect())
            [1, 2, 3, 4]
        """
        if not streams:
            raise ProgramError("union() takes at least one other stream")
        for stream in streams:
            self._check_other(stream, "union")
        inputs = [self._plain_step(), *(stream._plain_step() for stream in streams)]
        types = [step.output_type for step in inputs]
        step = UnionTransformation(
            self._env._next(), "union", inputs, types[0] if types.count(types[0]) == len(types) else None
        )
        from pillarbox._datastream.streams.data_stream import DataStream

        return DataStream(self._env, self._env._add(step))

    @overload
    def connect(self, ds: DataStream[T2]) -> ConnectedStreams[T1, T2]: ...
    @overload
    def connect(self, ds: BroadcastStream[T2]) -> BroadcastConnectedStream[T1, T2]: ...
    def connect(
        self, ds: DataStream[T2] | BroadcastStream[T2]
    ) -> ConnectedStreams[T1, T2] | BroadcastConnectedStream[T1, T2]:
        """Connect this stream with another one: one operator handles the records of both, with state that they share.

        Key both, before or after: ``a.key_by("x").connect(b.key_by("y"))``, or ``a.connect(b).key_by("x", "y")``; or
        neither.

        Args:
            ds: a stream of the same environment, with records of any type; or a broadcast one,
                ``b.broadcast(descriptor)``, whose records each subtask gets.

        Raises:
            ProgramError: it is not.

        Example:
            >>> class Tagged(KeyedCoProcessFunction):
            ...     def process_element1(self, value, ctx):
            ...         yield "first", value
            ...
            ...     def process_element2(self, value, ctx):
            ...         yield "second", value
            >>> one, two = env.from_collection([1]), env.from_collection(["a"])
            >>> connected = one.connect(two).key_by(lambda n: str(n), lambda text: text)
            >>> sorted(connected.process(Tagged()).execute_and_collect())
            [('first', 1), ('second', 'a')]
        """
        from pillarbox._datastream.connected.broadcast_stream import BroadcastConnectedStream, BroadcastStream
        from pillarbox._datastream.connected.connected_streams import ConnectedStreams

        if isinstance(ds, BroadcastStream):
            self._check_other(ds._stream, "connect")
            return BroadcastConnectedStream(cast("DataStream[T1]", self), ds)
        self._check_other(ds, "connect")
        return ConnectedStreams(cast("DataStream[T1]", self), ds)

    def join(self, other: DataStream[T2]) -> JoinedStreams[T1, T2]:
        """Make pairs of records of this stream and of another that have equal keys and lie in the same window.

        ``one.join(two).where(key).equal_to(key).window(assigner).apply(function)``. For pairs that are near each other
        in time, whatever the window, there is ``KeyedStream.interval_join``.

        Args:
            other: a stream of the same environment.

        Raises:
            ProgramError: it is not.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda word: 0)
            >>> one = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
            >>> two = env.from_collection(["not"]).assign_timestamps_and_watermarks(at)
            >>> pairs = one.join(two).where(lambda word: "o" in word).equal_to(lambda word: "o" in word)
            >>> windows = pairs.window(TumblingEventTimeWindows.of("1 second"))
            >>> windows.apply(lambda a, b: f"{a} {b}").execute_and_collect()
            ['to not']
        """
        from pillarbox._datastream.connected.joined_streams import JoinedStreams

        self._check_other(other, "join")
        return JoinedStreams(cast("DataStream[T1]", self), other)

    def co_group(self, other: DataStream[T2]) -> CoGroupedStreams[T1, T2]:
        """Handle the records of this stream and of another that have equal keys and lie in the same window together.

        ``one.co_group(two).where(key).equal_to(key).window(assigner).apply(function)``; unlike a join, the function is
        called also where one stream has none: that is what outer joins are made of.

        Args:
            other: a stream of the same environment.

        Raises:
            ProgramError: it is not.

        Example:
            >>> at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda word: 0)
            >>> one = env.from_collection(["to", "be"]).assign_timestamps_and_watermarks(at)
            >>> two = env.from_collection(["to"]).assign_timestamps_and_watermarks(at)
            >>> groups = one.co_group(two).where(lambda word: word).equal_to(lambda word: word)
            >>> windows = groups.window(TumblingEventTimeWindows.of("1 second"))
            >>> sorted(windows.apply(lambda ones, twos: [(ones, twos)]).execute_and_collect())
            [(['be'], []), (['to'], ['to'])]
        """
        from pillarbox._datastream.connected.joined_streams import CoGroupedStreams

        self._check_other(other, "co_group")
        return CoGroupedStreams(cast("DataStream[T1]", self), other)

    def _check_other(self, other: Any, method: str) -> None:
        from pillarbox._datastream.streams.data_stream import DataStream

        if not isinstance(other, DataStream):
            raise ProgramError(f"{method}() takes a stream, not {shorten(other)}")
        if other._env is not self._env:
            raise ProgramError(f"{method}() takes a stream of the same StreamExecutionEnvironment")
