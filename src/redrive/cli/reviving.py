"""`redrive dead redrive|archive|restore|purge`: decide what becomes of what died."""

from __future__ import annotations

from typing import Any

import click

from redrive.cli import bulk, editing
from redrive.cli.completion import complete_queue
from redrive.cli.conditions import any_given, condition_options, conditions
from redrive.cli.confirming import confirm_options
from redrive.cli.connection import opened
from redrive.cli.ids import item_ids
from redrive.cli.items import change, force_option
from redrive.cli.options import command, was_given
from redrive.model.item import Status

ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")
all_option = click.option("--all", "everything", is_flag=True, help="All there are.")


def _chosen(ids: tuple[str, ...], everything: bool, what: str) -> None:
    """Raise unless it is clear which items are meant."""
    ways = [bool(ids), any_given() or everything]
    if not any(ways):
        raise click.UsageError(f"Which {what}? Give ids, or conditions such as --group and -q, or --all")
    if all(ways):
        raise click.UsageError("Ids and conditions were given; leave one of the two out")


@command("redrive")
@ids_argument
@condition_options()
@all_option
@click.option("--to", metavar="QUEUE", shell_complete=complete_queue,
              help="To this queue; else to where each item died, or is.")  # fmt: skip
@click.option("--canary", type=click.IntRange(0, 100), default=0, metavar="N",
              help="Bring N back first; the rest follows once these have completed.")  # fmt: skip
@click.option("--canary-share", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True,
              metavar="SHARE", help="How many of the canaries have to complete, from 0 to 1.")  # fmt: skip
@editing.edit_options
@force_option
@bulk.operation_options
@confirm_options(final=False)
def redrive(
    ids: tuple[str, ...],
    everything: bool,
    to: str | None,
    edits: editing.Edits,
    force: bool,
    dry_run: bool,
    note: str | None,
    **options: Any,
) -> None:
    """Bring dead letters back to work: in place, or from a dead queue to where each came from.

    Name them by ID, or choose many: by --group, -q, --since, --where…, or --all. Then the number of items is asked
    back, and an operation in the store does it: it goes on after Ctrl-C and after a crash, and `redrive undo` takes it
    back.

    \b
    redrive dead redrive 7f3a90c1
    redrive dead redrive --group 51c2 --dry-run
    redrive dead redrive --group 51c2 --canary 5 --rate 50/s --note 'the gateway is back'
    redrive dead redrive 7f3a90c1 --edit '{"amount": 12.5}'
    """
    _chosen(ids, everything, "items are to be brought back")
    if was_given("canary_share") and not options["canary"]:
        raise click.UsageError("--canary-share is for --canary; leave it out, or give both")
    with opened() as broker:
        if edits:
            where = {"ids": item_ids(broker, ids)} if ids else conditions(broker)
            editing.run(
                broker, where, edits, named=bool(ids), to=to, note=note, force=force, dry_run=dry_run, **options
            )
        elif ids and bulk.is_plain(dry_run, options):
            yes = options["yes"]
            change(broker, ids, "redrive", lambda some: broker.redrive(some, to=to, force=force, note=note), yes=yes)
        elif force:
            raise click.UsageError(
                "--force is for items named by ID, and goes with no --canary, --rate, --no-wait or --dry-run"
            )
        else:
            where = {"status": Status.DEAD, **({"ids": item_ids(broker, ids)} if ids else conditions(broker))}
            bulk.run(broker, "redrive", where, named=bool(ids), to=to, note=note, dry_run=dry_run, **options)


def _simple(verb: str, status: Status, ids: tuple[str, ...], everything: bool, act: str, **options: Any) -> None:
    """A verb that takes ids or conditions, and nothing else."""
    _chosen(ids, everything, f"items are to be {act}")
    with opened() as broker:
        if ids and bulk.is_plain(options["dry_run"], options) and not options["note"]:
            method = getattr(broker, verb)
            change(broker, ids, verb, lambda some: method(some), yes=options["yes"])
            return
        where = {"ids": item_ids(broker, ids), "status": status} if ids else conditions(broker, status=status)
        bulk.run(broker, verb, where, named=bool(ids), **options)


@command("archive")
@ids_argument
@condition_options()
@all_option
@bulk.operation_options
@confirm_options(final=False)
def archive(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Put dead letters aside. They count for nothing, and `redrive dead restore` brings them back."""
    _simple("archive", Status.DEAD, ids, everything, "archived", **options)


@command("restore")
@ids_argument
@condition_options()
@all_option
@bulk.operation_options
@confirm_options(final=False)
def restore(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Take items out of the archive, to the status they had."""
    _simple("restore", Status.ARCHIVED, ids, everything, "restored", **options)


@command("purge")
@ids_argument
@condition_options()
@all_option
@bulk.operation_options
@confirm_options(final=True)
def purge(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Remove archived items for good. This cannot be taken back; the audit says who did it.

    Dead letters are archived first: redrive dead archive.
    """
    _simple("purge", Status.ARCHIVED, ids, everything, "purged", **options)
