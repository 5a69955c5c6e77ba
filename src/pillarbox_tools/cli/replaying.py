"""The command ``replay``."""

from __future__ import annotations

import datetime as dt
import functools
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pillarbox._errors import PillarboxError
from pillarbox_tools.cli import show
from pillarbox_tools.cli.commands import JSON, CommandReport
from pillarbox_tools.cli.recordings import run_to_start
from pillarbox_tools.cli.replay_process import ReplayRequest

if TYPE_CHECKING:
    from pillarbox._runtime.shipping import ShippedVertex
    from pillarbox._runtime.spark.session.writer import WriterStart


def _timestamp(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Parse a point in time: Unix time in ms, or ISO 8601."""
    if value is None:
        return None
    with suppress(ValueError):
        return int(value)
    try:
        parsed = dt.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is not a point in time: pass epoch milliseconds, or 2026-01-31T12:00:00Z"
        ) from None
    return round((parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.timezone.utc)).timestamp() * 1000)


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--at", type=click.IntRange(1), help="Stop before the Nth input record of the epoch, counted from 1.")
@click.option("--pdb", "debug", is_flag=True, help="Open Python's debugger at that record, or at the failure.")
@click.option(
    "--diff", is_flag=True, help="Compare the state with the checkpoint's, or the failure with the recorded one."
)
@click.option("--allow-calls", is_flag=True, help="Allow your code to call services and to start other programs.")
@click.option("--seed", type=int, help="Seed of random numbers in your code.")
@click.option(
    "--clock", metavar="TIME", callback=_timestamp, help="Fixed time of the clock: epoch milliseconds, or ISO 8601."
)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The script of another version of the query: run both versions, and show the first difference.",
)
@JSON
@click.argument("arguments", nargs=-1)
@click.pass_obj
def replay(
    replay_in_new_process: Callable[[ReplayRequest, str | None], NoReturn] | None,
    /,
    directory: Path,
    at: int | None,
    debug: bool,
    diff: bool,
    program: Path | None,
    as_json: bool,
    arguments: tuple[str, ...],
    **how: Any,
) -> None:
    """Replay a recorded task, without Spark and Java. This runs code from DIRECTORY.

    The task runs up to the record that failed, or to the end of the epoch. It stops at its first call of a service,
    unless you pass --allow-calls. With --diff, the exit code is 1 if the result differs from the recorded result.

    With --program, that script first runs, with ARGUMENTS and its own Spark session, until it calls
    pillarbox.start(...). Then both versions of the task run on the same input and state. The exit code is 1 if their
    results differ.
    """
    from pillarbox_tools.recording.recording import read_metadata

    if program is not None and (at is not None or debug or diff):
        raise click.UsageError("--at, --pdb and --diff do not work with --program, which compares two programs")
    if program is None:
        how |= {"at": at, "debug": debug, "diff": diff}
    try:
        facts = read_metadata(directory)
        paths = list(sys.path)
        other = None if program is None else _vertex_of(program, arguments, facts.uid, paths)
    except PillarboxError as error:
        raise click.ClickException(str(error)) from None
    request = ReplayRequest(directory=str(directory), other=pickle.dumps(other), how=how, as_json=as_json, paths=paths)
    if replay_in_new_process is None:
        _replay(request)
    else:
        replay_in_new_process(request, facts.hash_seed)


def _vertex_of(
    program: Path, arguments: Sequence[str], uid: str, paths: list[str]
) -> tuple[ShippedVertex, dict[int, bytes]]:
    """Run a script up to its ``start()``, copy ``sys.path`` to ``paths``, and return the vertex of ``uid``."""
    from pillarbox._runtime.spark.homes.broadcasts import values_of
    from pillarbox._runtime.spark.plan.registry import programs_of, shipped, vertex_with

    others: list[tuple[ShippedVertex, dict[int, bytes]]] = []

    def take(start: WriterStart) -> None:
        other, vertex = vertex_with(programs_of(start.writer), uid)
        shipped_vertex = shipped(other, vertex)
        others.append((shipped_vertex, values_of(shipped_vertex.broadcasts.broadcasts)))
        paths[:] = sys.path

    run_to_start(program, arguments, take)
    return others[0]


def run_replay(request: ReplayRequest) -> NoReturn:
    click.Command("replay", callback=functools.partial(_replay, request)).main([], prog_name="pillarbox")
    raise AssertionError("a command exits")


def _replay(request: ReplayRequest) -> None:
    from pillarbox_tools.recording.recording import read_recording
    from pillarbox_tools.replay.comparison import Comparison, compare_programs
    from pillarbox_tools.replay.replay import Replay
    from pillarbox_tools.replay.replay import replay as run

    other = pickle.loads(request["other"])
    try:
        recording = read_recording(Path(request["directory"]))
        result: Replay | Comparison = (
            run(recording, **request["how"]) if other is None else compare_programs(recording, *other, **request["how"])
        )
    except PillarboxError as error:
        raise click.ClickException(str(error)) from None
    facts = recording.facts
    task = {"recording": request["directory"], "uid": facts.uid, "subtask": facts.subtask, "epoch": facts.epoch}
    table = show.replayed if other is None else show.compared
    CommandReport({**task, **asdict(result)}, table, has_failed=not result.is_same).print(as_json=request["as_json"])
