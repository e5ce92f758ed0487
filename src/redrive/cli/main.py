"""The command itself: which subcommands there are. Each is imported when it is asked for, so that help is fast."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys

import click

from redrive.errors import RedriveError

COMMANDS = {
    "work": ("redrive.worker.command:work", "Run the tasks of an app."),
}
"""Each subcommand: where it is, and what it does in a few words."""


class _Group(click.Group):
    """Knows its commands by name only, until one of them runs."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in COMMANDS.items()])


def _print_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"redrive {importlib.metadata.version('redrive')}")
        context.exit()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
              help="Print the version.")  # fmt: skip
def redrive() -> None:
    """Durable queues in which failed work is kept, says why it failed, and comes back when you say so.

    In a folder with jobs.py, which has an App called app: redrive work jobs:app

    What died is looked at and brought back from Python: app.broker.groups() and app.broker.redrive(id).
    """


def main() -> None:
    """Run the command line of this process. An error of Redrive is one line on stderr and exit code 1."""
    try:
        redrive(prog_name="redrive")
    except RedriveError as error:
        click.echo(f"redrive: {error}", err=True)
        sys.exit(1)
