"""Bulk changes: many uniform items in a handful of statements.

Uniform are dead items that return to work in their queue or are archived, and archived dead items that are restored or
purged. An item that needs an individual check (another queue, a size limit, an idempotency key) is not. Most operations
change uniform items only; a step that meets any other item changes nothing here and goes item by item.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from redrive.contract.admin_calls import ManualTarget
from redrive.errors import RedriveError
from redrive.model.death import DeadReason
from redrive.model.feed import FeedKind
from redrive.model.filter import MAX_EXAMINED, Filter
from redrive.model.ids import ItemId, make_id, parse_id
from redrive.model.item import Counters, HistoryEvent, Settled, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.manual_change import ManualAction
from redrive.model.state_machine import Verb
from redrive.stores.relational import dead_letters, feed
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.item_rows import DROPPED, STATE_COLUMNS
from redrive.stores.relational.queue_rows import QueueRow

_DELIVERY = '"delivery":'

BULK_THRESHOLD = 4
"""Up to this many, changing items one by one costs no more."""

_ENDED = """
    SELECT e.item_no, i.id_suffix, e.queue, e.death_no, e.entries, e.dead_reason, i.expire_timeout,
        i.source_id IS NULL, i.idempotency_key IS NULL, e.held_by IS NULL, e.status, e.archived_from,
        e.deliveries, e.attempts, e.failures, e.losses, e.redrives
    FROM redrive_finished AS e CROSS JOIN redrive_item AS i ON i.item_no = e.item_no WHERE e.item_no IN carray(?)"""
_READY = f"""
    INSERT INTO redrive_ready (queue, item_no, {STATE_COLUMNS})
    SELECT e.queue, e.item_no, e.rank, ?1, ?2 + c.rowid, ?3, e.deliveries, 0, 0, 0, e.redrives + 1, e.first_leased_at,
        e.entries + 1, e.deaths, NULL
    FROM carray(?4) AS c CROSS JOIN redrive_finished AS e ON e.item_no = c.value"""
_TIMEOUTS = """
    UPDATE redrive_ready SET expire_deadline = ?1 + i.expire_timeout FROM redrive_item AS i
    WHERE i.item_no = redrive_ready.item_no AND i.expire_timeout IS NOT NULL
        AND redrive_ready.item_no IN carray(?2) AND redrive_ready.seq <> redrive_ready.item_no"""
_HISTORY = """
    INSERT INTO redrive_history (key, item_no, entry, data)
    SELECT ?1 + c.rowid, e.item_no, e.entries + 1, CAST(?2 || e.deliveries || ?3 AS BLOB)
    FROM carray(?4) AS c CROSS JOIN redrive_finished AS e ON e.item_no = c.value"""
_FADED = f"""
    DELETE FROM redrive_history WHERE (item_no, entry) IN (
        SELECT item_no, entries + 1 - {HISTORY_LAST} FROM redrive_finished
        WHERE item_no IN carray(?) AND entries + 1 > {HISTORY_FIRST + HISTORY_LAST})"""
_ARCHIVE = "UPDATE redrive_finished SET status = 'archived', archived_from = 'dead' WHERE item_no IN carray(?)"
_RESTORE = "UPDATE redrive_finished SET status = 'dead', archived_from = NULL WHERE item_no IN carray(?)"


class BulkChunk(msgspec.Struct, frozen=True):
    """Items of one queue that are changed together, in this order."""

    row: QueueRow
    count: int
    numbers: Any
    """The `n` of each, as a table."""
    death_nos: Any
    """The number of the death of each, as a table."""
    timeouts: bool
    """Whether some items have their own expire_timeout."""
    long: bool
    """Some have a history that is as long as it can get."""


def make_chunk(
    batch: Batch, row: QueueRow, numbers: Sequence[int], deaths: Sequence[int], *, timeouts: bool, entries: int
) -> BulkChunk:
    """A lot; `entries` is how long the longest history is."""
    long = entries >= HISTORY_FIRST + HISTORY_LAST
    return BulkChunk(row, len(numbers), batch.table(numbers), batch.table(deaths), timeouts, long)


class UniformItem(msgspec.Struct, frozen=True, gc=False):
    """One of many items that are changed together."""

    item_no: int
    id_suffix: int
    queue: int
    death_no: int
    entries: int
    dead_reason: str
    """None only where it is purged."""
    expire_timeout: int | None
    unmoved: bool
    keyless: bool
    unheld: bool
    status: str
    archived_from: str | None
    deliveries: int
    attempts: int
    failures: int
    losses: int
    redrives: int

    @property
    def counters(self) -> Counters:
        """The counters as one value."""
        return Counters(self.deliveries, self.attempts, self.failures, self.losses, self.redrives)

    @property
    def id(self) -> ItemId:
        """Its id."""
        return make_id(self.item_no, self.id_suffix)


def find_uniform(batch: Batch, action: ManualAction, targets: Sequence[ManualTarget]) -> Mapping[ItemId, UniformItem]:
    """Return the targets that can be changed together, by id; read with one query."""
    if (
        action.verb not in _CHANGES
        or len(targets) <= BULK_THRESHOLD
        or len({target.id for target in targets}) < len(targets)
    ):
        return {}
    found: dict[ItemId, UniformItem] = {}
    id_suffixes = dict(_parsed(targets))
    if not id_suffixes:
        return found
    numbers = batch.table(id_suffixes)
    # An item that is listed under an old id too would be changed twice: it is left to be followed there.
    twice = {
        item_no
        for (item_no,) in batch.execute(
            "SELECT item_no FROM redrive_former_id WHERE old_item_no IN carray(?)", (numbers,)
        )
    }
    for row in batch.execute(_ENDED, (numbers,)):
        item = UniformItem(*row)
        if item.item_no in twice or item.id_suffix != id_suffixes[item.item_no] or item.queue not in batch.by_key:
            continue
        if _is_plain(batch, action, item):
            found[item.id] = item
    return found


def change_uniform(batch: Batch, action: ManualAction, items: Sequence[UniformItem]) -> list[Settled]:
    """Change uniform items, in this order."""
    change, settle = _CHANGES[action.verb]
    queues: dict[int, list[UniformItem]] = {}
    for item in items:
        queues.setdefault(item.queue, []).append(item)
    for queue, members in queues.items():
        timeouts = any(item.expire_timeout is not None for item in members)
        entries = max(item.entries for item in members)
        numbers, dead = [item.item_no for item in members], [item.death_no for item in members]
        change(batch, action, make_chunk(batch, batch.by_key[queue], numbers, dead, timeouts=timeouts, entries=entries))
    return [settle(batch, item) for item in items]


def apply_chunk(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    """Change items that the caller knows to be uniform."""
    _CHANGES[action.verb][0](batch, action, chunk)


def _parsed(targets: Iterable[ManualTarget]) -> Iterator[tuple[int, int]]:
    for target in targets:
        if target.payload is None and target.headers is None:
            try:
                yield parse_id(target.id)
            except RedriveError:
                continue


def _is_plain(batch: Batch, action: ManualAction, item: UniformItem) -> bool:
    """Return whether only its status decides how it is changed."""
    if not item.unheld:
        return False
    match action.verb:
        case Verb.PURGE:
            return item.status in (Status.ARCHIVED, DROPPED)
        case Verb.RESTORE:
            return item.status == Status.ARCHIVED and item.archived_from == Status.DEAD
        case Verb.ARCHIVE:
            return item.status == Status.DEAD
        case _:
            row = batch.by_key[item.queue]
            # One that was never moved died where it is; another one may have to go back to where it died.
            in_place = action.verb is Verb.RETRY or (item.unmoved and action.to in (None, row.queue.name))
            free = item.keyless and row.settings.max_size is None
            return item.status == Status.DEAD and in_place and free


def _revive(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    """Back to work where they are, at the tail."""
    name, timeout, numbers, count = chunk.row.queue.name, chunk.row.settings.expire_timeout, chunk.numbers, chunk.count
    deadline = None if timeout is None else batch.now + timeout
    batch.execute(_READY, (batch.now, batch.allocate(count) - 1, deadline, numbers))
    if chunk.timeouts:
        batch.execute(_TIMEOUTS, (batch.now, numbers))
    # All entries are equal except for the delivery, which the statement fills in.
    entry = msgspec.json.encode(action.history_entry(batch.now, HistoryEvent.REDRIVEN, name, 0, Status.DEAD)).decode()
    before, _, after = entry.partition(f"{_DELIVERY}0")
    batch.execute(_HISTORY, (batch.allocate(count) - 1, before + _DELIVERY, after, numbers))
    if chunk.long:
        batch.execute(_FADED, (numbers,))
    batch.execute("DELETE FROM redrive_finished WHERE item_no IN carray(?)", (numbers,))
    dead_letters.remove_dead_letters(batch, chunk.death_nos)
    feed.append_events(batch, FeedKind.REDRIVEN, name, numbers, count, action.actor, action.operation)
    batch.count_status(chunk.row.key, Status.DEAD, -count)
    batch.count_status(chunk.row.key, Status.PENDING, count)
    batch.count_delta(chunk.row.key, "redriven_total", count)
    batch.arrivals[name] += count


def _archive(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    batch.execute(_ARCHIVE, (chunk.numbers,))
    dead_letters.archive_dead_letters(batch, chunk.death_nos)
    feed.append_events(
        batch, FeedKind.ARCHIVED, chunk.row.queue.name, chunk.numbers, chunk.count, action.actor, action.operation
    )
    batch.count_status(chunk.row.key, Status.DEAD, -chunk.count)
    batch.count_status(chunk.row.key, Status.ARCHIVED, chunk.count)
    batch.count_delta(chunk.row.key, "archived_total", chunk.count)


def _restore(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    batch.execute(_RESTORE, (chunk.numbers,))
    dead_letters.restore_dead_letters(batch, chunk.death_nos)
    feed.append_events(
        batch, FeedKind.RESTORED, chunk.row.queue.name, chunk.numbers, chunk.count, action.actor, action.operation
    )
    batch.count_status(chunk.row.key, Status.ARCHIVED, -chunk.count)
    batch.count_status(chunk.row.key, Status.DEAD, chunk.count)


def _purge(batch: Batch, action: ManualAction, chunk: BulkChunk) -> None:
    told = (chunk.row.queue.name, chunk.numbers, chunk.count, action.actor, action.operation, Status.ARCHIVED)
    feed.append_events(batch, FeedKind.REMOVED, *told)
    dead_letters.remove_dead_letters(batch, chunk.death_nos)
    for table in ("finished", "item", "history", "death", "former_id"):
        batch.execute(f"DELETE FROM redrive_{table} WHERE item_no IN carray(?)", (chunk.numbers,))
    batch.count_status(chunk.row.key, Status.ARCHIVED, -chunk.count)


def _revived(batch: Batch, item: UniformItem) -> Settled:
    counters = Counters(item.deliveries, redrives=item.redrives + 1)
    return Settled(item.id, batch.by_key[item.queue].queue.name, Status.PENDING, counters, batch.now)


def _archived(batch: Batch, item: UniformItem) -> Settled:
    name, reason = batch.by_key[item.queue].queue.name, DeadReason(item.dead_reason)
    return Settled(item.id, name, Status.ARCHIVED, item.counters, dead_reason=reason)


def _restored(batch: Batch, item: UniformItem) -> Settled:
    name, reason = batch.by_key[item.queue].queue.name, DeadReason(item.dead_reason)
    return Settled(item.id, name, Status.DEAD, item.counters, dead_reason=reason)


def _purged(batch: Batch, item: UniformItem) -> Settled:
    return Settled(item.id, batch.by_key[item.queue].queue.name, None, item.counters)


_CHANGES: dict[
    Verb, tuple[Callable[[Batch, ManualAction, BulkChunk], None], Callable[[Batch, UniformItem], Settled]]
] = {
    Verb.RETRY: (_revive, _revived),
    Verb.REDRIVE: (_revive, _revived),
    Verb.ARCHIVE: (_archive, _archived),
    Verb.RESTORE: (_restore, _restored),
    Verb.PURGE: (_purge, _purged),
}
"""What is done to items of one queue, and what is said of each."""


_SHELF = {
    Verb.RETRY: Status.DEAD,
    Verb.REDRIVE: Status.DEAD,
    Verb.ARCHIVE: Status.DEAD,
    Verb.RESTORE: Status.ARCHIVED,
    Verb.PURGE: Status.ARCHIVED,
}
_REVIVES = (Verb.RETRY, Verb.REDRIVE)
_CONDITIONS = {
    "reason": "reason = ?",
    "error_class": "error_class = ?",
    "since": "died_at >= ?",
    "until": "died_at < ?",
    "min_attempts": "attempts >= ?",
}
"""Conditions on dead letters that a statement checks, beside those of the index."""
_INDEXED = frozenset({"status", "queue", "fingerprint"})
_NEXT = """
    SELECT death_no, item_no, queue{columns} FROM redrive_dead_letter
    WHERE {index} AND death_no > ? AND death_no <= ? ORDER BY death_no LIMIT ?"""
_MEANT = "SELECT death_no, item_no, queue FROM ({next}) AS examined WHERE {conditions} /*+ ORDER BY death_no */ LIMIT ?"
_EXAMINED = "SELECT count(*), max(death_no) FROM ({next}) AS examined"
_QUEUES_OF = """
    SELECT (SELECT min(queue) FROM redrive_dead_letter WHERE section = ?1 AND fingerprint = ?2),
        (SELECT max(queue) FROM redrive_dead_letter WHERE section = ?1 AND fingerprint = ?2)"""
_STANDING = """
    SELECT count(*), max(e.entries), count(i.expire_timeout), count(*) FILTER (WHERE {plain})
    FROM carray(?) AS c CROSS JOIN redrive_finished AS e ON e.item_no = c.value
    CROSS JOIN redrive_item AS i ON i.item_no = e.item_no"""
_PLAIN = {
    Verb.RETRY: "e.status = 'dead' AND e.held_by IS NULL AND i.idempotency_key IS NULL",
    # One that was never moved died where it is; another one may have to go back to where it died.
    Verb.REDRIVE: "e.status = 'dead' AND e.held_by IS NULL AND i.idempotency_key IS NULL AND i.source_id IS NULL",
    Verb.ARCHIVE: "e.status = 'dead'",
    Verb.RESTORE: "e.status = 'archived' AND e.archived_from = 'dead'",
    Verb.PURGE: "e.held_by IS NULL",
}
"""The status of items for which only that decides how a verb changes them."""


class BulkStep(msgspec.Struct, frozen=True):
    """What a step changed: everything that it met."""

    numbers: list[int]
    """The `n` of each item."""
    position: int | None
    exhausted: bool


def bulk_step(
    batch: Batch, action: ManualAction, where: Filter, after: int | None, up_to: int, limit: int
) -> BulkStep | None:
    """Change the next items that match, all of them. None where this is not the way, and nothing was changed."""
    index = _index(batch, action, where)
    if index is None:
        return None
    found, position, exhausted = _find(batch, where, index, after or 0, up_to, limit)
    chunks = _chunks(batch, action, found)
    if chunks is None:
        return None
    for each in chunks:
        apply_chunk(batch, action, each)
    return BulkStep([item_no for _, item_no, _ in found], position, exhausted)


def _index(batch: Batch, action: ManualAction, where: Filter) -> tuple[str, tuple[Any, ...]] | None:
    """Return the index condition; None if no statement finds the dead letters in the order of their deaths."""
    given = {name for name in where.__struct_fields__ if getattr(where, name) is not None}
    if (
        action.verb not in _SHELF
        or where.status is not _SHELF[action.verb]
        or not given <= _INDEXED | _CONDITIONS.keys()
    ):
        return None
    section = batch.namespace_key if where.status is Status.DEAD else -batch.namespace_key
    queue = None if where.queue is None else batch.by_name.get(where.queue)
    if where.queue is not None and queue is None:
        return None
    if where.fingerprint is None:
        return ("section = ?", (section,)) if queue is None else ("queue = ? AND section = ?", (queue.key, section))
    first, last = batch.execute(_QUEUES_OF, (section, where.fingerprint)).get
    key = queue.key if queue is not None else first
    if queue is None and first != last:
        return None
    return "section = ? AND fingerprint = ? AND queue = ?", (section, where.fingerprint, key)


def _find(
    batch: Batch, where: Filter, index: tuple[str, tuple[Any, ...]], after: int, up_to: int, limit: int
) -> tuple[list[tuple[int, int, int]], int | None, bool]:
    """Return the next matching dead letters (death_no, item_no, queue), the position, and whether it is the end."""
    asked = {name: value for name in _CONDITIONS if (value := getattr(where, name)) is not None}
    conditions = " AND ".join(_CONDITIONS[name] for name in asked) or "true"
    columns = ", reason, error_class, died_at, attempts" if asked else ""
    following = _NEXT.format(columns=columns, index=index[0])
    bounds = (*index[1], after, up_to, MAX_EXAMINED)
    meant = _MEANT.format(next=following, conditions=conditions)
    found = batch.execute(meant, (*bounds, *asked.values(), limit + 1)).fetchall()
    if len(found) > limit:
        return found[:limit], found[limit - 1][0], False
    examined, last = batch.execute(_EXAMINED.format(next=following), bounds).get
    return found, last, examined < MAX_EXAMINED


def _chunks(batch: Batch, action: ManualAction, found: list[tuple[int, int, int]]) -> list[BulkChunk] | None:
    """Return the items by queue; None if one of them must be checked individually."""
    queues: dict[int, tuple[list[int], list[int]]] = {}
    for death_no, item_no, queue in found:
        numbers, dead = queues.setdefault(queue, ([], []))
        numbers.append(item_no)
        dead.append(death_no)
    chunks = []
    statement = _STANDING.format(plain=_PLAIN[action.verb])
    for queue, (numbers, dead) in queues.items():
        row = batch.by_key.get(queue)
        if row is None or action.to not in (None, row.queue.name):
            return None
        if action.verb in _REVIVES and row.settings.max_size is not None:
            return None
        count, entries, timeouts, plain = batch.execute(statement, (batch.table(numbers),)).get
        if count < len(numbers) or plain < count:
            return None
        chunks.append(make_chunk(batch, row, numbers, dead, timeouts=bool(timeouts), entries=entries))
    return chunks
