"""Groups of commands, imported on first use: `redrive queue …`, `redrive dead …` and `redrive capture …`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

from redrive.model.text import suggest


class LazyGroup(click.Group):
    """A group whose commands are imported only when one of them runs."""

    def __init__(self, *args: Any, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        """`table`: each command with its location, as in `package.module:attribute`, and its short help."""
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the table."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in self.table:
            return None
        module, _, attribute = self.table[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest a command if there is none of that name."""
        if args and not args[0].startswith("-") and args[0] not in self.table:
            meant = suggest(args[0], tuple(self.table), {}) or f"; there are {', '.join(self.table)}"
            raise click.UsageError(f"There is no command '{args[0]}'{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands without importing any of them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, short) for name, (_, short) in self.table.items()])


QUEUE_COMMANDS = {
    "create": ("redrive.cli.commands.queue_manage:create", "Make a queue."),
    "list": ("redrive.cli.commands.queue_manage:list_", "All queues with their counts, or the items of one."),
    "show": ("redrive.cli.commands.queue_manage:show", "One queue: settings, counts, what it waits for."),
    "update": ("redrive.cli.commands.queue_manage:update", "Change settings."),
    "delete": ("redrive.cli.commands.queue_manage:delete", "Remove a queue and everything in it."),
    "push": ("redrive.cli.commands.queue_push:push", "Put items into a queue."),
    "drop": ("redrive.cli.commands.queue_items:drop", "Drop single items: they can be restored for a time."),
    "retry": ("redrive.cli.commands.queue_items:retry", "Try dead or failed items again, where they are."),
    "reschedule": ("redrive.cli.commands.queue_items:reschedule", "Change from when items that wait may be leased."),
    "fail": (
        "redrive.cli.commands.queue_items:fail",
        "Count a failure against items: tried again or dead, as the settings say.",
    ),
    "done": ("redrive.cli.commands.queue_items:done", "Take items as completed, though no worker said so."),
    "drain": ("redrive.cli.commands.queue_drain:drain", "Drop everything that waits in a queue."),
    "prune": ("redrive.cli.commands.queue_drain:prune", "Remove what is over for good: completed and archived items."),
    "pause": ("redrive.cli.commands.queue_manage:pause", "Give no more items to workers. Puts go on."),
    "resume": ("redrive.cli.commands.queue_manage:resume", "Give items to workers again."),
    "watch": ("redrive.cli.commands.queue_watch:watch", "Live counts."),
    "logs": ("redrive.cli.commands.queue_watch:logs", "What happened, to all items or to one; --follow goes on."),
}


@click.group(cls=LazyGroup, table=QUEUE_COMMANDS)
def queue() -> None:
    """Queues and what is in them.

    \b
    redrive queue create emails --attempts 5 --backoff 10s
    redrive queue push emails '{"to": "ann@example.com"}'
    redrive queue list
    """


DEAD_COMMANDS = {
    "groups": ("redrive.cli.commands.dead_inspect:groups", "What died, by cause. Begin here."),
    "list": ("redrive.cli.commands.dead_inspect:list_", "Dead letters, the newest first."),
    "show": ("redrive.cli.commands.dead_inspect:show", "One item: what, why, traceback, history, what to type next."),
    "search": ("redrive.cli.commands.dead_inspect:search", "Find dead letters by words of their error or payload."),
    "redrive": ("redrive.cli.commands.dead_redrive:redrive", "Bring dead letters back to work."),
    "archive": (
        "redrive.cli.commands.dead_redrive:archive",
        "Put dead letters or other items aside; they can be restored.",
    ),
    "restore": ("redrive.cli.commands.dead_redrive:restore", "Take items out of the archive."),
    "purge": ("redrive.cli.commands.dead_redrive:purge", "Remove archived items for good."),
    "export": ("redrive.cli.commands.dead_export:export", "Write items as lines of JSON."),
    "import": ("redrive.cli.commands.dead_export:import_", "Put what an export wrote."),
}


@click.group(cls=LazyGroup, table=DEAD_COMMANDS)
def dead() -> None:
    """What died, why, and how it comes back.

    \b
    redrive dead groups                              causes, the most frequent first
    redrive dead show 7f3a90c1                       one item in full
    redrive dead redrive --group 51c2 --canary 5     bring a group back, five first
    """


CAPTURE_COMMANDS = {
    "status": ("redrive.cli.commands.capture_inspect:status", "One screen: counts, causes, what to type next."),
    "list": ("redrive.cli.commands.capture_inspect:list_", "Captured tasks, the newest first."),
    "show": ("redrive.cli.commands.capture_inspect:show", "One task: what failed, why, and its next retry."),
    "retry": ("redrive.cli.commands.capture_retry:retry", "Make tasks due now, or run them here with --app."),
    "archive": ("redrive.cli.commands.capture_retry:archive", "Put tasks aside; they can be restored."),
    "restore": ("redrive.cli.commands.capture_retry:restore", "Take tasks out of the archive."),
    "clear": ("redrive.cli.commands.capture_retry:clear", "Drop all tasks that wait or are exhausted."),
    "templates": ("redrive.cli.commands.capture_inspect:templates", "Common failures, and what helps against each."),
}


@click.group(cls=LazyGroup, table=CAPTURE_COMMANDS)
def capture() -> None:
    """Calls that failed outside a queue, and were captured.

    \b
    redrive capture status                     what waits, what is exhausted, and why
    redrive capture show wf_abc123             one task
    redrive capture retry --exhausted          retry all that is exhausted
    """
