"""The command ``record``."""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from pillarbox_tools.cli.commands import CommandReport, location, prints_report, timeout_option, with_spark

if TYPE_CHECKING:
    from pillarbox._runtime.spark.session.writer import WriterStart


class _StartCalledError(BaseException):
    """Raised to end the script at its call of start(). Not an ``Exception``, so that the script does not catch it."""


def run_to_start(program: Path, arguments: Sequence[str], call: Callable[[WriterStart], object]) -> None:
    """Run a query's script until it calls ``pillarbox.start(...)``, and pass the call's arguments to ``call``."""
    from pillarbox._runtime.spark.running.query import instead_of_starting

    def caught(start: WriterStart) -> NoReturn:
        try:
            call(start)
        except Exception as error:
            raise _StartCalledError(error) from None
        raise _StartCalledError(None)

    before = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        with instead_of_starting(caught):
            runpy.run_path(str(program), run_name="__main__")
    except _StartCalledError as caught_error:
        (raised,) = caught_error.args
        if raised is not None:
            raise raised from None
        return
    finally:
        sys.argv, sys.path[:] = before
    raise click.ClickException(f"{program} ended without pillarbox.start(...), so nothing was recorded")


@click.command()
@click.argument("checkpoint", callback=location)
@click.argument("directory", callback=location)
@click.option(
    "--program",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The script of an ended query. It runs up to pillarbox.start(...), which records the task instead of starting"
    " the query.",
)
@click.option("--epoch", type=click.IntRange(0), help="The micro-batch to record. Default: the failed micro-batch.")
@click.option("--uid", help="The operator whose task to record. Default: the operator that failed.")
@click.option("--subtask", type=click.IntRange(0), help="The operator's subtask; for a source, the partition.")
@click.option("--key", help="Instead of --subtask: record the subtask that owns this key.")
@click.option(
    "--allow-calls",
    is_flag=True,
    help="Let operators before the task call their services again; otherwise, refuse to record.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1 << 30,
    show_default=True,
    help="Maximum bytes of the task's input, and maximum bytes of the query's state files.",
)
@timeout_option("Time limit for the repeated epoch, and for the response of a running query's driver (seconds).")
@prints_report
@click.argument("arguments", nargs=-1)
@with_spark
def record(
    checkpoint: str,
    directory: str,
    program: Path | None,
    timeout: float,
    arguments: tuple[str, ...],
    open_session: Any,
    **task: Any,
) -> CommandReport:
    """Record a task of CHECKPOINT's query in one epoch into DIRECTORY, which must not exist.

    If the query is running, its driver makes the recording, on the driver's machine. The query must have been started
    with pillarbox.start(...). If the query has ended, pass its script as --program, with ARGUMENTS. The script creates
    its own Spark session.

    By default, the task that made the query fail is recorded. The sources are read again, and operators before
    the task run again on a copy of the checkpoint. Nothing is written to the sink or to CHECKPOINT. 'pillarbox replay
    DIRECTORY' replays the task.
    """
    if program is None:
        from pillarbox._runtime.spark.running.query_command import request_record

        with open_session(f"Recording a task of {checkpoint}") as spark:
            notify = functools.partial(click.echo, err=True)
            request_record(spark, checkpoint, directory, timeout=timeout, notify=notify, **task)
    else:
        from pillarbox_tools.recording.record import record as make

        def make_recording(start: WriterStart) -> None:
            if start.checkpoint is None or start.checkpoint.rstrip("/") != checkpoint:
                raise click.ClickException(
                    f"{program} starts a query on checkpoint {start.checkpoint}, not on {checkpoint}"
                )
            make(start.writer, directory, checkpointLocation=start.checkpoint, timeout=timeout, **task)

        run_to_start(program, arguments, make_recording)
    text = f"{directory}: a recording; run it with 'pillarbox replay {directory}'"
    return CommandReport({"recording": directory}, text)
