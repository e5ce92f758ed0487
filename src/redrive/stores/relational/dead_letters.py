"""The index of dead letters: one row for each dead letter and each archived item, its search terms, and group counts.

`item_row.death_no` is the number allocated at the death, or at the archiving of an item that was no dead letter. It is
part of the state row, so it is changed before `insert_row`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.classify import names_of
from redrive.model.death import Cause, DeadReason
from redrive.model.duration import HOUR
from redrive.model.group import Group, hour_of
from redrive.model.ids import make_id
from redrive.model.item import Death
from redrive.model.payload import JSON
from redrive.model.search_terms import MAX_INDEXED_CHARS, search_terms_of
from redrive.stores.relational.batch import Batch, GroupChange, Stage, UnindexedLetter
from redrive.stores.relational.item_rows import ItemRow
from redrive.stores.relational.search_scope import SearchScope
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import read_value, substitute_death

_GROUP = "SELECT count, first_at, last_at FROM redrive_group WHERE queue = ? AND fingerprint = ?"
_WRITE = """
    INSERT INTO redrive_group (queue, fingerprint, count, first_at, last_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (queue, fingerprint) DO UPDATE
    SET count = excluded.count, first_at = excluded.first_at, last_at = excluded.last_at"""
_REMOVE = "DELETE FROM redrive_group WHERE queue = ? AND fingerprint = ?"
_SHRINK = "UPDATE redrive_group SET count = count + ?3 WHERE queue = ?1 AND fingerprint = ?2"
_EMPTY = f"{_REMOVE} AND count = 0"
_HOUR = """
    INSERT INTO redrive_group_hour AS there (queue, fingerprint, hour, count) VALUES (?, ?, ?, ?)
    ON CONFLICT (queue, fingerprint, hour) DO UPDATE SET count = there.count + excluded.count"""
_EMPTY_HOUR = "DELETE FROM redrive_group_hour WHERE queue = ? AND fingerprint = ? AND hour = ? AND count = 0"

_OF_QUEUE = "queue = ?1"
_OF_NAMESPACE = "queue IN (SELECT key FROM redrive_queue WHERE namespace = ?1)"
_LARGEST = """
    SELECT fingerprint, sum(count), min(first_at), max(last_at) FROM redrive_group WHERE {queues}
    GROUP BY fingerprint ORDER BY sum(count) DESC, max(last_at) DESC, fingerprint LIMIT ?2"""
_SHARES = "SELECT fingerprint, queue, count FROM redrive_group WHERE {queues}"
_HOURS = "SELECT hour, count FROM redrive_group_hour WHERE queue = ? AND fingerprint = ?"
_NEWEST = "SELECT max(death_no) FROM redrive_dead_letter WHERE section = ? AND fingerprint = ? AND queue = ?"
_ID = """
    SELECT i.item_no, i.id_suffix FROM redrive_dead_letter AS l
    CROSS JOIN redrive_item AS i ON i.item_no = l.item_no WHERE l.death_no = ?"""
_LAST_DEATH = "SELECT data FROM redrive_death WHERE item_no = ? ORDER BY key DESC LIMIT 1"
_COUNT = "SELECT coalesce(sum(count), 0) FROM redrive_group WHERE {queues}"

_decode_death = msgspec.json.Decoder(Death).decode
_Share = tuple[int, int]
"""The key of a queue, and its number of dead letters of a group."""


def count_in_group(batch: Batch, queue: int, fingerprint: str, died_at: Instant, by: int) -> None:
    """Count a dead letter that joined or left a group."""
    count_many_in_group(batch, queue, fingerprint, hour_of(died_at), by, died_at, died_at)


def count_many_in_group(
    batch: Batch, queue: int, fingerprint: str, hour: Instant, by: int, first_at: Instant, last_at: Instant
) -> None:
    """Count dead letters of one hour, which died between these instants and joined or left a group."""
    group = batch.groups.setdefault((queue, fingerprint), GroupChange())
    if by > 0:
        if not group.grew:
            found = batch.execute_unflushed(_GROUP, (queue, fingerprint)).fetchone()
            count, group.first_at, group.last_at = found or (0, first_at, last_at)
            group.count, group.grew = group.count + count, True
        # Its first death is the first one since it was last empty.
        group.first_at = min(group.first_at, first_at) if group.count else first_at
        group.last_at = max(group.last_at, last_at) if group.count else last_at
    group.count += by
    group.hours[hour] = group.hours.get(hour, 0) + by


def write_groups(batch: Batch) -> None:
    """Write the changed group counts: one row per group, and one per hour in which its letters died."""
    left: list[tuple[int, str, Instant]] = []
    shrunk: list[tuple[int, str]] = []
    for (queue, fingerprint), group in sorted(
        batch.groups.items()
    ):  # a fixed order, so that transactions that wait for each other do not deadlock
        if not group.grew:
            batch.write(_SHRINK, (queue, fingerprint, sum(group.hours.values())))
            shrunk.append((queue, fingerprint))
        elif group.count:
            batch.write(_WRITE, (queue, fingerprint, group.count, group.first_at, group.last_at))
        else:
            batch.write(_REMOVE, (queue, fingerprint))
        for hour, by in group.hours.items():
            if by:
                batch.write(_HOUR, (queue, fingerprint, hour, by))
            if by < 0:
                left.append((queue, fingerprint, hour))
    for of_group in shrunk:  # rows of one statement are written together: all changes first, then these
        batch.write(_EMPTY, of_group)
    for of_hour in left:
        batch.write(_EMPTY_HOUR, of_hour)
    batch.groups.clear()


def count_dead_letters(executor: Executor, namespace: str, queue: int | None, fingerprint: str | None) -> int:
    """Count dead letters by their groups, without reading any."""
    statement = _COUNT.format(queues=_OF_NAMESPACE if queue is None else _OF_QUEUE)
    values: tuple[object, ...] = (namespace if queue is None else queue,)
    if fingerprint is not None:
        statement, values = f"{statement} AND fingerprint = ?2", (*values, fingerprint)
    counted: int = executor.execute(statement, values).get
    return counted


def largest_groups(executor: Executor, scope: SearchScope, queue: int | None, limit: int) -> tuple[Group, ...]:
    """Return the largest groups of a queue, or of all queues."""
    queues, asked = (_OF_NAMESPACE, scope.namespace) if queue is None else (_OF_QUEUE, queue)
    found = executor.execute(_LARGEST.format(queues=queues), (asked, limit)).fetchall()
    shares: dict[str, list[_Share]] = {fingerprint: [] for fingerprint, *_ in found}
    for fingerprint, key, size in executor.execute(_SHARES.format(queues=queues), (asked,)):
        if fingerprint in shares:
            shares[fingerprint].append((key, size))
    return tuple(_read_group(executor, scope, shares[each[0]], *each) for each in found)


def _read_group(
    executor: Executor,
    scope: SearchScope,
    shares: list[_Share],
    fingerprint: str,
    total: int,
    first_at: Instant,
    last_at: Instant,
) -> Group:
    shares.sort(key=lambda share: (-share[1], scope.names[share[0]]))
    hours: dict[Instant, int] = {}
    newest = 0
    for queue, _ in shares:
        for hour, died in executor.execute(_HOURS, (queue, fingerprint)):
            hours[hour] = hours.get(hour, 0) + died
        newest = max(newest, executor.execute(_NEWEST, (scope.section, fingerprint, queue)).get or 0)
    item_no, id_suffix = executor.execute(_ID, (newest,)).get or (0, 0)
    substitute = substitute_death("", make_id(item_no, id_suffix), fingerprint)
    data = executor.execute(_LAST_DEATH, (item_no,)).get
    cause = read_value(_decode_death, data, substitute, tuple).cause
    return Group(
        fingerprint,
        cause.group_title,
        cause.error_type,
        cause.error_class,
        total,
        first_at,
        last_at,
        {scope.names[queue]: size for queue, size in shares},
        dict(sorted(hours.items())),
        make_id(item_no, id_suffix),
    )


LETTER_COLUMNS = """
    death_no, item_no, queue, section, died_at, reason, fingerprint, error_name, error_type, error_class,
    deliveries, attempts, failures, losses"""
_INSERT_LETTER = f"""
    INSERT INTO redrive_dead_letter ({LETTER_COLUMNS})
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_DELETE = "DELETE FROM redrive_dead_letter WHERE death_no = ?"
_UPDATE_LETTER = "UPDATE redrive_dead_letter SET item_no = ?, queue = ?, section = ? WHERE death_no = ?"
_CONTENTS = f"""
    SELECT item_no, substr(payload, 1, {MAX_INDEXED_CHARS}), content_type FROM redrive_item
    WHERE item_no IN carray(?)"""
_INSERT_TERMS = "INSERT INTO redrive_search (rowid, terms) VALUES (?, ?)"
_INSERT_TOMBSTONE = "INSERT INTO redrive_search_tombstone (death_no) VALUES (?)"
_FLIP_SECTION = "UPDATE redrive_dead_letter SET section = -section WHERE death_no IN carray(?)"
_COUNTED = f"""
    SELECT queue, fingerprint, died_at - died_at % {HOUR} AS hour, count(*), min(died_at), max(died_at)
    FROM redrive_dead_letter WHERE death_no IN carray(?) AND section > 0 GROUP BY queue, fingerprint, hour"""


def add_dead_letter(batch: Batch, item_row: ItemRow, death: Death, text: str) -> None:
    """Number an item that died, and add it to the index. `text` is indexed beside error type and payload."""
    item_row.death_no = batch.allocate()
    search = batch.by_key[item_row.queue].settings.search
    insert_letter(batch, item_row, death, text if search else None)
    count_letter(batch, item_row.queue, death.cause.fingerprint, death.at, 1)


def insert_letter(batch: Batch, item_row: ItemRow, death: Death, text: str | None, *, archived: bool = False) -> None:
    """Write the entry of a dead letter, or of an archived one. Without a `text` no search terms are stored."""
    counters = death.counters
    counted = (counters.deliveries, counters.attempts, counters.failures, counters.losses)
    key = (item_row.death_no, item_row.item_no, item_row.queue, _section(batch, archived=archived))
    batch.write(_INSERT_LETTER, (*key, death.at, *cause_columns(death.reason, death.cause), *counted))
    if text is not None:
        assert item_row.death_no is not None
        batch.unindexed[item_row.death_no] = UnindexedLetter(item_row.item_no, death.cause.error_type, text)


def cause_columns(reason: DeadReason, cause: Cause) -> tuple[str, ...]:
    """Return the columns of an entry with the cause of the death."""
    names = cause.fingerprint, names_of(cause.error_type)[-1], cause.error_type, cause.error_class.value
    return reason.value, *names


def insert_archived(batch: Batch, item_row: ItemRow, at: Instant) -> None:
    """Write the entry of an archived item that was no dead letter: it has no cause. Retention counts from `at`."""
    counted = (item_row.deliveries, item_row.attempts, item_row.failures, item_row.losses)
    key = (item_row.death_no, item_row.item_no, item_row.queue, _section(batch, archived=True))
    no_cause = [""] * 5
    batch.write(_INSERT_LETTER, (*key, at, *no_cause, *counted))


def update_letter(batch: Batch, item_row: ItemRow, *, archived: bool) -> None:
    """Update the entry of an item that was moved, archived or restored."""
    section = _section(batch, archived=archived)
    batch.write(_UPDATE_LETTER, (item_row.item_no, item_row.queue, section, item_row.death_no))


def delete_letter(batch: Batch, death_no: int) -> None:
    """Delete an entry: its item was redriven, completed or deleted."""
    batch.write(_DELETE, (death_no,), Stage.DELETE_ITEM)
    batch.write(_INSERT_TOMBSTONE, (death_no,))


def _section(batch: Batch, *, archived: bool) -> int:
    return -batch.namespace_key if archived else batch.namespace_key


def remove_dead_letters(batch: Batch, death_nos: Any) -> None:
    """Remove many items from the index. `death_nos` comes from `Session.table`."""
    if batch.unindexed:  # some of these may be among the new ones
        write_search_terms(batch)
    _count_letters(batch, death_nos, -1)
    batch.execute("DELETE FROM redrive_dead_letter WHERE death_no IN carray(?)", (death_nos,))
    batch.execute("INSERT INTO redrive_search_tombstone (death_no) SELECT value FROM carray(?)", (death_nos,))


def archive_dead_letters(batch: Batch, death_nos: Any) -> None:
    """Mark many dead letters as archived."""
    _count_letters(batch, death_nos, -1)
    batch.execute(_FLIP_SECTION, (death_nos,))


def restore_dead_letters(batch: Batch, death_nos: Any) -> None:
    """Mark many archived items as dead letters again."""
    batch.execute(_FLIP_SECTION, (death_nos,))
    _count_letters(batch, death_nos, 1)


def write_search_terms(batch: Batch) -> None:
    """Write the search terms of all new dead letters together, which is much cheaper than one by one."""
    unindexed, stored = batch.unindexed, batch.search_index.stored
    contents = batch.execute(_CONTENTS, (batch.table([each.item_no for each in unindexed.values()]),)).fetchall()
    # SQLite returns NULL for a substring of an empty payload.
    by_number = {item_no: (payload or b"", content_type or JSON) for item_no, payload, content_type in contents}
    rows = [
        (death_no, stored(search_terms_of(error_type, text, *by_number[item_no])))
        for death_no, (item_no, error_type, text) in unindexed.items()
    ]
    batch.write_all(_INSERT_TERMS, rows)
    unindexed.clear()


def count_letter(batch: Batch, queue: int, fingerprint: str, died_at: Instant, delta: int) -> None:
    """Count a dead letter that a queue got or lost."""
    batch.count_delta(queue, "dead_letters", delta)
    count_in_group(batch, queue, fingerprint, died_at, delta)


def _count_letters(batch: Batch, death_nos: Any, sign: int) -> None:
    for queue, fingerprint, hour, count, first_at, last_at in batch.execute(_COUNTED, (death_nos,)).fetchall():
        batch.count_delta(queue, "dead_letters", sign * count)
        count_many_in_group(batch, queue, fingerprint, hour, sign * count, first_at, last_at)
