"""`redrive dead …`: which commands there are."""

from __future__ import annotations

import click

from redrive.cli.lazy import LazyGroup

DEAD_COMMANDS = {
    "groups": ("redrive.cli.letters:groups", "What died, by cause. Begin here."),
    "list": ("redrive.cli.letters:list_", "Dead letters, the newest first."),
    "show": ("redrive.cli.letters:show", "One item: what, why, traceback, history, what to type next."),
    "search": ("redrive.cli.letters:search", "Find dead letters by words of their error or payload."),
    "redrive": ("redrive.cli.reviving:redrive", "Bring dead letters back to work."),
    "archive": ("redrive.cli.reviving:archive", "Put dead letters aside; they can be restored."),
    "restore": ("redrive.cli.reviving:restore", "Take items out of the archive."),
    "purge": ("redrive.cli.reviving:purge", "Remove archived items for good."),
    "export": ("redrive.cli.transferring:export", "Write items as lines of JSON."),
    "import": ("redrive.cli.transferring:import_", "Put what an export wrote."),
}


@click.group(cls=LazyGroup, table=DEAD_COMMANDS)
def dead() -> None:
    """What died, why, and how it comes back.

    \b
    redrive dead groups                              causes, the most frequent first
    redrive dead show 7f3a90c1                       one item in full
    redrive dead redrive --group 51c2 --canary 5     bring a group back, five first
    """
