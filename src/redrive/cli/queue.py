"""`redrive queue …`: which commands there are."""

from __future__ import annotations

import click

from redrive.cli.lazy import LazyGroup

QUEUE_COMMANDS = {
    "create": ("redrive.cli.queues:create", "Make a queue."),
    "list": ("redrive.cli.queues:list_", "All queues with their counts, or the items of one."),
    "show": ("redrive.cli.queues:show", "One queue: settings, counts, what it waits for."),
    "update": ("redrive.cli.queues:update", "Change settings."),
    "delete": ("redrive.cli.queues:delete", "Remove a queue and everything in it."),
    "push": ("redrive.cli.pushing:push", "Put items into a queue."),
    "drop": ("redrive.cli.items:drop", "Remove single items for good."),
    "retry": ("redrive.cli.items:retry", "Try dead or failed items again, where they are."),
    "fail": ("redrive.cli.items:fail", "Count a failure against items: tried again or dead, as the settings say."),
    "done": ("redrive.cli.items:done", "Take items as completed, though no worker said so."),
    "drain": ("redrive.cli.emptying:drain", "Remove everything that waits in a queue."),
    "prune": ("redrive.cli.emptying:prune", "Remove what is over: completed and archived items."),
    "pause": ("redrive.cli.queues:pause", "Give no more items to workers. Puts go on."),
    "resume": ("redrive.cli.queues:resume", "Give items to workers again."),
    "watch": ("redrive.cli.watching:watch", "Live counts."),
    "logs": ("redrive.cli.watching:logs", "What happened, to all items or to one; --follow goes on."),
}


@click.group(cls=LazyGroup, table=QUEUE_COMMANDS)
def queue() -> None:
    """Queues and what is in them.

    \b
    redrive queue create emails --attempts 5 --backoff 10s
    redrive queue push emails '{"to": "ann@example.com"}'
    redrive queue list
    """
