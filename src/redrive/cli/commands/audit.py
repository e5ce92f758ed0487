"""`redrive audit`: changes by operators and rules, and changes of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import click

from redrive.auth.principal import TOKENS_NAMESPACE
from redrive.cli.common_options import as_json, command
from redrive.cli.output import print_json, print_line, print_note, short, table, to_json_value, with_short_ids
from redrive.cli.store_target import find_target, open_target
from redrive.clock import Instant
from redrive.contract.queries import AuditEntry
from redrive.errors import AccessError, StoreUnavailable
from redrive.model.text import format_instant

_COLUMNS = {"when": "<", "who": "~", "what": "~", "items": ">", "queue": "~", "note": "~"}
_LARGEST_PAGE = 1000
_EVER = Instant(2**62)
WORDS = {
    "archive": "archived", "bury": "buried", "done": "marked as done", "drop": "dropped", "fail": "failed manually",
    "reveal": "secrets shown", "export": "secrets exported",
    "import": "imported", "move": "moved", "purge": "purged", "redrive": "redriven",
    "reschedule": "rescheduled", "restore": "restored", "retry": "retried", "undo": "undone",
    "update_queue": "settings changed", "pause_queue": "queue paused", "resume_queue": "queue resumed",
    "delete_queue": "queue deleted", "create_token": "token created", "revoke_token": "token revoked",
}  # fmt: skip
"""The verbs of the audit as they are printed."""
_SET = {"running": "resumed", "rate": "rate changed", "watching": "waits for its canaries"}


@command("audit", short_help="Show who changed items, queues and tokens.")
@click.option(
    "--limit",
    type=click.IntRange(1, _LARGEST_PAGE),
    default=50,
    show_default=True,
    help="Maximum number of entries to print, in addition to those about tokens of the same time.",
)
@click.option("--before", type=int, metavar="NUMBER", help="Continue before the entry with this number.")
def audit(limit: int, before: int | None) -> None:
    """Show who changed items, queues and tokens: operators, and rules such as retention. The newest entry is first.

    Created and revoked tokens are shown only to users who may create tokens.
    """
    with open_target() as broker:
        here = broker.core.store.namespace
        entries = list(broker.audit(limit, before=before))
        until = _EVER if before is None else next((each.at for each in broker.audit(1, before=before + 1)), _EVER)
    since = entries[-1].at if len(entries) == limit else Instant(0)
    found = [(here, entry) for entry in entries]
    if here != TOKENS_NAMESPACE and not find_target().is_memory:
        found += [(TOKENS_NAMESPACE, entry) for entry in _of_tokens(since, until)]
        found.sort(key=lambda each: each[1].at, reverse=True)  # stable: entries of one instant keep their order
    if as_json():
        print_json([_form(namespace, entry) for namespace, entry in found])
        return
    if not found:
        print_line("The audit is empty.")
        return
    table(_COLUMNS, [_row(entry) for _, entry in found], least=("items", "queue", "note", "who"))
    if len(entries) == limit:
        print_note(f"\nThere may be more: --before {entries[-1].number}")


def _of_tokens(since: Instant, until: Instant) -> Iterator[AuditEntry]:
    """Yield the changes of tokens in that time, the newest first. Empty without the right to read them, and if no token
    was ever created: some stores have no namespace then."""
    with suppress(AccessError, StoreUnavailable), open_target(namespace=TOKENS_NAMESPACE) as broker:
        before: int | None = None
        while page := broker.audit(_LARGEST_PAGE, before=before):
            yield from (entry for entry in page if since <= entry.at < until)
            if page[-1].at < since or len(page) < _LARGEST_PAGE:
                return
            before = page[-1].number


def describe_entry(entry: AuditEntry) -> str:
    """Return the change as it is printed. A verb of a later release is printed unchanged."""
    how, _, of = entry.verb.partition(" ")
    if how == "start":
        return f"{of} started"
    if how == "set":
        status, _, of = of.partition(" ")
        return f"{of} {_SET.get(status, status)}"
    if not entry.ids and (entry.note or "").startswith("operation "):
        return f"{entry.verb} finished"
    return WORDS.get(entry.verb, entry.verb)


def _form(namespace: str, entry: AuditEntry) -> dict[str, Any]:
    return {"namespace": namespace, **to_json_value(entry)}


def _row(entry: AuditEntry) -> tuple[object, ...]:
    when = format_instant(entry.at).removesuffix(" UTC")
    note = with_short_ids(entry.note or "") or (short(entry.ids[0]) if len(entry.ids) == 1 else "")
    return (when, entry.actor, describe_entry(entry), f"{entry.count:,}", entry.queue or "", note)
