"""The command ``key``: the state of one key."""

from __future__ import annotations

from typing import Any

import click

from pillarbox_tools.cli import show
from pillarbox_tools.cli.commands import CHECKPOINT, JSON, print_result, with_spark


@click.command()
@CHECKPOINT
@click.argument("uid")
@click.argument("key")
@JSON
@with_spark
def key(checkpoint: str, uid: str, key: str, as_json: bool, open_session: Any) -> None:
    """Show the state and timers of KEY of the operator UID in CHECKPOINT, and the epochs that changed them.

    It reads the last five epochs that Spark still has. KEY is text, a number, a date, or JSON for a key of several
    columns, such as '["a", 1]'. The query may be running. None of your classes is needed or run.
    """
    from pillarbox._runtime.spark.reading.key_life import key_history

    with open_session(f"Reading a key of {uid}") as spark:
        result = key_history(spark, checkpoint, uid, key)
    print_result(result, show.key, as_json=as_json)
