"""The command line, ``pillarbox``: a look at checkpoints, and what is done to them while their query is stopped."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    try:
        from pillarbox._cli.commands import pillarbox
    except ImportError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit(f"pillarbox: the command line needs {error.name}: pip install 'pillarbox[cli]'")
    pillarbox(prog_name="pillarbox")
