"""The command line with all of its commands."""

from __future__ import annotations

from pillarbox._cli.commands import pillarbox
from pillarbox._cli.watching import bundle, dashboard

for _command in (dashboard, bundle):
    pillarbox.add_command(_command)
