"""The commands. They print results to standard output, and progress and errors to standard error.

The exit code is 0 for success, 1 for a failure (with a message), and 2 for wrong usage.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from rich.console import Console

import pillarbox as package
from pillarbox._errors import CheckpointMismatchError, PillarboxError
from pillarbox._task.memory import readable
from pillarbox_tools.cli import show
from pillarbox_tools.cli.session import progress, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPILOG = """
\b
Examples:
  pillarbox inspect /checkpoints/flights
  pillarbox state /checkpoints/flights count --where "seen > 1000"
  pillarbox rescale /checkpoints/flights --parallelism 8
  pillarbox savepoint /checkpoints/flights /savepoints/flights-1
  pillarbox stop /checkpoints/flights

CHECKPOINT is the checkpointLocation of a query, on any file system of Spark: a path, hdfs://, s3a://, abfss://. Pass
Spark's settings as with spark-submit: --conf spark.jars.packages=... --conf spark.hadoop....

Exit codes: 0, success; 1, failure, with the reason on standard error; 2, wrong usage.
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package.__version__, prog_name="pillarbox")
def pillarbox() -> None:
    """Inspect the checkpoints of pillarbox's queries, and change them while their query is stopped.

    All commands start a local Spark, unless --master is set. Only adopt needs a class of the program that wrote the
    checkpoint.
    """


def with_spark(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a Spark session, and pass the command a function ``open_session``."""

    @click.option("--master", default="local[*]", show_default=True, help="Spark's master URL, as for spark-submit.")
    @click.option("--conf", "settings", multiple=True, metavar="KEY=VALUE", help="A Spark setting; may be repeated.")
    @click.option("--verbose", is_flag=True, help="Show Spark's log, and tracebacks of errors.")
    @functools.wraps(command)
    def wrapper(master: str, settings: tuple[str, ...], verbose: bool, **arguments: Any) -> Any:
        pairs = [setting.partition("=") for setting in settings]
        for name, equals, _ in pairs:
            if not name or not equals:
                raise click.BadParameter(f"{name!r} is not KEY=VALUE", param_hint="--conf")

        @contextmanager
        def open_session(what: str) -> Iterator[SparkSession]:
            with (
                Console(stderr=True).status("Starting Spark ...") as status,
                session(master, {name: value for name, _, value in pairs}, verbose=verbose) as spark,
                progress(spark, status, what),
            ):
                yield spark

        try:
            return command(open_session=open_session, **arguments)
        except Exception as error:
            # If a pipe's reader closes it early, Click ends the command.
            if verbose or isinstance(error, (click.ClickException, BrokenPipeError)):
                raise
            is_ours = isinstance(error, PillarboxError)
            message = str(error) if is_ours else f"{_java_message(error)} (--verbose shows more)"
            raise click.ClickException(message) from None

    return wrapper


_JAVA_CAUSES = re.compile(
    r"^(?:: |Caused by: )([\w.$]+): (.*?)(?=\n\s+at |\n\s+\.\.\. \d+ more|\nCaused by: |\Z)", re.M | re.S
)
_STATE = re.compile(r"\.?\s*SQLSTATE: \w{5}.*", re.DOTALL)


def _java_message(error: Exception) -> str:
    text, kind = str(error), type(error).__name__
    causes = [(name.rpartition(".")[2], message) for name, message in _JAVA_CAUSES.findall(text) if message.strip()]
    if causes:
        kind, text = next((cause for cause in causes if cause[0] != "SparkException"), causes[-1])
    message = text.partition("\n\nJVM stacktrace")[0].partition("\n\tat ")[0]
    return f"{kind}: {_STATE.sub('', message).strip()}"


def _where(rows: DataFrame, condition: str) -> DataFrame:
    from pyspark.errors import AnalysisException

    try:
        return rows.where(condition)
    except AnalysisException as error:
        variants = [field.name for field in rows.schema.fields if field.dataType.typeName() == "variant"]
        named = [name for name in variants if name in condition]
        hint = f"; {named[0]} is a VARIANT, so cast it, as in {named[0]}::long > 10" if named else ""
        raise click.BadParameter(f"{condition!r}: {_java_message(error)}{hint}", param_hint="--where") from None


JSON = click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")


class CommandReport(NamedTuple):
    """A command's result as a JSON object, and as a message or a function that prints tables."""

    result: dict[str, Any]
    text: str | Callable[[Console, dict[str, Any]], None]
    has_failed: bool = False

    def print(self, *, as_json: bool) -> None:
        """Print the result, and exit with 1 if the command has failed."""
        if isinstance(self.text, str):
            click.echo(json.dumps(self.result) if as_json else self.text)
        elif as_json:
            click.echo(json.dumps(self.result, indent=2, ensure_ascii=False))
        else:
            self.text(show.output(), self.result)
        if self.has_failed:
            sys.exit(1)


def prints_report(command: Callable[..., CommandReport]) -> Callable[..., None]:
    """Add the option --json, and print the report that the command returns."""

    @JSON
    @functools.wraps(command)
    def wrapper(as_json: bool, **arguments: Any) -> None:
        command(**arguments).print(as_json=as_json)

    return wrapper


def location(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value:
        raise click.BadParameter("it is empty")
    return value.rstrip("/") or value


def timeout_option(help: str) -> Callable[[Any], Any]:
    seconds = click.FloatRange(0, min_open=True)
    return click.option("--timeout", type=seconds, default=600.0, show_default=True, help=help)


CHECKPOINT = click.argument("checkpoint", callback=location)
_EPOCH = click.option(
    "--epoch",
    type=click.IntRange(0),
    help="The micro-batch to read, if Spark still has its state. Default: the last.",
)


@pillarbox.command()
@CHECKPOINT
@_EPOCH
@click.option(
    "--top", default=5, show_default=True, type=click.IntRange(0), help="Number of keys to show, largest first."
)
@click.option(
    "--against",
    metavar="CHECKPOINT",
    help="Another checkpoint: list the reasons why its program could not resume from CHECKPOINT.",
)
@prints_report
@with_spark
def inspect(checkpoint: str, epoch: int | None, top: int, against: str | None, open_session: Any) -> CommandReport:
    """Show the contents of CHECKPOINT, or of a savepoint.

    The command shows the program, the epochs, and each operator's keys, timers, watermark and bytes. All state is read
    and checked once. The query may be running.

    To check a changed program, run it once on another checkpoint, as in a test, and pass that checkpoint as --against.
    The exit code is 1 if the program could not resume from CHECKPOINT.
    """
    from pillarbox._runtime.spark.reading.inspection import changes_to, inspect_checkpoint, inspect_savepoint
    from pillarbox._runtime.spark.session.folders import is_savepoint

    with open_session(f"Reading {checkpoint}") as spark:
        if is_savepoint(spark, checkpoint):
            if epoch is not None or against is not None:
                raise click.UsageError(f"{checkpoint} is a savepoint: --epoch and --against are for checkpoints")
            return CommandReport(inspect_savepoint(spark, checkpoint), show.savepoint)
        result = inspect_checkpoint(spark, checkpoint, epoch, top)
        if against is not None:
            result["changes"] = changes_to(spark, checkpoint, against)
    return CommandReport(result, show.checkpoint, has_failed=bool(result.get("changes", {}).get("refused")))


@pillarbox.command()
@CHECKPOINT
@click.argument("uid")
@_EPOCH
@click.option("--where", metavar="SQL", help="SQL condition on rows, such as \"key = 'AA' AND seen > 10\".")
@click.option(
    "--limit", default=20, show_default=True, type=click.IntRange(0), help="Number of rows to print; 0 for all."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row; with --output, a single one.")
@click.option(
    "--output", metavar="DIR", help="Write all rows as Parquet to DIR, which must not exist, instead of printing them."
)
@with_spark
def state(
    checkpoint: str,
    uid: str,
    epoch: int | None,
    where: str | None,
    limit: int,
    as_json: bool,
    output: str | None,
    open_session: Any,
) -> None:
    """Show the state of the operator UID in CHECKPOINT, or in a savepoint.

    There is a row for each key and each of its windows. The columns are key, namespace (a window's start and end), each
    state, timers and subtask. A column of unknown type is a VARIANT: compare it as in --where "seen::long > 10".
    'pillarbox inspect' shows the uids and their states. The query may be running. Your classes are neither needed nor
    run.

    If --output is interrupted, run the command again: it overwrites the incomplete DIR.
    """
    from pillarbox._runtime.spark.failures import unwrapped_failures
    from pillarbox._runtime.spark.reading.state_reader import read_state
    from pillarbox._runtime.spark.session.directories import new_folder
    from pillarbox._runtime.spark.session.folders import reader

    with open_session(f"Reading the state of {uid}") as spark, unwrapped_failures():
        rows = read_state(spark, checkpoint, uid, epoch)
        if where is not None:
            rows = _where(rows, where)
        if output is not None:
            with new_folder(spark, output):
                rows.write.mode("append").parquet(output)
            count = reader(spark).parquet(output).count()
            report = CommandReport({"output": output, "rows": count}, f"{output}: {show.counted(count, 'row')}")
            report.print(as_json=as_json)
            return
        if limit:
            rows = rows.limit(limit + 1)
        texts = rows.selectExpr("to_json(struct(*), map('ignoreNullFields', 'false')) AS line").toLocalIterator()
        lines = (row.line for row in texts)
        if as_json:
            for line in islice(lines, limit or None):
                click.echo(line)
            return
        printed = list(lines)
    show.rows(show.output(), rows.columns, printed, limit)


@pillarbox.command()
@CHECKPOINT
@click.argument("uid")
@click.argument("key")
@prints_report
@with_spark
def key(checkpoint: str, uid: str, key: str, open_session: Any) -> CommandReport:
    """Show KEY's state and timers in the operator UID of CHECKPOINT, and which epochs changed them.

    The command reads the last five epochs that Spark retains. KEY is text, a number, a date, or JSON for a key of
    several columns, such as '["a", 1]'. The query may be running. Your classes are neither needed nor run.
    """
    from pillarbox._runtime.spark.reading.key_life import key_history

    with open_session(f"Reading a key of {uid}") as spark:
        return CommandReport(key_history(spark, checkpoint, uid, key), show.key)


@pillarbox.command()
@CHECKPOINT
@click.option(
    "--parallelism",
    required=True,
    type=click.IntRange(1),
    metavar="N",
    help="Number of tasks that run at the same time.",
)
@prints_report
@with_spark
def rescale(checkpoint: str, parallelism: int, open_session: Any) -> CommandReport:
    """Change the parallelism of CHECKPOINT's query, which must be stopped.

    The state is moved to N Spark partitions. Then start the same program with set_parallelism(N). It resumes exactly
    where it stopped. N is at most the max parallelism, which the first start sets.

    If the command is interrupted, no query starts on the checkpoint until you run the command again. The command needs
    Spark 4.2 or newer; afterwards, the query may run on an older version.
    """
    from pillarbox._runtime.spark.starting.rescale import rescale as change

    with open_session(f"Changing the parallelism to {parallelism}") as spark:
        changed = change(spark, checkpoint, parallelism)
    now = f"now; start with set_parallelism({parallelism})" if changed else "already"
    result = {"checkpoint": checkpoint, "parallelism": parallelism, "changed": changed}
    return CommandReport(result, f"{checkpoint}: its parallelism is {parallelism} {now}")


@pillarbox.command()
@CHECKPOINT
@click.argument("directory", callback=location)
@_EPOCH
@click.option(
    "--stop", is_flag=True, help="Stop the running query between two epochs, and write the savepoint of its last epoch."
)
@click.option(
    "--drain",
    is_flag=True,
    help="With --stop: first emit the final watermark, so that all windows and event-time timers fire.",
)
@timeout_option("With --stop: time limit for stopping the query (seconds).")
@prints_report
@with_spark
def savepoint(
    checkpoint: str, directory: str, epoch: int | None, stop: bool, drain: bool, timeout: float, open_session: Any
) -> CommandReport:
    """Write a savepoint of CHECKPOINT into DIRECTORY, which must not exist.

    A savepoint contains all state of the query as plain Parquet. A program can start from it with any number of
    subtasks and key groups. The query may be stopped or running. The savepoint contains the state after the last
    committed epoch, or after --epoch.

    If the command is interrupted, run it again: it overwrites the incomplete savepoint.

    With --stop, the command sends a request to the query's driver, through the checkpoint. The query must have been
    started with pillarbox.start(...). The request is withdrawn if no driver accepts it in time. DIRECTORY is a path on
    the driver's machine. If the command is killed, run it again; it waits for its earlier request.
    """
    from pillarbox._runtime.spark.running.query_command import request_savepoint
    from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint
    from pillarbox._runtime.spark.savepoint.savepoint import savepoint as write

    if drain and not stop:
        raise click.UsageError("--drain needs --stop: a query that keeps running cannot be drained")
    if stop and epoch is not None:
        raise click.UsageError("--epoch does not work with --stop, which writes the savepoint of the last epoch")
    with open_session(f"Writing a savepoint of {checkpoint}") as spark:
        if stop:
            notify = functools.partial(click.echo, err=True)
            request_savepoint(spark, checkpoint, directory, drain=drain, timeout=timeout, notify=notify)
        else:
            write(spark, checkpoint, directory, epoch=epoch)
        try:
            manifest = open_savepoint(spark, directory).manifest
        except CheckpointMismatchError:
            if not stop:
                raise
            result = {"savepoint": directory, "epoch": None, "operators": None, "bytes": None}
            return CommandReport(result, f"{directory}: the driver has written the savepoint, on its own file system")
    uids = [operator.uid for operator in manifest.operators]
    size = sum(file.length for file in manifest.files.values())
    return CommandReport(
        {"savepoint": directory, "epoch": manifest.epoch, "operators": uids, "bytes": size},
        f"{directory}: a savepoint of epoch {manifest.epoch}; state of {show.counted(len(uids), 'operator')},"
        f" {readable(size)}{'; drained' if manifest.drained else ''}",
    )


def _load_processor(context: click.Context, parameter: click.Parameter, value: str | None) -> Any:
    """Load a ``StatefulProcessor`` from MODULE:NAME: an object, or a class whose constructor takes no arguments."""
    if value is None:
        return None
    if not all(value.partition(":")):
        raise click.BadParameter(f"{value!r} is not MODULE:NAME")
    sys.path.insert(0, "")  # as with python -m
    try:
        processor = resolve_name(value)
        return processor() if isinstance(processor, type) else processor
    except Exception as error:
        raise click.BadParameter(f"{value!r} cannot be loaded: {type(error).__name__}: {error}") from None
    finally:
        sys.path.remove("")


@pillarbox.command()
@CHECKPOINT
@click.argument("directory", callback=location)
@click.option(
    "--processor",
    metavar="MODULE:NAME",
    callback=_load_processor,
    help="The StatefulProcessor of the query, or its class. Not for applyInPandasWithState.",
)
@prints_report
@with_spark
def adopt(checkpoint: str, directory: str, processor: Any, open_session: Any) -> CommandReport:
    """Write a savepoint of a Spark query that ran without pillarbox into DIRECTORY, which must not exist.

    CHECKPOINT belongs to a stopped query with transformWithState, transformWithStateInPandas or applyInPandasWithState.
    It is not changed. The same program with pillarbox.group_by() and env.from_savepoint(DIRECTORY) resumes from the
    last committed micro-batch.

    If the command is interrupted, run it again: it overwrites the incomplete savepoint.
    """
    from pillarbox._runtime.spark.savepoint.adopt import adopt as write
    from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint

    with open_session(f"Writing a savepoint of {checkpoint}") as spark:
        write(spark, checkpoint, directory, processor)
        savepoint = open_savepoint(spark, directory)
        uid = savepoint.manifest.operators[0].uid
        epoch, keys = savepoint.manifest.epoch, savepoint.rows(uid)
    return CommandReport(
        {"savepoint": directory, "epoch": epoch, "operator": uid, "keys": keys},
        f"{directory}: a savepoint of micro-batch {epoch}; {uid!r} has {show.counted(keys, 'key')}",
    )


@pillarbox.command()
@CHECKPOINT
@timeout_option("Time limit for the running epoch (seconds); then it is interrupted.")
@prints_report
@with_spark
def stop(checkpoint: str, timeout: float, open_session: Any) -> CommandReport:
    """Stop CHECKPOINT's running query between two epochs, without a savepoint.

    The running epoch completes and is committed, so the next start repeats no epoch, and 'pillarbox rescale' accepts
    the checkpoint. If the epoch takes longer than --timeout, it is interrupted, and the next start repeats it.

    The command sends a request to the driver, like 'pillarbox savepoint --stop'. A program that calls
    pillarbox.run(query) stops in the same way on SIGTERM.
    """
    from pillarbox._runtime.spark.checkpoint.checkpoint import Checkpoint
    from pillarbox._runtime.spark.running.query_command import stop_query

    with open_session(f"Stopping the query of {checkpoint}") as spark:
        stop_query(spark, checkpoint, timeout=timeout, notify=functools.partial(click.echo, err=True))
        files = Checkpoint(spark, checkpoint)
        last = files.last_committed
        begun = None if files.unfinished is None else last + 1
    where = f"after epoch {last}" if begun is None else f"in epoch {begun}, which the next start repeats"
    result = {"checkpoint": checkpoint, "last_epoch": last, "unfinished_epoch": begun}
    return CommandReport(result, f"{checkpoint}: the query is stopped {where}")
