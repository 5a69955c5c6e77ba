"""Programs that were planned in this process, and those that a query's plan holds.

Which programs a query holds is read from its plan, where the rows of a program have an alias that says so. It is found
through views, SQL and joins as well.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
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

# The alias of a program's rows.
_ALIAS = re.compile(r"SubqueryAlias pillarbox_([0-9a-f]{12})\b")

# Sessions in which a program was planned after the last start of a query with programs.
_unstarted: WeakSet[SparkSession] = WeakSet()

_REMEMBERED = 256
# The vertices of the newest programs, as they travel to workers: a recording takes one along. They may be large.
_SHIPPED = 8
_shipped: OrderedDict[str, Sequence[ShippedVertex]] = OrderedDict()
_newest: OrderedDict[str, PlannedProgram] = OrderedDict()
# These, and the programs of queries that run: to stop a query may mean to start it again, for one epoch.
_programs: WeakValueDictionary[str, PlannedProgram] = WeakValueDictionary()


@dataclass(frozen=True)
class ProgramFacts:
    """All that the start of a query takes of a program in its plan: none of its functions and DataFrames.

    Attributes:
        description: what is noted of it next to a checkpoint.
        uses_processing_time: whether it has timers of the clock.
        auto_rescale: whether its parallelism is to become the checkpoint's.
        has_narrow_rows: whether no row of its sources can be large.
        begins: the program itself, if it starts from a savepoint: its first epoch is a plan of its own.
        dashboard: where the driver opens the dashboard for the query; None: it opens none.
        plan: its vertices and the ways between, for people.
    """

    description: ProgramDescription
    uses_processing_time: bool
    auto_rescale: bool
    has_narrow_rows: bool
    begins: Program | None
    dashboard: DashboardAddress | None = None
    plan: Plan | None = None

    @staticmethod
    def of(program: Program) -> ProgramFacts:
        """Return the facts of a program."""
        return ProgramFacts(
            ProgramDescription.of(program),
            program.uses_processing_time,
            program.auto_rescale,
            has_narrow_rows(program),
            None if program.savepoint is None else program,
            program.dashboard,
            plan_of(program),
        )


@dataclass(frozen=True)
class PlannedProgram:
    """A streaming program in a plan.

    Attributes:
        id: the program's.
        parallelism: the number of Spark's partitions, in which its subtasks lie; 0 where it has no state.
        layout: it was compiled with this one.
        sets_parallelism: whether the user has set the parallelism.
        sets_max_parallelism: whether the user has set the max parallelism.
        facts: what a start takes of it.
        secret: its plan has it, and its homes know it; empty if it has no homes yet.
        registered: the program as it was planned, if its plan got another name in its query: it must not be forgotten.
    """

    id: str
    parallelism: int
    layout: Layout
    sets_parallelism: bool
    sets_max_parallelism: bool
    facts: ProgramFacts
    secret: str = ""
    registered: PlannedProgram | None = None

    @staticmethod
    def of(program: Program, secret: str = "") -> PlannedProgram:
        """Return a program as it is found in a plan."""
        parallelism = program.parallelism if len(program.levels) > 1 else 0
        sets = program.sets_parallelism, program.sets_max_parallelism
        return PlannedProgram(program.id, parallelism, program.layout, *sets, ProgramFacts.of(program), secret)


def vertex_with(
    programs: Sequence[PlannedProgram], uid: str, number: int | None = None
) -> tuple[PlannedProgram, PlanVertex]:
    """Return the vertex of programs that has an operator with a uid, and its program.

    Args:
        uid: or a name. Uids that pillarbox has chosen may occur in several programs, and an output that takes several
            streams is in several vertices.
        number: of the vertex, which tells it from others of its program; None: it is not known.

    Raises:
        ProgramError: there is none, or there are several.
    """
    every = [
        (program, vertex, operator)
        for program in programs
        if program.facts.plan is not None
        for vertex in program.facts.plan.vertices
        for operator in vertex.operators
    ]
    those = [each for each in every if each[2].uid == uid] or [each for each in every if each[2].name == uid]
    if not those:
        uids = listed(dict.fromkeys(operator.uid for _, _, operator in every if operator.uid))
        raise ProgramError(f"the program has no operator with the uid {uid!r}; it has {uids}")
    tasks = {(program.id, vertex.number): (program, vertex) for program, vertex, _ in those}
    if number is not None:
        tasks = {place: task for place, task in tasks.items() if place[1] == number} or tasks
    if len(tasks) > 1 and uid:  # sources have none
        names = listed(found.name for _, found in tasks.values())
        raise ProgramError(
            f"the query has {len(tasks)} tasks with an operator {uid!r}: {names};"
            " give the uid or the name of an operator that only one of them has"
        )
    return next(iter(tasks.values()))


def shipped(program: PlannedProgram, vertex: PlanVertex) -> ShippedVertex:
    """Return a vertex of a program as it travels to workers.

    Raises:
        ProgramError: the program was planned many programs ago.
    """
    found = next((each for each in _shipped.get(program.id, ()) if each.number == vertex.number), None)
    if found is None:
        raise ProgramError(
            "the program was planned too long ago: call to_dataframe(...) again, and record() or replay after that"
        )
    return found


def register(spark: SparkSession, program: Program, secret: str, shipped: Sequence[ShippedVertex] = ()) -> str:
    """Return the alias of a program's rows in a streaming plan, and store what its start needs.

    Args:
        shipped: its vertices, as they travel to workers.
    """
    _unstarted.add(spark)
    _newest[program.id] = _programs[program.id] = PlannedProgram.of(program, secret)
    _shipped[program.id] = shipped
    while len(_shipped) > _SHIPPED:
        _shipped.popitem(last=False)
    while len(_newest) > _REMEMBERED:
        _newest.popitem(last=False)
    return f"pillarbox_{program.id}"


def note_start(spark: SparkSession) -> None:
    """Note that a query with programs starts in a session."""
    _unstarted.discard(spark)


def is_one_unstarted(spark: SparkSession) -> bool:
    """Return whether a program was planned in a session, and no query with programs has been started since."""
    return spark in _unstarted


def programs_of(query: DataStreamWriter | DataFrame) -> list[PlannedProgram]:
    """Return the programs in the plan of a DataFrame, or of one that is about to be written, as they were planned.

    Raises:
        ProgramError: a program occurs more than once, or this process does not know it.
    """
    df = dataframe_of(query)
    found = _ALIAS.findall(session_of(df.sparkSession).aliases(df))
    if len(set(found)) < len(found):
        raise ProgramError(
            "the query uses the result of one to_dataframe() more than once, as in df.union(df): Spark would run the"
            " program as often, and its tasks have one home; call to_dataframe() once for each use, or use the result"
            " once, in a function for foreachBatch()"
        )
    names = program_names(found)
    programs = [_named(program, names[id_]) for id_ in names if (program := _programs.get(id_)) is not None]
    if len(programs) < len(found):
        raise ProgramError(
            "a program of the query was planned by another process, or too long ago: call to_dataframe(...) again in"
            " the process that starts the query"
        )
    return programs


def _named(program: PlannedProgram, name: str) -> PlannedProgram:
    plan = program.facts.plan
    if plan is None:
        return program
    return replace(program, facts=replace(program.facts, plan=plan.named(name)), registered=program)


def wanted_parallelism(programs: Sequence[PlannedProgram]) -> int | None:
    """Return the parallelism that the programs of a query set; None: they set none, or have no state.

    Raises:
        ProgramError: they set several.
    """
    wanted = sorted({program.parallelism for program in programs if program.parallelism and program.sets_parallelism})
    if len(wanted) > 1:
        raise ProgramError(
            f"the query holds programs of parallelism {' and '.join(map(str, wanted))}: the state of a query has one;"
            " call set_parallelism() with the same number in each, or start a query for each"
        )
    return wanted[0] if wanted else None
