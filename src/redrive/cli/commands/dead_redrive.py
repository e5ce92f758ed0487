"""`redrive dead redrive|archive|restore|purge`. Edits run here, batch by batch, because a store cannot edit
payloads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from redrive.broker.flows.edited_redrive import EditedRedrive
from redrive.cli import bulk_change, error_output
from redrive.cli.bulk_change import TEXTS, confirm, confirm_options, progress_bar
from redrive.cli.commands.queue_items import change, force_option
from redrive.cli.commands.shell_completion import complete_queue
from redrive.cli.common_options import as_json, command, command_line, pairs, was_given
from redrive.cli.item_output import payload_text
from redrive.cli.output import escape_line, print_json, print_line, print_note, short
from redrive.cli.selection import any_given, condition_options, conditions, item_ids
from redrive.cli.store_target import open_target
from redrive.model.item import Item, Status
from redrive.model.options import MAX_CANARIES
from redrive.model.payload import is_json, merge_patch
from redrive.model.text import format_counts, pluralize

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

_F = TypeVar("_F", bound=Callable[..., Any])
SHOWN = 3
"""The number of items that a dry run shows, before and after the edit."""


class EditOptions(msgspec.Struct, frozen=True):
    """The changes of the items, as merge patches. An empty one changes nothing."""

    payload: Mapping[str, Any] = {}
    headers: Mapping[str, str | None] = {}

    def __bool__(self) -> bool:
        return bool(self.payload or self.headers)


def edit_options(function: _F) -> _F:
    """Add the options. The command gets them as one argument, `edits`."""

    def wrapped(*args: Any, edit: Any, edit_headers: Any, **options: Any) -> Any:
        return function(*args, edits=EditOptions(edit or {}, edit_headers), **options)

    wrapped.__doc__, wrapped.__name__ = function.__doc__, function.__name__
    wrapped.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = click.option(
        "--edit-header", "edit_headers", multiple=True, metavar="NAME=VALUE", callback=_headers,
        help="Set a header; NAME= removes it."
    )(wrapped)  # fmt: skip
    result: _F = click.option(
        "--edit", metavar="JSON", callback=_patch,
        help="Change the payload first: a JSON merge patch, an object in which null removes a key.",
    )(decorated)  # fmt: skip
    return result


def _patch(context: click.Context, parameter: click.Parameter, value: str | None) -> Mapping[str, Any] | None:
    if value is None:
        return None
    try:
        return msgspec.json.decode(value, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise click.BadParameter(f"it is no JSON object ({error}), as in '{{\"amount\": 12.5}}'") from None


def _headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str | None]:
    return {name: value or None for name, value in pairs(values)}


def run(
    broker: Broker,
    where: Mapping[str, Any],
    edits: EditOptions,
    *,
    named: bool,
    to: str | None,
    note: str | None,
    force: bool,
    dry_run: bool,
    yes: int | str | None,
    rate: float | None,
    canary: int,
    canary_success_ratio: float,
    wait: str,
    no_wait: bool,
    limit: int | None,
) -> None:
    """Edit and redrive all that match. `named`: the items were named one by one, so no confirmation is needed."""
    if no_wait:
        raise click.UsageError("--edit changes items in this process, which must run until the end: omit --no-wait")
    ids = list(where["ids"]) if named and limit is None else _ids(broker, where)[:limit]
    if dry_run:
        _preview(broker, ids, edits)
        return
    if ids and (not named or yes is not None):
        confirm("edit and redrive", len(ids), yes, final=False)
    changed = 0
    with progress_bar("edit and redrive", len(ids)) as shown:

        def progress(now: EditedRedrive) -> None:
            nonlocal changed
            changed, ended = now.changed, now.ended_canaries
            title = "edit and redrive" if ended is None else f"waits for {changed} canaries, {ended} have ended"
            shown.at(changed + now.skipped.total(), title)

        try:
            done = broker.redrive_edited(
                ids,
                edit=edits.payload or None,
                edit_headers=edits.headers or None,
                to=to,
                rate=rate,
                canary=canary,
                canary_success_ratio=canary_success_ratio,
                wait=wait,
                force=force,
                note=note,
                progress=progress,
            )
        except KeyboardInterrupt:
            print_note(f"\n{pluralize(changed, 'item')} were redriven before this; the rest is unchanged.")
            raise
    _print_result(done)


def _ids(broker: Broker, where: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    cursor = None
    while True:
        page = broker.find(order="oldest", limit=1000, cursor=cursor, redacted=False, **{"status": "dead", **where})
        found += [item.id for item in page.items]
        cursor = page.cursor
        if cursor is None:
            return found


def _preview(broker: Broker, ids: list[str], edits: EditOptions) -> None:
    changes = [_change(broker.get(id), edits) for id in ids[:SHOWN]]
    if as_json():
        print_json({"dry_run": True, "verb": "redrive", "matched": len(ids), "samples": changes})
        return
    print_line(f"Nothing was changed; {pluralize(len(ids), 'item')} would be edited and redriven, as these:")
    for each in changes:
        print_line(escape_line(f"  {short(each['id'])}  {each['before']}"))
        print_line(escape_line(f"  {'':8}→ {each['after']}"))


def _change(item: Item, edits: EditOptions) -> dict[str, Any]:
    before: Any = payload_text(item)
    after: Any = before
    if edits.payload:
        after = (
            msgspec.json.encode(merge_patch(item.value, edits.payload)).decode()
            if is_json(item.content_type)
            else "cannot be edited: it is not JSON"
        )
    headers = merge_patch(dict(item.headers), edits.headers) if edits.headers else dict(item.headers)
    return {"id": item.id, "before": before, "after": after, "headers": headers}


def _print_result(done: EditedRedrive) -> None:
    """Print the result, and exit with its code."""
    if as_json():
        print_json({"verb": "redrive", "matched": done.total, "changed": done.changed, "skipped": done.skipped,
                    "untouched": done.untouched, "problem": done.problem, "ids": done.ids})  # fmt: skip
    else:
        print_line(f"{pluralize(done.changed, 'item')} of {done.total:,} edited and redriven")
        if done.skipped:
            print_line(f"  skipped: {format_counts(done.skipped)}")
            for id, refusal in done.refusals.values():
                print_line(f"    {escape_line(f'{short(id)}: {refusal}')}")
        if done.problem:
            print_line(f"  stopped: {escape_line(done.problem)}; {pluralize(done.untouched, 'item')} not touched")
        elif done.changed:
            print_note(f"  the originals are in the archive, unchanged: {command_line('dead list --archived')}")
    if done.problem:
        click.get_current_context().exit(error_output.STOPPED)
    click.get_current_context().exit(error_output.exit_of_change(done.changed, done.skipped.total()))


ids_argument = click.argument("ids", nargs=-1, metavar="[ID]...")
all_option = click.option(
    "--all", "everything", is_flag=True, help="All dead letters; for restore and purge: all archived items."
)


def _chosen(ids: tuple[str, ...], everything: bool, what: str) -> None:
    """Raise unless either ids or conditions select the items."""
    ways = [bool(ids), any_given() or everything]
    if not any(ways):
        raise click.UsageError(f"Which {what}? Give ids, or conditions such as --group and -q, or --all")
    if all(ways):
        raise click.UsageError("Ids and conditions were given; omit one of the two")


@command("redrive")
@ids_argument
@condition_options()
@all_option
@click.option("--to", metavar="QUEUE", shell_complete=complete_queue, help=TEXTS["to"])
@click.option("--canary", type=click.IntRange(0, MAX_CANARIES), default=0, metavar="N", help=TEXTS["canary"])
@click.option("--canary-success", "canary_success_ratio",
              type=click.FloatRange(0, 1, min_open=True), default=1.0,
              metavar="SHARE", help=TEXTS["canary_success_ratio"])  # fmt: skip
@edit_options
@force_option
@bulk_change.operation_options
@confirm_options(final=False)
def redrive(
    ids: tuple[str, ...],
    everything: bool,
    to: str | None,
    edits: EditOptions,
    force: bool,
    dry_run: bool,
    note: str | None,
    **options: Any,
) -> None:
    """Send dead letters back to work: in their queue, or from a dead queue to the queue that each came from.

    Name them by ID, or select many: by --group, -q, --since, --where…, or --all. Then you confirm the number of items,
    and an operation in the store redrives them: it continues after Ctrl-C and after a crash, and `redrive undo` undoes
    it.

    \b
    redrive dead redrive 7f3a90c1
    redrive dead redrive --group 51c2 --dry-run
    redrive dead redrive --group 51c2 --canary 5 --rate 50/s --note 'the gateway is back'
    redrive dead redrive 7f3a90c1 --edit '{"amount": 12.5}'
    """
    _chosen(ids, everything, "items are to be redriven")
    if was_given("canary_success_ratio") and not options["canary"]:
        raise click.UsageError("--canary-success is for --canary; omit it, or give both")
    with open_target() as broker:
        if edits:
            where = {"ids": item_ids(broker, ids)} if ids else conditions(broker)
            run(broker, where, edits, named=bool(ids), to=to, note=note, force=force, dry_run=dry_run, **options)
        elif ids and bulk_change.is_plain(dry_run, options):
            yes = options["yes"]
            change(broker, ids, "redrive", lambda some: broker.redrive(some, to=to, force=force, note=note), yes=yes)
        elif force:
            raise click.UsageError(
                "--force is for items named by ID, and goes with no option of an operation, such as --rate or --dry-run"
            )
        else:
            where = {"status": Status.DEAD, **({"ids": item_ids(broker, ids)} if ids else conditions(broker))}
            bulk_change.run(broker, "redrive", where, named=bool(ids), to=to, note=note, dry_run=dry_run, **options)


def _simple(verb: str, status: Status, ids: tuple[str, ...], everything: bool, act: str, **options: Any) -> None:
    """Execute a verb that takes only ids or conditions."""
    _chosen(ids, everything, f"items are to be {act}")
    with open_target() as broker:
        if ids and bulk_change.is_plain(options["dry_run"], options) and not options["note"]:
            method = getattr(broker, verb)
            change(broker, ids, verb, lambda some: method(some), yes=options["yes"])
            return
        if verb == "archive":  # items of any status can be archived; by default dead letters
            where = {"ids": item_ids(broker, ids), "status": "any"} if ids else {"status": status, **conditions(broker)}
        else:
            where = {"ids": item_ids(broker, ids), "status": status} if ids else conditions(broker, status=status)
        bulk_change.run(broker, verb, where, named=bool(ids), **options)


@command("archive")
@ids_argument
@condition_options()
@all_option
@bulk_change.operation_options
@confirm_options(final=False)
def archive(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Archive dead letters, or any other items that are not leased: name them by ID, or with --where status=….

    They no longer count as dead letters, and `redrive dead restore` restores them.
    """
    _simple("archive", Status.DEAD, ids, everything, "archived", **options)


@command("restore")
@ids_argument
@condition_options()
@all_option
@bulk_change.operation_options
@confirm_options(final=False)
def restore(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Restore items from the archive to the status that they had. --where dropped=true: those that were dropped."""
    _simple("restore", Status.ARCHIVED, ids, everything, "restored", **options)


@command("purge")
@ids_argument
@condition_options()
@all_option
@bulk_change.operation_options
@confirm_options(final=True)
def purge(ids: tuple[str, ...], everything: bool, **options: Any) -> None:
    """Remove archived items permanently. This cannot be undone; the audit records who did it.

    Archive dead letters first: redrive dead archive.
    """
    _simple("purge", Status.ARCHIVED, ids, everything, "purged", **options)
