"""The commands that bring a failing record home: ``record`` and ``replay``."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import NoReturn

import click

from pillarbox._cli import show
from pillarbox._cli.commands import place, say
from pillarbox._errors import PillarboxError, describe


class _RecordedError(Exception):
    """The program has called start(), and the recording is made."""


@click.command()
@click.argument("checkpoint", callback=place)
@click.argument("directory", callback=place)
@click.option(
    "--program",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The script of the query: it runs up to pillarbox.start(...), which records instead of starting.",
)
@click.option("--epoch", type=click.IntRange(0), help="The micro-batch; by default, the one that failed.")
@click.option("--uid", help="The operator whose task to record; by default, the one that failed.")
@click.option("--subtask", type=click.IntRange(0), help="Which of its subtasks; of a source, the partition.")
@click.option("--key", help="Instead of --subtask: the subtask that has this key.")
@click.option("--allow-calls", is_flag=True, help="Make the calls of services of earlier levels again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.argument("arguments", nargs=-1)
def record(
    checkpoint: str,
    directory: str,
    program: Path,
    epoch: int | None,
    uid: str | None,
    subtask: int | None,
    key: str | None,
    allow_calls: bool,
    as_json: bool,
    arguments: tuple[str, ...],
) -> None:
    """Record one task of an epoch of the stopped query of CHECKPOINT into DIRECTORY, which must not exist.

    By default it is the task that made the query fail. The sources are read again between the offsets of the epoch, and
    earlier levels run again from their state, on a copy of the checkpoint: nothing is written to the sink or to
    CHECKPOINT. ARGUMENTS are the arguments of the script. 'pillarbox replay DIRECTORY' runs the task again.
    """
    from pillarbox._runtime.spark.recording.record import record as make
    from pillarbox._runtime.spark.running.query import instead_of_starting
    from pillarbox._runtime.spark.settings.writer import Start

    def make_recording(start: Start) -> NoReturn:
        if start.checkpoint is None or start.checkpoint.rstrip("/") != checkpoint:
            raise click.ClickException(
                f"{program} starts a query on the checkpoint {start.checkpoint}, and not on {checkpoint}"
            )
        make(
            start.writer,
            directory,
            epoch=epoch,
            uid=uid,
            subtask=subtask,
            key=key,
            allow_calls=allow_calls,
            checkpointLocation=start.checkpoint,
        )
        raise _RecordedError

    before = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        with instead_of_starting(make_recording):
            runpy.run_path(str(program), run_name="__main__")
    except _RecordedError:
        found = {"recording": directory}
        say(found, f"{directory}: a recording; run it with 'pillarbox replay {directory}'", as_json=as_json)
        return
    except PillarboxError as error:
        raise click.ClickException(str(error)) from None
    finally:
        sys.argv, sys.path[:] = before
    raise click.ClickException(f"{program} has ended without pillarbox.start(...)")


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--at", type=click.IntRange(1), help="Stop before this record of the task's input in the epoch.")
@click.option("--pdb", "debug", is_flag=True, help="Open Python's debugger at that record, or at the one that failed.")
@click.option(
    "--diff", is_flag=True, help="Compare the state with that of the checkpoint, or the failure with the noted one."
)
@click.option("--allow-calls", is_flag=True, help="Make the calls of asynchronous operators.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replay(directory: Path, at: int | None, debug: bool, diff: bool, allow_calls: bool, as_json: bool) -> None:
    """Run a recorded task again, in this process, without Spark and Java. It runs code from DIRECTORY.

    It runs up to the record that failed, or to the end of the epoch. The exit code is 1 if it does something else than
    what was recorded.
    """
    from dataclasses import asdict

    from pillarbox._runtime.recording.recording import read_recording
    from pillarbox._runtime.recording.replay import replay as run

    try:
        recording = read_recording(directory)
        found = run(recording, at=at, debug=debug, diff=diff, allow_calls=allow_calls)
    except PillarboxError as error:
        raise click.ClickException(str(error)) from None
    except Exception as error:
        raise click.ClickException(describe(error)) from error
    told = {
        "recording": str(directory),
        "uid": recording.facts.uid,
        "subtask": recording.facts.subtask,
        "epoch": recording.facts.epoch,
        "records": found.records,
        "sent": found.sent,
        "stopped": found.stopped,
        "failure": None if found.failure is None else asdict(found.failure),
        "differs": found.differs,
        "state": None if found.state is None else [asdict(each) for each in found.state],
    }
    if as_json:
        click.echo(json.dumps(told, indent=2, default=str))
    else:
        show.replayed(show.output(), told, None if found.error is None else str(found.error))
    if found.differs or found.state:
        sys.exit(1)
