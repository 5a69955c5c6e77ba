"""The command line ``pillarbox``: shows queries and checkpoints, and changes checkpoints of stopped queries."""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from pillarbox_tools.cli.all_commands import commands
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        extra = {"click": "cli", "rich": "cli", "pyspark": "cli,spark"}.get(package)
        if extra is None:
            raise
        sys.exit(f"pillarbox: the command line needs {package}: pip install 'pillarbox[{extra}]'")
    from pillarbox_tools.cli.replay_process import replay_in_new_process

    # Passed only here, because commands must not replace the process of another program, such as a test.
    commands(prog_name="pillarbox", obj=replay_in_new_process)
