"""How a stream is spread over the subtasks of the next operators, other than by key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, overload

from pillarbox._datastream.checks.given_functions import check_function
from pillarbox._datastream.checks.schemas import check_key_columns
from pillarbox._datastream.streams.stream import Stream
from pillarbox._errors import ProgramError, shorten
from pillarbox._generics import T1, Generic, K
from pillarbox._graph import PartitionTransformation
from pillarbox._operators.frame.keying import Keying
from pillarbox._operators.functions.basic import KeySelector, Partitioner
from pillarbox._state import MapStateDescriptor
from pillarbox._task.network.partitioner import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
)
from pillarbox._task.network.partitioner import Partitioner as StreamPartitioner

if TYPE_CHECKING:
    from pillarbox._datastream.connected.broadcast_stream import BroadcastStream
    from pillarbox._datastream.streams.data_stream import DataStream

__all__ = ["PartitionedStream"]


class PartitionedStream(Stream[T1], Generic[T1]):
    """The part of a :class:`DataStream` that spreads its records."""

    def rebalance(self) -> DataStream[T1]:
        """Spread the stream evenly over the subtasks of the next operators, regardless of its records.

        They run with the program's parallelism, behind a shuffle. Use it before slow operators where the source has few
        partitions, or partitions of different sizes. The order of records is kept between each pair of subtasks.

        A failed task that Spark runs again must deal out its records as before: so their order within a partition of
        the source must be the same each time it is read, as it is in files and in Kafka. Behind a shuffle or join of
        Spark's own it need not be; there, ``key_by`` is the safe way to spread.

        Example:
            >>> _ = env.set_parallelism(2)
            >>> sorted(env.from_collection(range(4)).rebalance().map(str).execute_and_collect())
            ['0', '1', '2', '3']
        """
        return self._partition("rebalance", RebalancePartitioner())

    def rescale(self) -> DataStream[T1]:
        """Send the records of each subtask to few subtasks of the next operators: to one, if there are as many.

        Where there are fewer sending subtasks than receiving ones, each sends to some of these, in turn; where there
        are more, several send to one, as in Flink. A partition of a source sends to one subtask: where there are fewer
        partitions, some subtasks get nothing, and ``rebalance`` is the better choice.

        Example:
            >>> _ = env.set_parallelism(2)
            >>> env.from_collection(range(4)).rescale().map(str).execute_and_collect()
            ['0', '1', '2', '3']
        """
        return self._partition("rescale", RescalePartitioner())

    def shuffle(self) -> DataStream[T1]:
        """Spread the stream at random over the subtasks of the next operators.

        An epoch that is run again draws the same numbers; as to the order of records, see :meth:`rebalance`.

        Example:
            >>> _ = env.set_parallelism(2)
            >>> sorted(env.from_collection(range(4)).shuffle().map(str).execute_and_collect())
            ['0', '1', '2', '3']
        """
        return self._partition("shuffle", ShufflePartitioner())

    def forward(self) -> DataStream[T1]:
        """Keep each record in its subtask, as streams do that are not partitioned: it takes back what came before it.

        If the next operator has another parallelism, the program is refused when it is run; without ``forward()``, the
        stream would be rebalanced there.

        Example:
            >>> env.from_collection([1, 2]).forward().map(str).execute_and_collect()
            ['1', '2']
        """
        return self._partition("forward", ForwardPartitioner())

    def global_(self) -> DataStream[T1]:
        """Send all records to the first subtask of the next operators.

        Example:
            >>> _ = env.set_parallelism(2)
            >>> env.from_collection(range(4)).global_().map(str).execute_and_collect()
            ['0', '1', '2', '3']
        """
        return self._partition("global", GlobalPartitioner())

    def partition_custom(
        self,
        partitioner: Callable[[K, int], int] | Partitioner[K],
        key_selector: Callable[[T1], K] | KeySelector[T1, K] | str | Sequence[str],
    ) -> DataStream[T1]:
        """Spread the stream as a function says; the next operators have no keyed state.

        Args:
            partitioner: ``f(key, n)`` returns the index of one of the ``n`` subtasks of the next operators, or a
                ``Partitioner``. For the same key it must return the same number each time.
            key_selector: the key of a record: a function, a ``KeySelector``, or the name or names of columns.

        Raises:
            ProgramError: ``partitioner`` is no such function, or a column is not there.

        Example:
            >>> _ = env.set_parallelism(2)
            >>> numbers = env.from_collection(range(4)).partition_custom(lambda key, n: key % n, lambda number: number)
            >>> numbers.map(str).execute_and_collect()
            ['0', '2', '1', '3']
        """
        check_function(partitioner, Partitioner, "partition_custom", "partition")
        keying = Keying(key_selector, f"partition_custom after {self._step.name}")
        check_key_columns(self._plain_step(), keying.columns)
        function: Any = partitioner.partition if isinstance(partitioner, Partitioner) else partitioner
        return self._partition("partition_custom", CustomPartitioner(function, keying))

    @overload
    def broadcast(self) -> DataStream[T1]: ...
    @overload
    def broadcast(
        self, descriptor: MapStateDescriptor[Any, Any], /, *more: MapStateDescriptor[Any, Any]
    ) -> BroadcastStream[T1]: ...
    def broadcast(self, *descriptors: MapStateDescriptor[Any, Any]) -> DataStream[T1] | BroadcastStream[T1]:
        """Send each record to all subtasks of the next operators.

        Args:
            descriptors: the broadcast state that the records fill: then the result is for ``connect``. Without any, the
                next operator handles each record once in each of its subtasks.

        Raises:
            ProgramError: one is no ``MapStateDescriptor``, or two have the same name.

        Example:
            >>> _ = env.set_parallelism(2)
            >>> env.from_collection(["to", "be"]).broadcast().map(str.upper).execute_and_collect()
            ['TO', 'BE', 'TO', 'BE']
        """
        for descriptor in descriptors:
            if not isinstance(descriptor, MapStateDescriptor):
                raise ProgramError(f"broadcast() takes MapStateDescriptors, not {shorten(descriptor)}")
            if descriptor.ttl_config is not None:
                raise ProgramError(
                    f"broadcast(): the state {descriptor.name!r} has a time-to-live, which broadcast state cannot have,"
                    " in Flink neither: its subtasks would forget at different times; remove what is out of date in"
                    " process_broadcast_element()"
                )
        names = [descriptor.name for descriptor in descriptors]
        doubled = next((name for name in names if names.count(name) > 1), None)
        if doubled is not None:
            raise ProgramError(f"broadcast(): two states are called {doubled!r}")
        stream = self._partition("broadcast", BroadcastPartitioner())
        if not descriptors:
            return stream
        from pillarbox._datastream.connected.broadcast_stream import BroadcastStream

        return BroadcastStream(stream, descriptors)

    def _partition(self, name: str, partitioner: StreamPartitioner) -> DataStream[T1]:
        from pillarbox._datastream.streams.data_stream import DataStream

        step = PartitionTransformation(self._env._next(), name, [self._plain_step()], partitioner=partitioner)
        return DataStream(self._env, self._env._add(step))
