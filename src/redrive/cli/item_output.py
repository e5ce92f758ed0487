"""Printing of items, as a table or JSON: a page of them, or one in full."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from redrive.cli.common_options import as_json
from redrive.cli.output import (
    ago,
    coloured,
    escape_line,
    fields,
    print_json,
    print_line,
    print_note,
    setting_text,
    short,
    table,
)
from redrive.model.item import WAITING_STATUSES, Item, Status
from redrive.model.payload import is_json
from redrive.model.text import format_bytes, format_elapsed, format_instant, pluralize
from redrive.wire.json_views import view_of

if TYPE_CHECKING:
    from redrive.contract.queries import Page

TRACEBACK_LINES = 15
"""The number of last lines of a traceback that are shown."""
MAX_SHOWN_CHARS = 2_000
"""The number of characters of a payload that are shown."""
_COLUMNS = {"id": "<", "queue": "~", "status": "<", "attempts": ">", "when": ">", "what": "~"}
_LETTERS = {"id": "<", "queue": "~", "reason": "<", "attempts": ">", "died": ">", "error": "~"}


def print_page(page: Page, if_empty: str, *, letters: bool = False) -> None:
    """Print a line for each item. `letters`: they are dead letters, and the columns describe their deaths."""
    if as_json():
        print_json({"items": page.items} if page.cursor is None else {"items": page.items, "cursor": page.cursor})
        return
    if not page.items:
        print_line(if_empty)
        return
    if letters:
        table(_LETTERS, map(_letter, page.items), least=("attempts", "reason", "queue", "died"))
    else:
        table(_COLUMNS, map(_item, page.items), coloured="status", least=("attempts", "queue", "when"))
    if page.cursor is not None:
        print_note(f"\nThere are more: --cursor {page.cursor}, or --limit")


def _letter(item: Item) -> tuple[object, ...]:
    death = item.death
    if death is None:
        return (short(item.id), item.queue, item.status.value, item.counters.attempts, "", "")
    return (short(item.id), item.queue, death.reason.value, death.counters.attempts, ago(death.at), death.cause.title)


def _item(item: Item) -> tuple[object, ...]:
    when = item.ready_at if item.status in (Status.PENDING, Status.FAILED) else item.lease_deadline or item.ended_at
    return (
        short(item.id),
        item.queue,
        item.status.value,
        item.counters.attempts,
        ago(when or item.put_at),
        _what(item),
    )


def _what(item: Item) -> str:
    """Return the last column of an item: its worker, its error, or else its payload."""
    if item.status is Status.ACTIVE:
        return f"worker {item.worker}" if item.worker else "a worker has it"
    if item.held_by and item.status in WAITING_STATUSES:
        return f"held by {', '.join(item.held_by)}"
    if item.death is not None and item.status is not Status.COMPLETED:
        return item.death.cause.title
    if item.last_failure is not None:
        return item.last_failure.title
    return payload_text(item)[:200]


def payload_text(item: Item) -> str:
    """Return the payload as text: JSON, text, or its number of bytes."""
    data = bytes(item.payload)
    if is_json(item.content_type):
        try:
            return msgspec.json.encode(msgspec.json.decode(data)).decode()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"{format_bytes(len(data))} of {item.content_type}"


def print_item(item: Item) -> None:
    """Print an item in full."""
    if as_json():
        print_json(item)
        return
    print_line(f"{item.id}  {coloured(item.status.value)} in {item.queue}")
    if item.death is not None:
        _print_death(item)
    print_line()
    _print_facts(item)
    _print_payload(item)
    _print_history(item)


def _print_death(item: Item) -> None:
    death = item.death
    assert death is not None
    print_line(escape_line(death.cause.title), style="red")
    reason = death.reason.value.replace("_", " ")
    attempts = pluralize(death.counters.attempts, "attempt")
    print_line(f"died {ago(death.at)}, {format_instant(death.at)}, in {death.queue}: {reason} after {attempts}")
    failure = item.last_failure
    if failure is not None and failure.traceback:
        print_line()
        lines = failure.traceback.rstrip().splitlines()
        if len(lines) > TRACEBACK_LINES:
            print_line(f"  … {len(lines) - TRACEBACK_LINES} earlier lines; -o json has all")
        for line in lines[-TRACEBACK_LINES:]:
            print_line(f"  {escape_line(line)}")


def _print_facts(item: Item) -> None:
    counters = item.counters
    counted = ", ".join(
        pluralize(count, name) if name != "loss" else f"{count:,} {'loss' if count == 1 else 'losses'}"
        for name, count in (
            ("attempt", counters.attempts),
            ("failure", counters.failures),
            ("loss", counters.losses),
            ("redrive", counters.redrives),
        )
        if count
    )
    fields(
        [
            ("put", f"{format_instant(item.put_at)} ({ago(item.put_at)})"),
            ("counted", counted),
            ("ready", f"{format_instant(item.ready_at)} ({ago(item.ready_at)})" if item.ready_at else None),
            ("worker", item.worker),
            (
                "lease until",
                f"{format_instant(item.lease_deadline)} ({ago(item.lease_deadline)})" if item.lease_deadline else None,
            ),
            ("expires", format_instant(item.expire_deadline) if item.expire_deadline else None),
            ("held by", ", ".join(item.held_by)),
            ("moving to", item.moving_to),
            ("damaged", item.damage),
            ("priority", item.priority if item.priority != 5 else None),
            *((name, setting_text(value)) for name, value in view_of(item.overrides).items()),
            ("key", item.idempotency_key),
            ("first in", item.origin_queue if item.origin_queue != item.queue else None),
            ("earlier ids", ", ".join(map(short, item.earlier_ids))),
            (
                "edited from",
                short(item.source_id) if item.source_id and item.source_id not in item.earlier_ids else None,
            ),
            ("group", item.death.cause.fingerprint[:8] if item.death else None),
            *((f"header {name}", value) for name, value in item.headers.items()),
        ]
    )


def _print_payload(item: Item) -> None:
    data, text = bytes(item.payload), payload_text(item)
    print_line(f"\npayload ({escape_line(item.content_type)}, {format_bytes(len(data))}):")
    if is_json(item.content_type):
        text = msgspec.json.format(text, indent=2) if len(text) > 80 and text[:1] in "{[" else text
    for line in text[:MAX_SHOWN_CHARS].splitlines():
        print_line(f"  {escape_line(line)}")
    if len(text) > MAX_SHOWN_CHARS:
        print_line(f"  … and {len(text) - MAX_SHOWN_CHARS:,} more characters; -o json has all")
    if item.result is not None:
        result = msgspec.structs.replace(item, payload=item.result.payload, content_type=item.result.content_type)
        print_line(f"\nresult: {escape_line(payload_text(result)[:MAX_SHOWN_CHARS])}")


def _print_history(item: Item) -> None:
    if not item.history:
        return
    print_line("\nhistory:")
    shown = list(item.history)
    for place, entry in enumerate(shown):
        if item.history_omitted and place == 5:
            print_line(f"  … {item.history_omitted:,} more …")
        who = entry.worker or entry.actor
        told = entry.failure.title if entry.failure else entry.note
        ran = entry.failure.duration if entry.failure else None
        by = f" by {who}" if who else ""
        after = "" if ran is None else f" after {format_elapsed(ran)}"
        said = f": {told}" if told else ""
        print_line(
            escape_line(
                f"  {format_instant(entry.at)}  {entry.event.value} (delivery {entry.delivery}){by}{after}{said}"
            )
        )
