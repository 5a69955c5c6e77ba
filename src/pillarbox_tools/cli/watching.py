"""The commands that show a query: dashboard, doctor, memory and bundle."""

from __future__ import annotations

import functools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from pillarbox._errors import ConfigurationError, PillarboxError, describe
from pillarbox._graph.dashboard_place import DEFAULT_PORT, checked_token
from pillarbox_tools.cli import show
from pillarbox_tools.cli.commands import CHECKPOINT, CommandReport, location, prints_report, with_spark

_LOOK_EVERY = 0.5


@click.command()
@click.argument("what", metavar="CHECKPOINT|FILE", callback=location)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="The port; 0 for any free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option(
    "--token", help="Token that browsers must send. Default: random, or no token if only this machine can connect."
)
@with_spark
def dashboard(what: str, port: int, host: str, token: str | None, open_session: Any) -> None:
    """Show CHECKPOINT's query, or the query in the bundle FILE, in a browser.

    The query may be running elsewhere or stopped. Its driver writes data into the checkpoint at most once a minute; the
    page shows the latest data and its age. For live data, call pillarbox.dashboard(query) in the driver. A bundle needs
    no Spark. Ctrl-C ends the command.
    """
    from pillarbox_tools.dashboard.server import open_dashboard
    from pillarbox_tools.model.bundle import read_bundle
    from pillarbox_tools.model.query_model import StaticQueryModel

    checked_token(token, "--token")
    if Path(what).is_file():
        _serve(open_dashboard([StaticQueryModel(read_bundle(Path(what)))], host, port, token))
        return
    from pillarbox_tools.watching.stored import StoredQuery

    with open_session(f"Reading {what}") as spark:
        _serve(open_dashboard([StoredQuery(spark, what)], host, port, token))


def _serve(opened: Any) -> None:
    with opened:
        click.echo(opened.url)
        try:
            while opened.is_open:
                time.sleep(_LOOK_EVERY)
        except KeyboardInterrupt:
            click.echo("", err=True)


@click.command()
@click.argument("checkpoint", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Also show rules that found nothing, and rules that could not be checked."
)
@prints_report
@with_spark
def doctor(checkpoint: str | None, every: bool, open_session: Any) -> CommandReport:
    """Diagnose this machine, or CHECKPOINT's query, and print each problem with its remedy.

    Without CHECKPOINT, the command checks Java, Python, packages and settings on this machine and on a worker of the
    cluster that --master names. With CHECKPOINT, it checks the query's machines in the same way, and also memory, keys,
    event time, epochs, timers, state and calls of services.

    The exit code is 1 if there is a problem.
    """
    from pillarbox_tools.doctor.machine_rules import MACHINE_RULES
    from pillarbox_tools.doctor.rules import RULES, examine
    from pillarbox_tools.watching.machine import snapshot_of_session
    from pillarbox_tools.watching.stored import stored_snapshot

    with open_session("Asking a worker" if checkpoint is None else f"Reading {checkpoint}") as spark:
        if checkpoint is None:
            findings = examine(snapshot_of_session(spark), MACHINE_RULES)
        else:
            findings = examine(stored_snapshot(spark, checkpoint.rstrip("/") or checkpoint), RULES)
    wrong = sum(finding.status == "wrong" for finding in findings)
    report = {"wrong": wrong, "findings": [asdict(finding) for finding in findings]}
    return CommandReport(report, functools.partial(show.findings, every=every), has_failed=wrong > 0)


@click.command()
@CHECKPOINT
@prints_report
@with_spark
def memory(checkpoint: str, open_session: Any) -> CommandReport:
    """Show the memory that each executor of CHECKPOINT's query needs, and the setting for it.

    The command prints the formula in docs/operations.md with the query's numbers, and the measured memory of the home
    processes. If the query is running, the numbers are at most a minute old. The last line is the setting, with a third
    to spare.
    """
    from pillarbox_tools.model.executor_memory import executor_memory_of
    from pillarbox_tools.watching.stored import stored_snapshot

    with open_session(f"Reading {checkpoint}") as spark:
        snapshot = stored_snapshot(spark, checkpoint)
    executors = executor_memory_of(snapshot)
    if not executors:
        raise ConfigurationError(
            f"{checkpoint}: no task has reported its memory. Start the query with pillarbox.start(...), and wait for"
            " the end of an epoch"
        )
    overhead = max(executor.overhead for executor in executors)
    result = {
        "checkpoint": checkpoint,
        "at": snapshot.at,
        "executors": [asdict(executor) for executor in executors],
        "settings": {"spark.executor.memoryOverhead": f"{overhead >> 20}m"},
    }
    return CommandReport(result, show.executor_memory)


@click.command()
@CHECKPOINT
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--with-records", is_flag=True, help="Include keys, records and error messages.")
@prints_report
@with_spark
def bundle(checkpoint: str, file: Path, with_records: bool, open_session: Any) -> CommandReport:
    """Pack diagnostic data about CHECKPOINT's query into FILE, to send to someone who can help.

    FILE contains the plan, the history with metrics and failures, versions, settings with secrets masked, and the sizes
    of the state. With --with-records, it also contains keys, records and error messages. The query may be running.
    'pillarbox dashboard FILE' opens it.
    """
    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.reading.inspection import inspect_checkpoint
    from pillarbox_tools.model.bundle import write_bundle
    from pillarbox_tools.watching.stored import stored_snapshot

    with open_session(f"Reading {checkpoint}") as spark:
        snapshot = stored_snapshot(spark, checkpoint)
        notes = Checkpoint(spark, checkpoint).lines
        state: dict[str, Any] | None = None
        try:
            state = inspect_checkpoint(spark, checkpoint)
        except Exception as error:
            why = error if isinstance(error, PillarboxError) else describe(error)
            click.echo(f"the bundle has no state: {why}", err=True)
    write_bundle(file, snapshot, notes, state, with_records=with_records)
    size = file.stat().st_size
    result = {"file": str(file), "bytes": size, "records": with_records, "runs": 1 + len(snapshot.earlier)}
    return CommandReport(result, f"{file}: {size:,} bytes{'' if with_records else ', without keys and records'}")
