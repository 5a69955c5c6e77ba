"""Assembles the command line from all commands."""

from __future__ import annotations

import click

from pillarbox_tools.cli.commands import pillarbox
from pillarbox_tools.cli.recordings import record
from pillarbox_tools.cli.replaying import replay
from pillarbox_tools.cli.watching import bundle, dashboard, doctor, memory

commands: click.Group = pillarbox
for _command in (dashboard, doctor, memory, bundle, record, replay):
    commands.add_command(_command)
