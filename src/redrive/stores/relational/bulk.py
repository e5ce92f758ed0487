"""Many items that are alike, changed together: a handful of statements for all of them.

Alike are dead items that go back to work where they are, or are archived; and archived ones that were dead and are
restored, or are purged. Whatever needs a look of its own (another queue, a limit of size, an idempotency key) is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from redrive.errors import RedriveError
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId, make_id, parse_id
from redrive.model.item import Counters, Event, Settled, Status
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.reason import DeadReason
from redrive.model.transitions import Verb
from redrive.store import Target
from redrive.stores.relational import feed, letters
from redrive.stores.relational.batch import Batch, QueueRow
from redrive.stores.relational.deeds import Deed
from redrive.stores.relational.places import STATE

_DELIVERY = '"delivery":'

FEW = 4
"""Up to here it is no dearer to change them one by one."""

_ENDED = """
    SELECT e.n, i.tail, e.queue, e.letter, e.entries, e.dead_reason, i.expire_timeout,
        i.source_id IS NULL, i.idempotency_key IS NULL, e.status, e.archived_from,
        e.deliveries, e.attempts, e.failures, e.losses, e.redrives
    FROM redrive_ended AS e CROSS JOIN redrive_item AS i ON i.n = e.n WHERE e.n IN carray(?)"""
_READY = f"""
    INSERT INTO redrive_ready (queue, n, {STATE})
    SELECT e.queue, e.n, e.rank, ?1, ?2 + c.rowid, ?3, e.deliveries, 0, 0, 0, e.redrives + 1, e.first_leased_at,
        e.entries + 1, e.deaths, NULL
    FROM carray(?4) AS c CROSS JOIN redrive_ended AS e ON e.n = c.value"""
_TIMEOUTS = """
    UPDATE redrive_ready SET expire_deadline = ?1 + i.expire_timeout FROM redrive_item AS i
    WHERE i.n = redrive_ready.n AND i.expire_timeout IS NOT NULL
        AND redrive_ready.n IN carray(?2) AND redrive_ready.seq <> redrive_ready.n"""
_HISTORY = """
    INSERT INTO redrive_history (key, n, entry, data)
    SELECT ?1 + c.rowid, e.n, e.entries + 1, CAST(?2 || e.deliveries || ?3 AS BLOB)
    FROM carray(?4) AS c CROSS JOIN redrive_ended AS e ON e.n = c.value"""
_FADED = f"""
    DELETE FROM redrive_history WHERE (n, entry) IN (
        SELECT n, entries + 1 - {HISTORY_LAST} FROM redrive_ended
        WHERE n IN carray(?) AND entries + 1 > {HISTORY_FIRST + HISTORY_LAST})"""
_ARCHIVE = "UPDATE redrive_ended SET status = 'archived', archived_from = 'dead' WHERE n IN carray(?)"
_RESTORE = "UPDATE redrive_ended SET status = 'dead', archived_from = NULL WHERE n IN carray(?)"


class Lot(msgspec.Struct, frozen=True):
    """Items of one queue that are changed together, in this order."""

    row: QueueRow
    count: int
    numbers: Any
    """The `n` of each, as a table."""
    letters: Any
    """The number of the death of each, as a table."""
    timeouts: bool
    """Some were put with an expire_timeout of their own."""
    long: bool
    """Some have a history that is as long as it can get."""


def lot(
    batch: Batch, row: QueueRow, numbers: Sequence[int], deaths: Sequence[int], *, timeouts: bool, entries: int
) -> Lot:
    """A lot; `entries` is how long the longest history is."""
    long = entries >= HISTORY_FIRST + HISTORY_LAST
    return Lot(row, len(numbers), batch.table(numbers), batch.table(deaths), timeouts, long)


class Alike(msgspec.Struct, frozen=True, gc=False):
    """One of many items that are changed together."""

    n: int
    tail: int
    queue: int
    letter: int
    entries: int
    dead_reason: str
    expire_timeout: int | None
    unmoved: bool
    keyless: bool
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
        return make_id(self.n, self.tail)


def find_alike(batch: Batch, deed: Deed, targets: Sequence[Target]) -> Mapping[ItemId, Alike]:
    """Those of the targets that can be changed together, by id: with one look at all of them."""
    if deed.verb not in _CHANGES or len(targets) <= FEW or len({target.id for target in targets}) < len(targets):
        return {}
    found: dict[ItemId, Alike] = {}
    tails = dict(_parsed(targets))
    if not tails:
        return found
    numbers = batch.table(tails)
    # An item that is listed under an old id too would be changed twice: it is left to be followed there.
    twice = {n for (n,) in batch.execute("SELECT n FROM redrive_lineage WHERE old IN carray(?)", (numbers,))}
    for row in batch.execute(_ENDED, (numbers,)):
        item = Alike(*row)
        if item.n in twice or item.tail != tails[item.n] or item.queue not in batch.by_key:
            continue
        if _is_plain(batch, deed, item):
            found[item.id] = item
    return found


def change_alike(batch: Batch, deed: Deed, items: Sequence[Alike]) -> list[Settled]:
    """Change items that were found to be alike, in this order."""
    change, settle = _CHANGES[deed.verb]
    queues: dict[int, list[Alike]] = {}
    for item in items:
        queues.setdefault(item.queue, []).append(item)
    for queue, members in queues.items():
        timeouts = any(item.expire_timeout is not None for item in members)
        entries = max(item.entries for item in members)
        numbers, dead = [item.n for item in members], [item.letter for item in members]
        change(batch, deed, lot(batch, batch.by_key[queue], numbers, dead, timeouts=timeouts, entries=entries))
    return [settle(batch, item) for item in items]


def change_lot(batch: Batch, deed: Deed, lot: Lot) -> None:
    """Change items of which the caller knows that they are alike."""
    _CHANGES[deed.verb][0](batch, deed, lot)


def _parsed(targets: Iterable[Target]) -> Iterator[tuple[int, int]]:
    for target in targets:
        if target.payload is None and target.headers is None:
            try:
                yield parse_id(target.id)
            except RedriveError:
                continue


def _is_plain(batch: Batch, deed: Deed, item: Alike) -> bool:
    """Whether nothing but its status decides what becomes of it."""
    match deed.verb:
        case Verb.PURGE:
            return item.status == Status.ARCHIVED
        case Verb.RESTORE:
            return item.status == Status.ARCHIVED and item.archived_from == Status.DEAD
        case Verb.ARCHIVE:
            return item.status == Status.DEAD
        case _:
            row = batch.by_key[item.queue]
            # One that was never moved died where it is; another one may have to go back to where it died.
            in_place = deed.verb is Verb.RETRY or (item.unmoved and deed.to in (None, row.queue.name))
            free = item.keyless and row.settings.max_size is None
            return item.status == Status.DEAD and in_place and free


def _revive(batch: Batch, deed: Deed, lot: Lot) -> None:
    """Back to work where they are, at the tail."""
    name, timeout, numbers, count = lot.row.queue.name, lot.row.settings.expire_timeout, lot.numbers, lot.count
    deadline = None if timeout is None else batch.now + timeout
    batch.execute(_READY, (batch.now, batch.draw(count) - 1, deadline, numbers))
    if lot.timeouts:
        batch.execute(_TIMEOUTS, (batch.now, numbers))
    # All entries are the same but for the delivery, which the statement fills in.
    entry = msgspec.json.encode(deed.entry(batch, Event.REDRIVEN, name, 0, Status.DEAD)).decode()
    before, _, after = entry.partition(f"{_DELIVERY}0")
    batch.execute(_HISTORY, (batch.draw(count) - 1, before + _DELIVERY, after, numbers))
    if lot.long:
        batch.execute(_FADED, (numbers,))
    batch.execute("DELETE FROM redrive_ended WHERE n IN carray(?)", (numbers,))
    letters.unmark_all(batch, lot.letters)
    feed.tell_all(batch, FeedKind.REDRIVEN, name, numbers, count, deed.actor, deed.operation)
    batch.tally_status(lot.row.key, Status.DEAD, -count)
    batch.tally_status(lot.row.key, Status.PENDING, count)
    batch.arrivals[name] += count


def _archive(batch: Batch, deed: Deed, lot: Lot) -> None:
    batch.execute(_ARCHIVE, (lot.numbers,))
    letters.shelve_all(batch, lot.letters)
    feed.tell_all(batch, FeedKind.ARCHIVED, lot.row.queue.name, lot.numbers, lot.count, deed.actor, deed.operation)
    batch.tally_status(lot.row.key, Status.DEAD, -lot.count)
    batch.tally_status(lot.row.key, Status.ARCHIVED, lot.count)


def _restore(batch: Batch, deed: Deed, lot: Lot) -> None:
    batch.execute(_RESTORE, (lot.numbers,))
    letters.unshelve_all(batch, lot.letters)
    feed.tell_all(batch, FeedKind.RESTORED, lot.row.queue.name, lot.numbers, lot.count, deed.actor, deed.operation)
    batch.tally_status(lot.row.key, Status.ARCHIVED, -lot.count)
    batch.tally_status(lot.row.key, Status.DEAD, lot.count)


def _purge(batch: Batch, deed: Deed, lot: Lot) -> None:
    told = (lot.row.queue.name, lot.numbers, lot.count, deed.actor, deed.operation, Status.ARCHIVED)
    feed.tell_all(batch, FeedKind.REMOVED, *told)
    letters.unmark_all(batch, lot.letters)
    for table in ("ended", "item", "history", "death", "lineage"):
        batch.execute(f"DELETE FROM redrive_{table} WHERE n IN carray(?)", (lot.numbers,))
    batch.tally_status(lot.row.key, Status.ARCHIVED, -lot.count)


def _revived(batch: Batch, item: Alike) -> Settled:
    counters = Counters(item.deliveries, redrives=item.redrives + 1)
    return Settled(item.id, batch.by_key[item.queue].queue.name, Status.PENDING, counters, batch.now)


def _archived(batch: Batch, item: Alike) -> Settled:
    name, reason = batch.by_key[item.queue].queue.name, DeadReason(item.dead_reason)
    return Settled(item.id, name, Status.ARCHIVED, item.counters, dead_reason=reason)


def _restored(batch: Batch, item: Alike) -> Settled:
    name, reason = batch.by_key[item.queue].queue.name, DeadReason(item.dead_reason)
    return Settled(item.id, name, Status.DEAD, item.counters, dead_reason=reason)


def _purged(batch: Batch, item: Alike) -> Settled:
    return Settled(item.id, batch.by_key[item.queue].queue.name, None, item.counters)


_CHANGES: dict[Verb, tuple[Callable[[Batch, Deed, Lot], None], Callable[[Batch, Alike], Settled]]] = {
    Verb.RETRY: (_revive, _revived),
    Verb.REDRIVE: (_revive, _revived),
    Verb.ARCHIVE: (_archive, _archived),
    Verb.RESTORE: (_restore, _restored),
    Verb.PURGE: (_purge, _purged),
}
"""What is done to items of one queue, and what is said of each."""
