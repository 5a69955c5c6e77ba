"""The commands that bring a failing record home: ``record`` and ``replay``."""

from __future__ import annotations

import datetime as dt
import functools
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pillarbox._errors import PillarboxError
from pillarbox_tools.cli import show
from pillarbox_tools.cli.commands import place, say, show_found, with_spark

if TYPE_CHECKING:
    from pillarbox._runtime.shipping import ShippedVertex
    from pillarbox._runtime.spark.settings.writer import Start
    from pillarbox_tools.recording.recording import Recording


class _CaughtError(Exception):
    """The program has called start(), which was all that was wanted of it."""


def _run_to_start(program: Path, arguments: Sequence[str], call: Callable[[Start], object]) -> None:
    """Run the script of a query up to ``pillarbox.start(...)``, and call something with what that was to start."""
    from pillarbox._runtime.spark.running.query import instead_of_starting

    def caught(start: Start) -> NoReturn:
        call(start)
        raise _CaughtError

    before = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        with instead_of_starting(caught):
            runpy.run_path(str(program), run_name="__main__")
    except _CaughtError:
        return
    except PillarboxError as error:
        raise click.ClickException(str(error)) from None
    finally:
        sys.argv, sys.path[:] = before
    raise click.ClickException(f"{program} has ended without pillarbox.start(...)")


class _Moment(click.ParamType[int]):
    """A point in time: epoch milliseconds, or as ISO 8601 writes it."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return epoch milliseconds."""
        try:
            return int(value)
        except ValueError:
            pass
        try:
            found = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            self.fail(f"{value!r} is no point in time: give epoch milliseconds, or such as 2026-01-31T12:00:00Z")
        return round((found if found.tzinfo else found.replace(tzinfo=dt.timezone.utc)).timestamp() * 1000)


@click.command()
@click.argument("checkpoint", callback=place)
@click.argument("directory", callback=place)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The script of a query that has ended: it runs up to pillarbox.start(...), which records instead of starting.",
)
@click.option("--epoch", type=click.IntRange(0), help="The micro-batch; by default, the one that failed.")
@click.option("--uid", help="The operator whose task to record; by default, the one that failed.")
@click.option("--subtask", type=click.IntRange(0), help="Which of its subtasks; of a source, the partition.")
@click.option("--key", help="Instead of --subtask: the subtask that has this key.")
@click.option("--allow-calls", is_flag=True, help="Make the calls of services of earlier levels again.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1 << 30,
    show_default=True,
    help="How large the input of the task may be, and the state files of the query (bytes each).",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=600.0,
    show_default=True,
    help="How long the epoch may take to run again, and a running query's driver to take the request (seconds).",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("arguments", nargs=-1)
@with_spark
def record(
    checkpoint: str,
    directory: str,
    program: Path | None,
    epoch: int | None,
    uid: str | None,
    subtask: int | None,
    key: str | None,
    allow_calls: bool,
    limit: int,
    timeout: float,
    as_json: bool,
    arguments: tuple[str, ...],
    open_session: Any,
) -> None:
    """Record one task of an epoch of the query of CHECKPOINT into DIRECTORY, which must not exist.

    If the query runs, its driver is asked to make the recording, on its machine; it must have been started with
    pillarbox.start(...). If it has ended, --program gives its script, with ARGUMENTS: it makes its own Spark session.

    By default, the task is recorded that made the query fail. The sources are read again between the offsets of the
    epoch, and earlier levels run again from their state, on a copy of the checkpoint: nothing is written to the sink or
    to CHECKPOINT. 'pillarbox replay DIRECTORY' runs the task again.
    """
    task: dict[str, Any] = {
        "epoch": epoch,
        "uid": uid,
        "subtask": subtask,
        "key": key,
        "allow_calls": allow_calls,
        "limit": limit,
    }
    if program is None:
        from pillarbox_tools.recording.record_request import request_record

        with open_session(f"Recording a task of {checkpoint}") as spark:
            tell = functools.partial(click.echo, err=True)
            request_record(spark, checkpoint, directory, timeout=timeout, tell=tell, **task)
    else:
        _record_by(program, arguments, checkpoint, directory, {**task, "timeout": timeout})
    found = {"recording": directory}
    say(found, f"{directory}: a recording; run it with 'pillarbox replay {directory}'", as_json=as_json)


def _record_by(program: Path, arguments: Sequence[str], checkpoint: str, directory: str, task: dict[str, Any]) -> None:
    """Record a task of a query that has ended, by its script."""
    from pillarbox_tools.recording.record import record as make

    def make_recording(start: Start) -> None:
        if start.checkpoint is None or start.checkpoint.rstrip("/") != checkpoint:
            raise click.ClickException(
                f"{program} starts a query on the checkpoint {start.checkpoint}, and not on {checkpoint}"
            )
        make(start.writer, directory, checkpointLocation=start.checkpoint, **task)

    _run_to_start(program, arguments, make_recording)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--at", type=click.IntRange(1), help="Stop before this record of the task's input in the epoch.")
@click.option("--pdb", "debug", is_flag=True, help="Open Python's debugger at that record, or where it failed.")
@click.option(
    "--diff", is_flag=True, help="Compare the state with that of the checkpoint, or the failure with the noted one."
)
@click.option("--allow-calls", is_flag=True, help="Make the calls of asynchronous operators.")
@click.option("--seed", type=int, help="Let random numbers of your code be the same each time.")
@click.option(
    "--clock", type=_Moment(), help="What the clock shows all the time: epoch milliseconds, or as ISO 8601 writes it."
)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The script of another version of the query: run both on the input, and show the first difference.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("arguments", nargs=-1)
def replay(
    directory: Path,
    at: int | None,
    debug: bool,
    diff: bool,
    allow_calls: bool,
    seed: int | None,
    clock: int | None,
    program: Path | None,
    as_json: bool,
    arguments: tuple[str, ...],
) -> None:
    """Run a recorded task again, in this process, without Spark and Java. It runs code from DIRECTORY.

    It runs up to the record that failed, or to the end of the epoch. With --diff, the exit code is 1 if it does
    something else than what was recorded.

    With --program, the script runs up to pillarbox.start(...), with ARGUMENTS, and with the Spark session that it
    makes; then both versions of the task run on the same input and state. The exit code is 1 if they differ.
    """
    from pillarbox_tools.recording.recording import read_recording

    if program is not None and (at is not None or debug or diff):
        raise click.UsageError("--program compares two programs: --at, --pdb and --diff are for one")
    how: dict[str, Any] = {"allow_calls": allow_calls, "seed": seed, "clock": clock}
    try:
        recording = read_recording(directory)
        found, table, same = (
            _replay(recording, at=at, debug=debug, diff=diff, **how)
            if program is None
            else _compare(recording, program, arguments, **how)
        )
    except PillarboxError as error:
        raise click.ClickException(str(error)) from None
    facts = recording.facts
    task = {"recording": str(directory), "uid": facts.uid, "subtask": facts.subtask, "epoch": facts.epoch}
    show_found({**task, **found}, table, as_json=as_json)
    if not same:
        sys.exit(1)


# The object to print, its tables, and whether both sides of a comparison are the same.
_Found = tuple[dict[str, Any], Callable[[Any, dict[str, Any]], None], bool]


def _replay(recording: Recording, **how: Any) -> _Found:
    from pillarbox_tools.replay.replay import replay as run

    found = run(recording, **how)
    told = {
        "records": found.records,
        "sent": found.sent,
        "stopped": found.stopped,
        "unanswered": found.unanswered,
        "failure": None if found.failure is None else asdict(found.failure),
        "differs": found.differs,
        "state": None if found.state is None else [asdict(each) for each in found.state],
        "reasons": found.reasons,
    }
    error = None if found.error is None else str(found.error)
    return told, functools.partial(show.replayed, error=error), found.is_same


def _compare(
    recording: Recording,
    program: Path,
    arguments: Sequence[str],
    *,
    allow_calls: bool,
    seed: int | None,
    clock: int | None,
) -> _Found:
    from pillarbox._runtime.spark.plan.registry import programs_of, shipped, vertex_with
    from pillarbox_tools.replay.outside import settled
    from pillarbox_tools.replay.trial import compare_programs

    others: list[ShippedVertex] = []

    def take(start: Start) -> None:
        other, vertex = vertex_with(programs_of(start.writer), recording.facts.uid)
        others.append(shipped(other, vertex))

    _run_to_start(program, arguments, take)
    with settled(seed, clock):
        found = compare_programs(recording, others[0], clock, allow_calls=allow_calls)
    return asdict(found), show.compared, found.is_same
