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
    "create": ("redrive.cli.commands.queue_manage:create", "Create a queue."),
    "list": ("redrive.cli.commands.queue_manage:list_", "List all queues with their counts, or the items of one."),
    "show": ("redrive.cli.commands.queue_manage:show", "Show one queue: settings, counts, workers, breakers."),
    "update": ("redrive.cli.commands.queue_manage:update", "Change the settings of a queue."),
    "delete": ("redrive.cli.commands.queue_manage:delete", "Remove a queue and all its items."),
    "push": ("redrive.cli.commands.queue_push:push", "Put items into a queue."),
    "drop": ("redrive.cli.commands.queue_items:drop", "Drop single items; they can be restored for a time."),
    "retry": ("redrive.cli.commands.queue_items:retry", "Retry dead or failed items in their current queue."),
    "reschedule": (
        "redrive.cli.commands.queue_items:reschedule",
        "Change the time from which waiting items may be leased.",
    ),
    "fail": (
        "redrive.cli.commands.queue_items:fail",
        "Record a failure of items: they are retried or dead, as the settings say.",
    ),
    "done": ("redrive.cli.commands.queue_items:done", "Mark items as completed without a worker."),
    "drain": ("redrive.cli.commands.queue_drain:drain", "Drop all waiting items of a queue."),
    "prune": ("redrive.cli.commands.queue_drain:prune", "Remove completed and archived items permanently."),
    "pause": ("redrive.cli.commands.queue_manage:pause", "Stop giving items to workers; puts continue."),
    "resume": ("redrive.cli.commands.queue_manage:resume", "Give items to workers again."),
    "watch": ("redrive.cli.commands.queue_watch:watch", "Show live counts."),
    "logs": ("redrive.cli.commands.queue_watch:logs", "Show events of all items or of one; --follow waits for more."),
}


@click.group(cls=LazyGroup, table=QUEUE_COMMANDS)
def queue() -> None:
    """Queues and their items.

    \b
    redrive queue create emails --attempts 5 --backoff 10s
    redrive queue push emails '{"to": "ann@example.com"}'
    redrive queue list
    """


DEAD_COMMANDS = {
    "groups": ("redrive.cli.commands.dead_inspect:groups", "Show dead letters grouped by cause. Start here."),
    "list": ("redrive.cli.commands.dead_inspect:list_", "List dead letters, the newest first."),
    "show": ("redrive.cli.commands.dead_inspect:show", "Show one item: error, payload, history, next commands."),
    "search": ("redrive.cli.commands.dead_inspect:search", "Find dead letters by words in their error or payload."),
    "redrive": ("redrive.cli.commands.dead_redrive:redrive", "Send dead letters back to work."),
    "archive": (
        "redrive.cli.commands.dead_redrive:archive",
        "Archive dead letters or other items; they can be restored.",
    ),
    "restore": ("redrive.cli.commands.dead_redrive:restore", "Restore items from the archive."),
    "purge": ("redrive.cli.commands.dead_redrive:purge", "Remove archived items permanently."),
    "export": ("redrive.cli.commands.dead_export:export", "Write items as lines of JSON."),
    "import": ("redrive.cli.commands.dead_export:import_", "Put the items of an export."),
}


@click.group(cls=LazyGroup, table=DEAD_COMMANDS)
def dead() -> None:
    """Dead letters: items that failed and are not retried. See why, and redrive them.

    \b
    redrive dead groups                              causes, the most frequent first
    redrive dead show 7f3a90c1                       one item in full
    redrive dead redrive --group 51c2 --canary 5     redrive a group, first five of its items
    """


CAPTURE_COMMANDS = {
    "status": ("redrive.cli.commands.capture_inspect:status", "Show an overview: counts, causes, next commands."),
    "list": ("redrive.cli.commands.capture_inspect:list_", "List captured tasks, the newest first."),
    "show": ("redrive.cli.commands.capture_inspect:show", "Show one task: its error and its next retry."),
    "retry": ("redrive.cli.commands.capture_retry:retry", "Make tasks due now, or run them here with --app."),
    "archive": ("redrive.cli.commands.capture_retry:archive", "Archive tasks; they can be restored."),
    "restore": ("redrive.cli.commands.capture_retry:restore", "Restore tasks from the archive."),
    "clear": ("redrive.cli.commands.capture_retry:clear", "Drop all waiting and exhausted tasks."),
    "templates": ("redrive.cli.commands.capture_inspect:templates", "List common failures, with advice for each."),
}


@click.group(cls=LazyGroup, table=CAPTURE_COMMANDS)
def capture() -> None:
    """Calls that failed outside a queue, and were captured.

    \b
    redrive capture status                     which tasks wait, which are exhausted, and why
    redrive capture show wf_abc123             one task
    redrive capture retry --exhausted          retry all exhausted tasks
    """
