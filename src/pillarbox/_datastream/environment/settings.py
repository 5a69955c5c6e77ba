"""The settings of a program: parallelism, mode, savepoint, and aliases of moved classes."""

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
    """The settings of an environment, which apply to each program that the environment runs."""

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
        raise NotImplementedError

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of partitions after a shuffle. Each partition runs its subtasks one after another.

        A query keeps the parallelism of its first start. While the query is stopped, :func:`pillarbox.rescale` or
        :meth:`set_auto_rescale` can change the parallelism, up to the max parallelism.
        :meth:`DataStream.set_parallelism` sets the parallelism of one operator.

        Example:
            >>> env.set_parallelism(4).get_parallelism()
            4
        """
        check_count(parallelism, "parallelism")
        self._parallelism = parallelism
        return self

    def get_parallelism(self) -> int:
        """Return the number of partitions after a shuffle.

        The default is ``spark.sql.shuffle.partitions`` (at most 128), unless that is Spark's default of 200. Then it is
        the cluster's number of cores (at most 16). Without Spark it is 1.

        Example:
            >>> env.get_parallelism()
            1
        """
        return self._runtime.parallelism if self._parallelism is None else self._parallelism

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups: the largest possible parallelism, at most 32768.

        A streaming query has a subtask for each key group, so more key groups cost a little time. A checkpoint keeps
        the number from its query's first start; a program that does not set a number uses the checkpoint's.

        Example:
            >>> env.set_max_parallelism(1024).get_max_parallelism()
            1024
        """
        if not is_count(max_parallelism) or max_parallelism > MAX_MAX_PARALLELISM:
            raise ProgramError(
                f"max parallelism must be a whole number from 1 to {MAX_MAX_PARALLELISM}, not"
                f" {shorten(max_parallelism)}"
            )
        self._max_parallelism = max_parallelism
        return self

    def get_max_parallelism(self) -> int:
        """Return the number of key groups.

        The default is twice the parallelism (at most 128), or an operator's parallelism if that is higher.

        Example:
            >>> env.set_parallelism(4).get_max_parallelism()
            8
        """
        return self._max_parallelism or default_max_parallelism(self.get_parallelism())

    def measure_mailbox_latency(self, interval: DurationLike = "1 second") -> Self:
        """Measure how long mails (timers, completed requests, checkpoints) wait in each task's mailbox.

        ``TaskReport.mailbox_latency_ms`` reports the result. A long wait means that functions take long to process a
        batch of records.

        Args:
            interval: time between two measurements (an int is milliseconds).

        Example:
            >>> env.measure_mailbox_latency("500 ms") is env
            True
        """
        self._latency_interval = positive_millis(interval, "measure_mailbox_latency(): the interval")
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> Self:
        """Set the execution mode: streaming (default), batch, or automatic.

        Batch mode needs bounded sources. A task then holds the state of one key at a time. ``reduce``, ``sum`` and
        similar methods emit only each key's last result, a key's timers fire after its last record, and no watermark is
        emitted before the end of the input.

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
        """Run each operator in its own tasks, as ``disable_chaining()`` does for one operator.

        This adds a shuffle before each operator. Use it to find a slow operator.

        Example:
            >>> _ = env.disable_operator_chaining().from_collection([1]).map(str).map(len).print()
            >>> len(env.get_execution_graph().levels)
            4
        """
        self._chaining = False
        return self

    def is_chaining_enabled(self) -> bool:
        """Return whether operators may share a task.

        Example:
            >>> env.is_chaining_enabled()
            True
        """
        return self._chaining

    def enable_object_reuse(self) -> Self:
        """Emit values without copies, like Flink's ``enableObjectReuse()``.

        By default, emitted values are copied, and so are records that several operators receive. Numbers, strings,
        times, and tuples and rows of these are never copied. With object reuse, functions must not change values that
        they have emitted or received, because results would then depend on micro-batch boundaries.
        :func:`pillarbox.immutable` avoids copies for a single class.

        Example:
            >>> env.enable_object_reuse() is env
            True
        """
        self._object_reuse = True
        return self

    def set_auto_rescale(self, enabled: bool = True) -> Self:
        """Rescale a checkpoint in :func:`pillarbox.start` if its parallelism differs from the program's.

        This works like :func:`pillarbox.rescale`, and logs a message. If the checkpoint's last epoch is uncommitted, a
        separate run completes that epoch first. Requires a classic session of Spark 4.2 or newer.

        Example:
            >>> env = env.set_parallelism(4).set_auto_rescale(True)
        """
        self._auto_rescale = bool(enabled)
        return self

    def enable_dashboard(self, port: int = DEFAULT_PORT, *, host: str = "127.0.0.1", token: str | None = None) -> Self:
        """Make :func:`pillarbox.start` open the driver's dashboard for the query, and log its address.

        One dashboard shows all queries of a process; see :func:`pillarbox.dashboard`.

        Args:
            port: the port, or 0 for any free port.
            host: the address to listen on. By default, only programs on this machine can connect.
            token: the credential for browsers. By default, loopback addresses need no token; for other addresses, the
                logged address contains a random token.

        Example:
            >>> env = env.enable_dashboard(8082)
        """
        method = "enable_dashboard()"
        self._dashboard = DashboardAddress(host, checked_port(port, method), checked_token(token, method))
        return self

    def set_time_zone(self, time_zone: str) -> Self:
        """Set the time zone of naive datetimes, such as ``"Europe/Berlin"``, for programs without a Spark session.

        Without this setting, naive datetimes are refused as event times, watermarks, timer times and column values.
        With a Spark session, ``spark.sql.session.timeZone`` applies.

        Example:
            >>> env = env.set_time_zone("Europe/Berlin")
        """
        self._time_zone = checked_time_zone(time_zone, "set_time_zone()")
        return self

    def add_class_alias(self, former: str, cls: type) -> Self:
        """Declare a class's former name, to read state written under that name.

        The first epoch rewrites the state under the new name. Afterwards, only older checkpoints and savepoints need
        the alias. ``pillarbox inspect`` shows the classes in a checkpoint.

        Args:
            former: the former module and qualified name, as in ``"shop.model:Order"``.

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
            raise ProgramError(f"add_class_alias({former!r}, ...): the class already has this name: pass its old name")
        previous = self._moved.get((module, name), cls)
        # By name, because running a notebook cell again creates another class.
        if (previous.__module__, previous.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ProgramError(
                f"add_class_alias({former!r}, ...) was called before with another class: a name has only one alias"
            )
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
        """Start the program with the state of a savepoint, at any parallelism.

        A streaming query restores the state into a new checkpoint, in an additional epoch; later starts resume from
        that checkpoint. A program without Spark restores the state in each run, and ignores positions.

        Args:
            allow_non_restored_state: whether to skip the state of operators, and the positions of sources, that the
                program lacks.
            renamed: maps former operator uids and source names to the current names.
            positions: where sources begin. With ``"savepoint"``, they begin at the savepoint's positions, matched by
                source name; new sources begin as in a new query. With ``"none"``, all sources begin as in a new query.
                A dict maps source names to positions as in Spark's offset log (a dict, an int, or None to begin as in a
                new query); other sources begin as with ``"savepoint"``. A list has the position of each Spark source,
                in order.

        Raises:
            ProgramError: the program is in batch mode, a new uid belongs to no operator, or a query on Spark lacks a
                checkpoint location, or contains several programs or stateful Spark operators.
            CheckpointMismatchError: the savepoint is missing or damaged, or does not match the program; or the existing
                checkpoint was begun from another savepoint or with other arguments. Raised when the program starts.

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
