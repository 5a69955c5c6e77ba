"""Starts a query from a savepoint, by running an epoch on the new checkpoint before the query's own first epoch.

This epoch, micro-batch 0, has the query's stateful plan. It writes the savepoint's state (``restore_host.py``), and has
sources without rows, at the savepoint's positions (``source_positions.py``). The query continues with micro-batch 1. If
the epoch is interrupted, only the same start can continue it, because of a note in the checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pillarbox._elements.buffers import dumps
from pillarbox._errors import CheckpointMismatchError, ProgramError, SavepointError, shorten
from pillarbox._graph.description import DescriptionDifferences, compare_sources, describe_programs
from pillarbox._graph.program import Program
from pillarbox._graph.savepoint_start import SavepointStart, SavepointStartPlan, plan_restore
from pillarbox._graph.transformations import DataFrameSource
from pillarbox._runtime.savepoint_stores import classes_of
from pillarbox._runtime.shipping import ship
from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
from pillarbox._runtime.spark.failures import unwrapped_failures
from pillarbox._runtime.spark.notices import notify
from pillarbox._runtime.spark.plan.plan import PlannedFirstEpoch, plan_first_epoch
from pillarbox._runtime.spark.plan.registry import RegisteredProgram
from pillarbox._runtime.spark.rows.any_names import map_in_arrow
from pillarbox._runtime.spark.savepoint.restore_host import COMMON, LAST, STATE_SCHEMA, RestoreRouter
from pillarbox._runtime.spark.savepoint.savepoint import OpenSavepoint, open_savepoint
from pillarbox._runtime.spark.savepoint.seen_files import SeenFiles
from pillarbox._runtime.spark.savepoint.source_positions import (
    FoundPositions,
    PositionedSource,
    find_positions,
    placeholder_sources,
    planned_sources,
    stateful_steps,
)
from pillarbox._runtime.spark.session.session import check_classic
from pillarbox._runtime.spark.session.session_settings import session_settings
from pillarbox._runtime.spark.session.spark_names import BATCH_BYTES
from pillarbox._runtime.spark.session.writer import WriterStart
from pillarbox._runtime.spark.starting.query_settings import program_settings
from pillarbox._runtime.spark.starting.sink_log import SinkLog
from pillarbox._state.savepoint.own_state import OwnState
from pillarbox._state.slots import LIST

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger("pillarbox")

# A row of state may have some megabytes, and a file many more.
_BATCHES = {BATCH_BYTES: str(8 * 1024 * 1024)}


def begin_from_savepoint(
    start: WriterStart, planned: Sequence[RegisteredProgram], checkpoint: Checkpoint | None
) -> bool:
    """Run the restoring epoch if the checkpoint is new and a program uses a savepoint. Returns whether it ran."""
    asked = next((program.summary.begins for program in planned if program.summary.begins is not None), None)
    if checkpoint is None:
        if asked is not None:
            raise ProgramError(
                "env.from_savepoint() needs a query with a checkpoint: set option('checkpointLocation', ...)"
            )
        return False
    if asked is None and not any(program.parallelism for program in planned):
        return False
    noted = checkpoint.savepoint
    begun = checkpoint.last_committed >= 0
    if asked is None:
        if noted is not None and not begun:
            raise CheckpointMismatchError(
                f"checkpoint {checkpoint}: a start from the savepoint {noted} was interrupted: start the same"
                f" program with env.from_savepoint({noted!r}) to complete it, or use a new checkpoint directory"
            )
        return False
    savepoint = asked.savepoint
    assert savepoint is not None
    if noted is None and (begun or checkpoint.is_begun):
        raise CheckpointMismatchError(
            f"checkpoint {checkpoint} was created without a savepoint, so it cannot take the state of"
            f" {savepoint.directory}: use a new checkpoint directory, or drop env.from_savepoint()"
        )
    if noted is not None and noted != savepoint.directory:
        raise CheckpointMismatchError(
            f"checkpoint {checkpoint} was created from the savepoint {noted}, not from {savepoint.directory}: use a new"
            f" checkpoint directory, or call env.from_savepoint({noted!r})"
        )
    if begun:
        return False
    if len(planned) > 1:
        raise ProgramError("the query contains several programs, but env.from_savepoint() needs a query with only one")
    check_classic(
        start.spark,
        "Spark Connect cannot start a query from a savepoint: start it once in a classic session, for example"
        " with trigger(availableNow=True), and later under Spark Connect",
    )
    _SavepointStarter(start, asked, savepoint, checkpoint).run()
    return True


class _SavepointStarter:
    def __init__(self, start: WriterStart, program: Program, asked: SavepointStart, checkpoint: Checkpoint) -> None:
        self._start = start
        self._spark = start.spark
        self._program = program
        self._asked = asked
        self._checkpoint = checkpoint

    def run(self) -> None:
        spark, asked, checkpoint = self._spark, self._asked, self._checkpoint
        self._check_interrupted()
        others = self._conflicts()
        opened = open_savepoint(spark, asked.directory)
        sources = self._sources()
        programs = opened.manifest.programs
        then = programs[0]["sources"] if programs and len(programs) == 1 else None
        names = None if then is None else [source["name"] for source in then]
        positions = find_positions(asked, opened.manifest.sources, names, sources)
        others += positions.wrong
        if positions.gone and not asked.allow_non_restored_state:
            others.append(_dropped_sources(positions))
        loads = classes_of(self._program.vertices[0])
        own = {table.uid: opened.own_states(table.uid, loads) for table in opened.manifest.operators}
        warnings = self._sources_changed(then, positions, others)
        plan = plan_restore(asked, opened.manifest, self._program, own, others)
        for warning in [*plan.warnings, *warnings]:
            _log.warning("savepoint %s: %s", asked.directory, warning)
        for uid in plan.left_behind:
            dropped = opened.frame(uid).count() if uid in own else 0
            _log.warning(asked.left_behind(uid, dropped, own.get(uid, ())))
        for name in positions.gone:
            _log.warning(
                "savepoint %s: the position of source %r is dropped, because the program has no such source: if it was"
                " renamed, pass renamed={%r: 'new name'}",
                asked.directory,
                name,
                name,
            )
        for name in positions.added:
            _log.info("savepoint %s: source %r is new, and starts as its own options define", asked.directory, name)
        first = PlannedFirstEpoch(
            placeholder_sources(spark, positions.positions, sources, str(checkpoint)),
            lambda vertices: self._state(opened, plan, own, vertices),
            {
                vertex.number: asked.table(opened.table(uid).operator, self._program)
                for uid, vertex in plan.vertices.items()
            },
            opened.manifest.sources.watermark,
        )
        if checkpoint.savepoint is None:
            checkpoint.note_savepoint(asked.directory)
        checkpoint.check([self._program], [self._program.layout])
        self._run(first)
        rows = {uid: opened.rows(uid) for uid in plan.vertices}
        notify(
            f"checkpoint {checkpoint} begins with the state of savepoint {asked.directory}, epoch"
            f" {opened.manifest.epoch}: {restored(rows, asked.renamed, sources, positions.positions)}"
        )

    def _check_interrupted(self) -> None:
        newest = self._checkpoint.newest()
        if self._checkpoint.savepoint is None or newest is None:
            return
        if newest["programs"] != describe_programs([self._program])["programs"]:
            raise CheckpointMismatchError(
                f"checkpoint {self._checkpoint}: a start of another program from the savepoint {self._asked.directory}"
                " was interrupted: start that program again to complete it, or use a new checkpoint directory"
            )

    def _conflicts(self) -> list[str]:
        conflicts = []
        inside = {id(source): source for source in self._program.sources.values()}
        ours = [planned_sources(source.dataframe) for source in inside.values() if hasattr(source, "dataframe")]
        count, every = sum(map(len, ours)), len(planned_sources(self._start.dataframe))
        if count != every:
            conflicts.append(
                f"the query reads {every} streaming sources, but the program reads only {count} of them: pass the"
                " others to the program, too, or read them in a separate query"
            )
        others = stateful_steps(self._start.dataframe)
        for _ in self._program.levels[1:]:
            own_step = next((name for name in others if name.startswith("TransformWithState")), None)
            if own_step is not None:
                others.remove(own_step)
        if others:
            conflicts.append(
                f"the query has other stateful Spark operators besides the program ({', '.join(others)}), whose state"
                " is not in a savepoint: remove them, or move them into the program"
            )
        files = self._start.files
        if files is not None and SinkLog(self._spark, files).last is not None:
            conflicts.append(
                f"{files} contains another query's files: micro-batch numbers restart at 1, and Spark would skip those"
                " that it finds there. Write to a new directory, and read both"
            )
        return conflicts

    def _sources(self) -> list[PositionedSource]:
        every = planned_sources(self._start.dataframe)
        names: list[str | None] = []
        for source in self._program.sources.values():
            if isinstance(source, DataFrameSource):
                own = planned_sources(source.dataframe)
                names += [source.name] if len(own) == 1 else [None] * len(own)
        if len(names) != len(every):
            return every
        return [replace(source, known_as=name) for source, name in zip(every, names)]

    def _sources_changed(
        self, then: list[dict[str, Any]] | None, positions: FoundPositions, wrong: list[str]
    ) -> list[str]:
        now = describe_programs([self._program])["programs"][0]["sources"]
        if then is None or (positions.places is None and not positions.in_order):
            return []
        if positions.places is not None:
            pairs = [
                (then[position], source) for position, source in zip(positions.places, now) if position is not None
            ]
            then, now = [old for old, _ in pairs], [new for _, new in pairs]
        changes = DescriptionDifferences()
        compare_sources(then, now, changes)
        if positions.places is None:  # sources that are matched by name may have another order
            wrong += [f"{what}; or pass positions=..." for what in changes.refused]
        return changes.doubtful

    def _state(
        self, opened: OpenSavepoint, plan: SavepointStartPlan, own: dict[str, list[OwnState]], vertices: Sequence[int]
    ) -> DataFrame:
        spark, program = self._spark, self._program
        frames: list[DataFrame] = []
        last: list[tuple[list[int], int, bytes]] = []
        for uid, vertex in plan.vertices.items():
            if vertex.number not in vertices:
                continue
            codes = [code for code, (number, _) in program.subtasks.items() if number == vertex.number]
            table = opened.table(uid).operator
            files, digests = opened.contents(uid)
            router = RestoreRouter(table, codes, vertex.max_parallelism, ship(vertex), digests)
            frames.append(map_in_arrow(files, f"savepoint of {table.uid}", router, STATE_SCHEMA))
            states = self._asked.own_states(table, own[uid], vertex, opened.manifest, program)
            last += own_rows(codes, states)
        own_frame = spark.createDataFrame(last, "targets ARRAY<LONG>, number LONG, payload BINARY")
        frames.append(own_frame.selectExpr("explode(targets) AS target", "number", "payload"))
        return reduce(lambda left, other: left.unionAll(other), frames)

    def _run(self, first: PlannedFirstEpoch) -> None:
        spark, program = self._spark, self._program
        layouts = self._checkpoint.layouts([program.layout], list)
        with unwrapped_failures():
            rows = plan_first_epoch(program, spark, first)
            of = [RegisteredProgram.of(program)]
            settings = program_settings(spark, of, layouts)
            # Restored afterwards, so that the query does not keep these settings.
            with settings, session_settings(spark, _BATCHES):
                query = (
                    rows.writeStream.format("noop")
                    .option("checkpointLocation", str(self._checkpoint))
                    .trigger(once=True)
                    .start()
                )
            query.awaitTermination()
        if Checkpoint(spark, str(self._checkpoint)).last_committed < 0:
            raise SavepointError(
                f"checkpoint {self._checkpoint}: the query was stopped before it had restored the savepoint"
                f" {self._asked.directory}: start the same program again to complete it, or use a new checkpoint"
                " directory"
            )


def restored(
    rows: Mapping[str, int], renamed: Mapping[str, str], sources: Sequence[PositionedSource], positions: Sequence[Any]
) -> str:
    parts = [
        f"operator {uid!r}{f' as {renamed[uid]!r}' if uid in renamed else ''} ({number:,} row{'s' * (number != 1)})"
        for uid, number in rows.items()
    ]
    for source, position in zip(sources, positions):
        name = f"source {source.known_as or source.title or source.name!s}"
        if position is None:
            parts.append(f"{name} starts as its own options define")
        elif isinstance(position, SeenFiles):
            parts.append(f"{name} resumes after {len(position.paths):,} file{'s' * (len(position.paths) != 1)}")
        else:
            parts.append(f"{name} resumes at {shorten(position, 200)}")
    return "; ".join(parts) or "it has no state and no positions"


def own_rows(codes: Sequence[int], states: Sequence[OwnState]) -> Iterator[tuple[list[int], int, bytes]]:
    common: dict[bytes, list[int]] = {}
    for code, state in zip(codes, states):
        shared = {name: value for name, value in state.row.items() if not name.startswith(LIST)}
        if shared:
            common.setdefault(dumps(shared), []).append(code)
        row = {name: value for name, value in state.row.items() if name not in shared}
        yield [code], LAST, dumps(OwnState(state.task, row))
    for payload, targets in common.items():
        yield targets, COMMON, payload


def _dropped_sources(positions: FoundPositions) -> str:
    gone, added = (", ".join(map(repr, names)) for names in (positions.gone, positions.added))
    instead = f", and it reads {added}, which the savepoint does not have" if added else ""
    return (
        f"it has positions of the sources {gone}, but the program does not read them{instead}: use the old names"
        " again, as in from_dataframe(df, 'payments'), pass renamed={'old name': 'new name'}, or drop their positions"
        " with allow_non_restored_state=True"
    )
