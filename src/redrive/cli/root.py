"""The root of the command line: options of every command, errors and exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from redrive import __version__
from redrive.cli import error_output
from redrive.cli.command_groups import LazyGroup
from redrive.cli.common_options import common_options
from redrive.cli.main import COMMANDS
from redrive.errors import RedriveError

WELCOME = """\
Durable queues that keep failed work with the reason of the failure, until you redrive it.

Start with these three commands:

  redrive demo            creates an example store with dead letters, to practise on
  redrive dead groups     dead letters grouped by cause, the largest group first
  redrive queue list      every queue with its number of items

Run the tasks of your own program: redrive work jobs:app
All commands: redrive --help
"""


class _Root(LazyGroup):
    """The root group. It converts every error of Redrive to a line or two and an exit code."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the group of a command that was typed without it."""
        if args and args[0] not in self.table:
            from redrive.cli import command_groups

            groups = {"queue": command_groups.QUEUE_COMMANDS, "dead": command_groups.DEAD_COMMANDS}
            meant = [f"redrive {name} {args[0]}" for name, table in groups.items() if args[0] in table]
            if meant:
                raise click.UsageError(f"There is no command '{args[0]}'; did you mean {' or '.join(meant)}?", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Print errors here, while the context still has the output format."""
        try:
            return super().invoke(ctx)
        except RedriveError as error:
            error_output.print_error(error)
            ctx.exit(error_output.exit_code(error.code))
        except click.ClickException as error:
            error_output.show_usage(error)
            ctx.exit(error.exit_code)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run as click does, except that Ctrl-C has its own exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        code: Any = error_output.INTERRUPTED
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            code = error.exit_code
        except (click.Abort, KeyboardInterrupt):
            click.echo("redrive: interrupted", err=True)
        except BrokenPipeError:
            # The reader of the output closed it. The interpreter must not write the rest when it exits.
            error_output.forget_output()
            code = error_output.FAILED
        sys.exit(code if isinstance(code, int) else error_output.OK)


def _print_version(context: click.Context, parameter: click.Parameter, asked: bool) -> None:
    if asked:
        click.echo(f"redrive {__version__}")
        context.exit()


@click.group(
    cls=_Root,
    table=COMMANDS,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@common_options
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version,
              help="Print the version.")  # fmt: skip
@click.pass_context
def redrive(context: click.Context) -> None:
    """Durable queues that keep failed work with the reason of the failure, until you redrive it.

    Start with: redrive demo. It creates an example store with dead letters, and prints the commands to type next.

    Run the tasks of an App called app in the file jobs.py: redrive work jobs:app

    The store is selected by --url, else by the variable REDRIVE_URL, else by the file redrive.toml in the working
    directory or above it; the default is the file redrive.db in the working directory. The options of the store, and
    -o, may also follow the command. A redrive.toml that another user can change is refused, and a token is sent to an
    address in one only after redrive config trust.
    """
    if context.invoked_subcommand is None:
        click.echo(WELCOME, nl=False)
