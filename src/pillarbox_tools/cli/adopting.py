"""The command ``adopt``."""

from __future__ import annotations

import sys
from pkgutil import resolve_name
from typing import Any

import click

from pillarbox_tools.cli import show
from pillarbox_tools.cli.commands import CHECKPOINT, JSON, location, print_message, with_spark


class _Processor(click.ParamType[Any]):
    """A ``StatefulProcessor`` as MODULE:NAME: an object, or a class whose constructor takes no arguments."""

    name = "module:name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        module, _, name = value.partition(":")
        if not module or not name:
            self.fail(f"{value!r} is not MODULE:NAME", param, ctx)
        sys.path.insert(0, "")  # as with python -m
        try:
            processor = resolve_name(value)
            return processor() if isinstance(processor, type) else processor
        except Exception as error:
            self.fail(f"{value!r} cannot be loaded: {type(error).__name__}: {error}", param, ctx)
        finally:
            sys.path.remove("")


@click.command()
@CHECKPOINT
@click.argument("directory", callback=location)
@click.option(
    "--processor",
    type=_Processor(),
    help="The StatefulProcessor of the query, or its class. Not for applyInPandasWithState.",
)
@JSON
@with_spark
def adopt(checkpoint: str, directory: str, processor: Any, as_json: bool, open_session: Any) -> None:
    """Write a savepoint of a query that ran on Spark itself into DIRECTORY, which must not exist.

    CHECKPOINT belongs to a stopped query with transformWithState, transformWithStateInPandas or applyInPandasWithState.
    It is only read. The same program with pillarbox.group_by() and env.from_savepoint(DIRECTORY) resumes from the last
    committed micro-batch.

    If the command is interrupted, there is no savepoint. Run the command again: it overwrites DIRECTORY.
    """
    from pillarbox._runtime.spark.savepoint.adopt import adopt as write
    from pillarbox._runtime.spark.savepoint.savepoint import open_savepoint

    with open_session(f"Writing a savepoint of {checkpoint}") as spark:
        write(spark, checkpoint, directory, processor)
        savepoint = open_savepoint(spark, directory)
        uid = savepoint.manifest.operators[0].uid
        epoch, keys = savepoint.manifest.epoch, savepoint.rows(uid)
    print_message(
        {"savepoint": directory, "epoch": epoch, "operator": uid, "keys": keys},
        f"{directory}: a savepoint of micro-batch {epoch}; {uid!r} has {show.counted(keys, 'key')}",
        as_json=as_json,
    )
