"""The settings of a program: parallelism, mode, the savepoint that it starts from, classes that have moved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

from pillarbox._copies import declared_immutable
from pillarbox._datastream.environment.execution_mode import RuntimeExecutionMode, is_batch
from pillarbox._errors import ProgramError, check_count, check_takes, is_count, shorten
from pillarbox._graph.dashboard_place import DEFAULT_PORT, DashboardAddress, checked_port, checked_token
from pillarbox._graph.program import Program, compile_program
from pillarbox._graph.savepoint_start import SavepointStart
from pillarbox._graph.transformations import SinkTransformation
from pillarbox._runtime.base import Runtime
from pillarbox._state.keys.key_groups import MAX_MAX_PARALLELISM, default_max_parallelism
from pillarbox._time.duration import DurationLike, positive_millis
from pillarbox._types.codecs import checked_time_zone

if TYPE_CHECKING:
    from typing_extensions import Self


class ProgramSettings:
    """The settings of an environment: they hold for each program that it runs."""

    def __init__(self) -> None:
        self._parallelism: int | None = None
        self._max_parallelism: int | None = None
        self._chaining = True
        self._auto_rescale = False
        self._dashboard: DashboardAddress | None = None
        self._mode = RuntimeExecutionMode.STREAMING
        self._latency_interval: int | None = None
        self._savepoint: SavepointStart | None = None
        self._moved: dict[tuple[str, str], type] = {}
        self._object_reuse = False
        self._time_zone: str | None = None

    @property
    def _runtime(self) -> Runtime:
        """Where programs run."""
        raise NotImplementedError

    def set_parallelism(self, parallelism: int) -> Self:
        """Set how many subtasks of operators after a shuffle run at a time: Spark's partitions.

        :func:`pillarbox.rescale`, ``pillarbox rescale`` and :meth:`set_auto_rescale` change the parallelism of a
        stopped query, up to the max parallelism; otherwise a query keeps the parallelism of its first start. An
        operator may have fewer subtasks, or more (:meth:`DataStream.set_parallelism`).

        Args:
            parallelism: the number, from 1 to the max parallelism.

        Returns:
            The environment.

        Raises:
            ProgramError: it is not a whole number from 1.

        Example:
            >>> env.set_parallelism(4).get_parallelism()
            4
        """
        check_count(parallelism, "parallelism")
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Return how many subtasks after a shuffle run at a time.

        Where it was not set it is Spark's ``spark.sql.shuffle.partitions`` if that was set, at most 128; otherwise the
        number of cores of the cluster, at most 16; 1 without Spark. A checkpoint keeps the one of its first start.

        Example:
            >>> env.get_parallelism()
            1
        """
        return self._runtime.parallelism if self._parallelism is None else self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups, the shares of all keys: so many subtasks can ever run at a time.

        A streaming query has a subtask for each key group, in as many partitions of Spark's as the parallelism says.
        So more of them cost little, but not nothing. A checkpoint keeps the number of its first start; a program that
        sets none resumes with that number.

        Args:
            max_parallelism: the number, from the parallelism to 32768.

        Returns:
            The environment.

        Raises:
            ProgramError: it is not such a number.

        Example:
            >>> env.set_max_parallelism(1024).get_max_parallelism()
            1024
        """
        if not is_count(max_parallelism) or max_parallelism > MAX_MAX_PARALLELISM:
            raise ProgramError(
                f"max parallelism is a whole number from 1 to {MAX_MAX_PARALLELISM}, not {shorten(max_parallelism)}"
            )
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """Return the number of key groups.

        Where it was not set it is twice the parallelism, at most 128; or the highest parallelism of an operator, if
        that is more. A checkpoint keeps the number of its first start.

        Example:
            >>> env.set_parallelism(4).get_max_parallelism()
            8
        """
        return self._max_parallelism or default_max_parallelism(self.get_parallelism())

    def measure_mailbox_latency(self, interval: DurationLike = "1 second") -> Self:
        """Let each task measure how long timers, completed requests and checkpoints wait for their turn.

        A task handles one run of records at a time; mails wait in its mailbox meanwhile. While an epoch runs, a
        probe is put there at an interval, and ``TaskReport.mailbox_latency_ms`` says how long probes waited. Where it
        is long, functions take long for a run of records. It takes a timer thread in each task.

        Args:
            interval: how long after a probe had its turn the next one comes; as an int, milliseconds.

        Returns:
            The environment.

        Raises:
            ProgramError: it is no duration of a millisecond or more.

        Example:
            >>> env.measure_mailbox_latency("500 ms") is env
            True
        """
        self._latency_interval = positive_millis(interval, "measure_mailbox_latency(): the interval")
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Set how programs are run: as streams, or key by key, which takes bounded sources.

        In batch mode a task holds the state of one key at a time, ``reduce``, ``sum`` and the like emit the last result
        of a key alone, all timers of a key fire when its records have come, and there are no watermarks before the end.

        Args:
            execution_mode: ``STREAMING``, the default, ``BATCH``, or ``AUTOMATIC``: ``BATCH`` if all sources are
                bounded: collections and batch DataFrames.

        Returns:
            The environment.

        Raises:
            ProgramError: it is no ``RuntimeExecutionMode``; (when a program is run) it is ``BATCH``, and a source is a
                streaming DataFrame.

        Example:
            >>> numbers = env.set_runtime_mode(RuntimeExecutionMode.BATCH).from_collection([3, 4, 10, 20])
            >>> sorted(numbers.key_by(lambda n: n < 10).sum().execute_and_collect())
            [7, 30]
        """
        modes = "RuntimeExecutionMode.STREAMING, BATCH or AUTOMATIC"
        check_takes(execution_mode, RuntimeExecutionMode, "set_runtime_mode()", modes)
        self._mode = execution_mode
        return self

    def disable_operator_chaining(self) -> Self:
        """Let each operator run in tasks of its own, as ``disable_chaining()`` does for one.

        Each is a level of the Spark plan then, after a shuffle: that is for finding out which one is slow.

        Returns:
            The environment.

        Example:
            >>> _ = env.disable_operator_chaining().from_collection([1]).map(str).map(len).print()
            >>> len(env.get_execution_graph().levels)
            4
        """
        self._chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Return whether operators may run in one task: unless ``disable_operator_chaining()`` was called.

        Example:
            >>> env.is_chaining_enabled()
            True
        """
        return self._chaining

    def enable_object_reuse(self) -> Self:
        """Emit values without copies, as Flink's ``enableObjectReuse()`` does.

        By default, a value that a function emits is copied unless its type is known to be immutable (numbers, text,
        times, tuples and rows of these, ...), and so is a record that goes to several operators: a function may
        change its own objects at any time. With object reuse, a function may change neither a value that it has emitted
        nor a record that it has received. Otherwise records change that were emitted already, and results depend on
        where micro-batches end. :func:`pillarbox.immutable` does the same for one class.

        Returns:
            The environment.

        Example:
            >>> env.enable_object_reuse() is env
            True
        """
        self._object_reuse = True
        return self

    def set_auto_rescale(self, enabled: bool = True) -> Self:
        """Let :func:`pillarbox.start` rescale a checkpoint to the parallelism of the program, where they differ.

        It does so before the query starts, as :func:`pillarbox.rescale`, and logs it. If the last epoch of the query is
        not committed, a run of that epoch alone finishes it first. It takes a classic session of Spark 4.2 or newer.

        Args:
            enabled: False: the query runs with the parallelism that the checkpoint has, as without this call.

        Returns:
            The environment.

        Example:
            >>> env = env.set_parallelism(4).set_auto_rescale(True)
        """
        self._auto_rescale = bool(enabled)
        return self

    def enable_dashboard(self, port: int = DEFAULT_PORT, *, host: str = "127.0.0.1", token: str | None = None) -> Self:
        """Let :func:`pillarbox.start` open the dashboard of the driver for the query, and log where it is.

        One dashboard shows all queries of a process; see :func:`pillarbox.dashboard`. It needs the extra
        ``pillarbox[dashboard]``.

        Args:
            port: the port to listen on; 0: any that is free.
            host: the address to listen on: by default, only this machine can ask.
            token: what a browser must know, any text; None: nothing on loopback, and a random text elsewhere, which is
                logged as a part of the address.

        Returns:
            The environment.

        Raises:
            ConfigurationError: the token is empty.
            ProgramError: it is no port.

        Example:
            >>> env = env.enable_dashboard(8082)
        """
        method = "enable_dashboard()"
        self._dashboard = DashboardAddress(host, checked_port(port, method), checked_token(token, method))
        return self

    def set_time_zone(self, time_zone: str) -> Self:
        """Set the time zone of dates and naive datetimes where there is no Spark session, which has one.

        With it, a naive datetime is a point in time: as an event time, a watermark or the time of a timer, and in a
        column. Without it, and without a session, it is refused there. A session's time zone is
        ``spark.sql.session.timeZone``.

        Args:
            time_zone: its name, such as ``"Europe/Berlin"``.

        Returns:
            The environment.

        Raises:
            ProgramError: there is no such time zone; (when the program is built) there is a session.

        Example:
            >>> env = env.set_time_zone("Europe/Berlin")
        """
        self._time_zone = checked_time_zone(time_zone, "set_time_zone()")
        return self

    def add_class_alias(self, former: str, cls: type) -> Self:
        """Let the program read state that was written with a class under its former name.

        It holds for all state: values and keys, of declared types and pickled. The first epoch writes all state of an
        operator with such values again, under the new name: the call may go once an epoch has been committed;
        ``pillarbox inspect`` shows the classes that a checkpoint names. It is of use as long as older checkpoints and
        savepoints may be started from.

        Args:
            former: the former module and qualified name, as in ``"shop.model:Order"``.
            cls: the class that stands for it now.

        Returns:
            The environment.

        Raises:
            ProgramError: ``former`` is no such text, or the name that ``cls`` has; or ``cls`` is no class, or another
                one than was given for ``former`` before.

        Example:
            >>> from fractions import Fraction
            >>> env.add_class_alias("shop.model:Share", Fraction) is env
            True
        """
        module, colon, name = former.partition(":") if isinstance(former, str) else ("", "", "")
        if not (module and colon and name):
            raise ProgramError(
                f"add_class_alias() takes the old module and name, as in 'shop.model:Order', not {shorten(former)}"
            )
        check_takes(cls, type, f"add_class_alias({former!r}, ...)", "the class itself")
        if (module, name) == (cls.__module__, cls.__qualname__):
            raise ProgramError(f"add_class_alias({former!r}, ...): that is the name that the class has")
        previous = self._moved.get((module, name), cls)
        # By name: a notebook's cell that runs again makes another class of the same name.
        if (previous.__module__, previous.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ProgramError(f"add_class_alias({former!r}, ...) was called before, with another class")
        self._moved[module, name] = cls
        return self

    def from_savepoint(
        self,
        directory: str | PathLike[str],
        *,
        allow_non_restored_state: bool = False,
        renamed: Mapping[str, str] | None = None,
        positions: str | Mapping[str, Mapping[str, Any] | int | None] | Sequence[Mapping[str, Any] | int | None] = (
            "savepoint"
        ),
    ) -> Self:
        """Let the program start with the state of a savepoint, at any parallelism.

        A streaming query takes it when it starts on a new checkpoint, in an epoch of its own before the first one, and
        resumes from that checkpoint in later starts, which no longer need the savepoint. Before
        anything runs, the savepoint is compared with the program. Programs that run in this process take the state
        each time, and read no positions.

        Args:
            directory: the savepoint.
            allow_non_restored_state: whether state of operators, and positions of sources, that the program does not
                have are left behind.
            renamed: new uids of operators, and new names of sources, by those in the savepoint.
            positions: where sources begin. ``"savepoint"``: where the savepoint has them; sources are known by their
                names, and one that is new begins as in a new query. ``"none"``: all as in a new query. A dict: the
                positions of some sources by name, as Spark's offset log has them (a dict, or an int; None: as in a new
                query); the others as with ``"savepoint"``. A list: a position for each source of Spark's, in order.

        Returns:
            The environment.

        Raises:
            ProgramError: an argument is of another kind; (when the program is built) the program has no operator of
                a new uid, or is in batch mode; (when it starts on Spark) the query has no checkpoint location, or holds
                other programs or stateful operators of Spark's.
            CheckpointMismatchError: (when it starts) the savepoint is missing, damaged, or does not fit the program;
                the checkpoint was begun otherwise.

        Example:
            >>> env = env.from_savepoint("/savepoints/2026-05-01", renamed={"count": "count-cards"})
            >>> begin = {"payments": {"payments-topic": {"0": 4711, "1": 4690}}}
            >>> env = env.from_savepoint("/savepoints/2026-05-01", positions=begin)
        """
        self._savepoint = SavepointStart.of(directory, bool(allow_non_restored_state), renamed, positions)
        return self

    def _compile(self, name: str, sinks: list[SinkTransformation]) -> Program:
        program = compile_program(
            name,
            sinks,
            self.get_parallelism(),
            self._max_parallelism,
            chaining=self._chaining,
            batch=is_batch(self._mode, sinks),
        )
        program.sets_parallelism = self._parallelism is not None
        program.auto_rescale = self._auto_rescale
        program.dashboard = self._dashboard
        if self._savepoint is not None:
            self._savepoint.check(program)
            program.savepoint = self._savepoint
        for vertex in program.vertices:
            vertex.latency_interval = self._latency_interval
            vertex.moved = dict(self._moved)
            vertex.object_reuse = self._object_reuse
            vertex.immutable = declared_immutable()
            vertex.time_zone = self._runtime.time_zone
        return program
