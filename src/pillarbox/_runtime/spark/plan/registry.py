"""A registry of the programs that this process has planned.

A query's plan identifies a program by its rows' alias, which survives views, SQL and joins.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from pillarbox._errors import ProgramError, listed
from pillarbox._graph.dashboard_place import DashboardAddress
from pillarbox._graph.description import ProgramDescription
from pillarbox._graph.layout import Layout
from pillarbox._graph.program import Program
from pillarbox._reports.plan import Plan, PlanVertex, plan_of
from pillarbox._reports.progress import program_names
from pillarbox._runtime.shipping import ShippedVertex
from pillarbox._runtime.spark.rows.buffer_rows import has_narrow_rows
from pillarbox._runtime.spark.session.session import dataframe_of, session_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_ALIAS = re.compile(r"SubqueryAlias pillarbox_([0-9a-f]{12})\b")

# Sessions that have planned a program and have started no query since.
_unstarted: WeakSet[SparkSession] = WeakSet()

_REMEMBERED = 256
# Number of newest programs whose shipped vertices are retained, for recordings.
_SHIPPED = 8
_shipped: OrderedDict[str, Sequence[ShippedVertex]] = OrderedDict()
_newest: OrderedDict[str, RegisteredProgram] = OrderedDict()
# Programs of the newest plans and of running queries.
_programs: WeakValueDictionary[str, RegisteredProgram] = WeakValueDictionary()


@dataclass(frozen=True)
class RegistrySummary:
    """A program's properties that are needed to start a query, without its functions and DataFrames.

    Attributes:
        has_narrow_rows: whether all rows of all sources are small.
        serials: serial numbers of the keyed operators, by uid. Empty for `group_by()` programs, whose uids are fixed.
        begins: the program itself if it starts from a savepoint, to plan its first epoch; otherwise None.
    """

    description: ProgramDescription
    uses_processing_time: bool
    auto_rescale: bool
    has_narrow_rows: bool
    serials: Mapping[str, int]
    begins: Program | None
    dashboard: DashboardAddress | None = None
    plan: Plan | None = None

    @staticmethod
    def of(program: Program) -> RegistrySummary:
        return RegistrySummary(
            ProgramDescription.of(program),
            program.uses_processing_time,
            program.auto_rescale,
            has_narrow_rows(program),
            _serials(program),
            None if program.savepoint is None else program,
            program.dashboard,
            plan_of(program),
        )


def _serials(program: Program) -> Mapping[str, int]:
    if any(node.factory.spark_time for vertex in program.vertices for node in vertex.nodes):
        return {}
    return {vertex.uid: program.serials[vertex.uid] for vertex in program.vertices if vertex.key is not None}


@dataclass(frozen=True)
class RegisteredProgram:
    """A streaming program in a query's plan.

    Attributes:
        parallelism: the number of Spark partitions with its subtasks, or 0 if it has no state.
        secret: the plan's tasks need it to use the program's home processes. Empty if read from a checkpoint.
        registered: the program as planned, if the query has renamed it. This reference keeps it in the registry.
    """

    id: str
    parallelism: int
    layout: Layout
    sets_parallelism: bool
    sets_max_parallelism: bool
    summary: RegistrySummary
    secret: str = ""
    registered: RegisteredProgram | None = None

    @staticmethod
    def of(program: Program, secret: str = "") -> RegisteredProgram:
        parallelism = program.parallelism if len(program.levels) > 1 else 0
        sets = program.sets_parallelism, program.sets_max_parallelism
        return RegisteredProgram(program.id, parallelism, program.layout, *sets, RegistrySummary.of(program), secret)


def vertex_with(
    programs: Sequence[RegisteredProgram], uid: str, number: int | None = None
) -> tuple[RegisteredProgram, PlanVertex]:
    """Return the vertex (chain of operators) that contains the operator ``uid``, and its program."""
    operators = [
        (program, vertex, operator)
        for program in programs
        if program.summary.plan is not None
        for vertex in program.summary.plan.vertices
        for operator in vertex.operators
    ]
    matches = [entry for entry in operators if entry[2].uid == uid] or [
        entry for entry in operators if entry[2].name == uid
    ]
    if not matches:
        uids = listed(dict.fromkeys(operator.uid for _, _, operator in operators if operator.uid))
        raise ProgramError(f"the program has no operator with the uid {uid!r}; it has {uids}")
    tasks = {(program.id, vertex.number): (program, vertex) for program, vertex, _ in matches}
    if number is not None:
        tasks = {key: task for key, task in tasks.items() if key[1] == number} or tasks
    if len(tasks) > 1 and uid:  # sources have no uid
        names = listed(vertex.name for _, vertex in tasks.values())
        raise ProgramError(
            f"the query has {len(tasks)} tasks with an operator {uid!r}: {names}. Pass a uid or name that only"
            " one of them has"
        )
    return next(iter(tasks.values()))


def shipped(program: RegisteredProgram, vertex: PlanVertex) -> ShippedVertex:
    for candidate in _shipped.get(program.id, ()):
        if candidate.number == vertex.number:
            return candidate
    raise ProgramError(
        "the program was planned too long ago: call to_dataframe(...) again, directly before record() or replay"
    )


def register(spark: SparkSession, program: Program, secret: str, shipped: Sequence[ShippedVertex] = ()) -> str:
    _unstarted.add(spark)
    _newest[program.id] = _programs[program.id] = RegisteredProgram.of(program, secret)
    _shipped[program.id] = shipped
    while len(_shipped) > _SHIPPED:
        _shipped.popitem(last=False)
    while len(_newest) > _REMEMBERED:
        _newest.popitem(last=False)
    return f"pillarbox_{program.id}"


def note_start(spark: SparkSession) -> None:
    _unstarted.discard(spark)


def is_one_unstarted(spark: SparkSession) -> bool:
    return spark in _unstarted


def programs_of(query: DataStreamWriter | DataFrame) -> list[RegisteredProgram]:
    df = dataframe_of(query)
    ids = _ALIAS.findall(session_of(df.sparkSession).aliases(df))
    if len(set(ids)) < len(ids):
        raise ProgramError(
            "the query uses the result of one to_dataframe() more than once, as in df.union(df). Spark would run the"
            " program once per use, but its tasks must run only once: call to_dataframe() for each use, or pass the"
            " result to foreachBatch() and use it there"
        )
    names = program_names(ids)
    programs = [_named(program, names[id_]) for id_ in names if (program := _programs.get(id_)) is not None]
    if len(programs) < len(ids):
        raise ProgramError(
            "the query's program was planned by another process, or too long ago: call to_dataframe(...) again in the"
            " process that starts the query"
        )
    return programs


def _named(program: RegisteredProgram, name: str) -> RegisteredProgram:
    plan = program.summary.plan
    if plan is None:
        return program
    return replace(program, summary=replace(program.summary, plan=plan.named(name)), registered=program)


def check_uids(programs: Sequence[RegisteredProgram]) -> None:
    # Different operators with the same uid might swap states at a restart.
    operators: dict[str, int] = {}
    for uid, serial in (item for program in programs for item in program.summary.serials.items()):
        if operators.setdefault(uid, serial) != serial:
            raise ProgramError(
                f"two programs of the query have an operator {uid!r}, so a later start could give each the other's"
                " state: set a different uid() on each operator of the query's programs"
            )


def wanted_parallelism(programs: Sequence[RegisteredProgram]) -> int | None:
    parallelisms = sorted(
        {program.parallelism for program in programs if program.parallelism and program.sets_parallelism}
    )
    if len(parallelisms) > 1:
        raise ProgramError(
            f"the query contains programs of parallelism {' and '.join(map(str, parallelisms))}, but a query has one"
            " parallelism: call set_parallelism() with the same number in each, or start a query for each program"
        )
    return parallelisms[0] if parallelisms else None
