"""`redrive audit`: who changed what by hand, or by a rule."""

from __future__ import annotations

import click

from redrive.cli.connection import opened
from redrive.cli.forms import form
from redrive.cli.options import as_json, command
from redrive.cli.printing import print_json, remark, say, short, table, with_short_ids
from redrive.model.shown import moment
from redrive.store import AuditEntry

_COLUMNS = {"when": "<", "who": "~", "what": "<", "items": ">", "queue": "~", "note": "~"}


@command("audit", short_help="Who changed what by hand.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most entries to print.")
@click.option("--before", type=int, metavar="NUMBER", help="Go on before the entry of this number.")
def audit(limit: int, before: int | None) -> None:
    """Who changed what by hand, or by a rule such as retention. The newest is first."""
    with opened() as broker:
        entries = broker.audit(limit, before=before)
    if as_json():
        print_json(form(entries))
        return
    if not entries:
        say("Nobody has changed anything by hand.")
        return
    table(_COLUMNS, map(_row, entries))
    if len(entries) == limit:
        remark(f"\nThere may be more: --before {entries[-1].number}")


def _row(entry: AuditEntry) -> tuple[object, ...]:
    when = moment(entry.at).removesuffix(" UTC")
    note = with_short_ids(entry.note or "") or (short(entry.ids[0]) if len(entry.ids) == 1 else "")
    return (when, entry.actor, entry.verb, f"{entry.count:,}", entry.queue or "", note)
