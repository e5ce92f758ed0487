"""Items of the rules, made of their rows. Large values are read on first access, for all items together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.model.ids import ItemId, make_id, make_token
from redrive.model.item import (
    NO_OVERRIDES,
    WAITING_STATUSES,
    Death,
    HistoryEntry,
    HistoryEvent,
    Item,
    Overrides,
    Status,
)
from redrive.model.limits import MAX_PRIORITY
from redrive.model.payload import JSON
from redrive.stores.relational.item_rows import ItemRow
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import UNREADABLE, read_value, substitute_death, substitute_entry
from redrive.stores.rules.record import History, LeaseState, Record

_CONTENTS = """
    SELECT item_no, content_type, headers, put_at, expire_timeout, idempotency_key, overrides, source_id, origin_id,
        origin_queue, home_store
    FROM redrive_item WHERE item_no IN carray(?)"""
_SOURCE_ID = 6
"""Index of source_id in a row of contents without its number. An item that was never moved has none."""
_PAYLOADS = "SELECT item_no, payload FROM redrive_item WHERE item_no IN carray(?)"
HISTORIES = """
    SELECT h.item_no, h.data FROM carray(?) AS c CROSS JOIN redrive_history AS h ON h.item_no = c.value
    ORDER BY h.item_no, h.entry"""
DEATHS = """
    SELECT d.item_no, d.data FROM carray(?) AS c CROSS JOIN redrive_death AS d ON d.item_no = c.value
    ORDER BY d.item_no, d.key"""
_EARLIER = """
    SELECT l.item_no, l.old_item_no, l.old_id_suffix FROM carray(?) AS c
    CROSS JOIN redrive_former_id AS l ON l.item_no = c.value
    ORDER BY l.item_no, l.old_item_no"""
_LETTER = "SELECT fingerprint, died_at FROM redrive_dead_letter WHERE death_no = ?"
_COMPLETIONS = "SELECT item_no, died_at FROM redrive_dead_letter WHERE death_no IN carray(?)"
_ARCHIVE_EVENTS = (HistoryEvent.ARCHIVED, HistoryEvent.DROPPED, HistoryEvent.RESTORED)
decode_entry = msgspec.json.Decoder(HistoryEntry).decode
_decode_death = msgspec.json.Decoder(Death).decode
decode_headers: Callable[[Any], Mapping[str, str]] = msgspec.json.Decoder(dict[str, str]).decode
_NO_HEADERS: Mapping[str, str] = {}
_decode_overrides = msgspec.json.Decoder(Overrides).decode


class StoredHistory(History):
    """A history that is read on first access. Appending needs no read."""

    __slots__ = ("_reader", "_row", "added")

    def __init__(self, reader: RecordReader, row: ItemRow) -> None:
        super().__init__()
        self._reader, self._row = reader, row
        self.added: list[HistoryEntry] = []
        """Entries that are not stored yet."""

    def add(self, entry: HistoryEntry) -> None:
        self.added.append(entry)

    def entries(self) -> tuple[HistoryEntry, ...]:
        return self.copy().entries() if self.added else tuple(self._stored())

    @property
    def omitted(self) -> int:
        return self.copy().omitted if self.added else self._row.entries - len(self._stored())

    def last(self) -> HistoryEntry | None:
        return self.added[-1] if self.added else super().last()

    def copy(self) -> History:
        kept = self._stored()
        whole = History(kept, self._row.entries - len(kept))
        for entry in self.added:
            whole.add(entry)
        return whole

    def _stored(self) -> list[HistoryEntry]:
        return self._reader.history_of(self._row.item_no) if self._row.entries else []


class StoredRecord(Record):
    """An item that was read."""

    __slots__ = ("_payload", "_reader", "row")

    def __init__(self, reader: RecordReader, row: ItemRow, **fields: Any) -> None:
        self._reader, self.row = reader, row
        super().__init__(payload=None, **fields)  # type: ignore[arg-type]  # it is read when it is asked for

    @property
    def payload(self) -> bytes:
        if self._payload is None:
            self._reader.read_payloads()
        assert self._payload is not None
        return self._payload

    @payload.setter
    def payload(self, value: bytes | None) -> None:
        self._payload = value

    @property
    def has_payload(self) -> bool:
        """True if its payload was read."""
        return self._payload is not None

    @property
    def is_dropped(self) -> bool:
        """True according to the row, unless this transaction dropped or restored it: the stored history need not be
        read."""
        assert isinstance(self.history, StoredHistory)
        if self.status is not Status.ARCHIVED:
            return False
        changes = [entry.event for entry in self.history.added if entry.event in _ARCHIVE_EVENTS]
        return changes[-1] is HistoryEvent.DROPPED if changes else self.row.dropped_at is not None


class RecordReader:
    """The items that a transaction or a query has read; `names` has the names of queues by key."""

    def __init__(self, executor: Executor, names: Mapping[int, str]) -> None:
        self._executor, self._names = executor, names
        self.by_number: dict[int, StoredRecord] = {}
        """Items by stored number."""
        self._histories: dict[int, list[HistoryEntry]] = {}

    def read(self, rows: Collection[ItemRow], *, whole: bool = False) -> dict[int, StoredRecord]:
        """Return the items of these rows by number; only those in queues whose names are given.

        `whole`: payloads and histories are needed, and are read with the rest.
        """
        fresh = {row.item_no: row for row in rows if row.item_no not in self.by_number and row.queue in self._names}
        if fresh:
            self._read(fresh, whole)
        return {row.item_no: self.by_number[row.item_no] for row in rows if row.item_no in self.by_number}

    def _read(self, rows: Mapping[int, ItemRow], whole: bool) -> None:
        # All independent queries are sent before the first answer is awaited.
        sent = self._send(_CONTENTS, rows)
        deaths = self._send(DEATHS, [number for number, row in rows.items() if row.deaths])
        completed = self._send(_COMPLETIONS, [row.death_no for row in rows.values() if _is_dropped_completion(row)])
        payloads = self._send(_PAYLOADS, rows if whole else ())
        histories = self._send(HISTORIES, rows if whole else ())
        died: dict[int, list[Death]] = {}
        contents = {number: content for number, *content in sent}
        earlier = self._send(
            _EARLIER, [number for number, content in contents.items() if content[_SOURCE_ID] is not None]
        )
        for number, data in deaths:
            row = rows[number]
            died.setdefault(number, []).append(self._death(row, data))
        ids: dict[int, list[ItemId]] = {}
        for number, old, id_suffix in earlier:
            ids.setdefault(number, []).append(make_id(old, id_suffix))
        completions: dict[int, Instant] = dict(completed)
        for number, row in rows.items():
            if number in contents:
                past = [*ids.get(number, ()), row.id]
                completed_at = completions.get(number, _completed_at(row))
                self.by_number[number] = self._record(row, past, died.get(number, []), completed_at, contents[number])
        self._keep_payloads(payloads)
        if whole:
            self._keep_histories(rows, histories)

    def _death(self, row: ItemRow, data: bytes) -> Death:
        """Return a death. A substitute has the cause and the time of the index, by which the item is counted."""
        try:
            return _decode_death(data)
        except UNREADABLE:
            row.damage = "redrive_death"
        letter = None if row.death_no is None else self._executor.execute(_LETTER, (row.death_no,)).fetchone()
        return substitute_death(self._names[row.queue], row.id, *letter or ())

    def _send(self, statement: str, numbers: Iterable[int | None]) -> Iterable[Any]:
        listed = [number for number in numbers if number is not None]
        rows: Iterable[Any] = self._executor.execute(statement, (self._executor.table(listed),)) if listed else ()
        return rows

    def history_of(self, number: int) -> list[HistoryEntry]:
        """Return what is stored of a history. Those of all items that were read are read together."""
        if number not in self._histories:
            unread = [each for each in self.by_number if each not in self._histories]
            self._keep_histories(unread, self._send(HISTORIES, unread))
        return self._histories[number]

    def _keep_histories(self, numbers: Iterable[int], entries: Iterable[Any]) -> None:
        self._histories.update({number: [] for number in numbers})
        for number, data in entries:
            self._histories[number].append(self._entry(self.by_number[number], data))

    def _entry(self, item: StoredRecord, data: bytes) -> HistoryEntry:
        damaged = partial(setattr, item, "damage", "redrive_history")
        return read_value(decode_entry, data, substitute_entry(item.queue), damaged)

    def read_payloads(self) -> None:
        """Read the payloads of all items that were read without."""
        unread = [number for number, item in self.by_number.items() if not item.has_payload]
        self._keep_payloads(self._send(_PAYLOADS, unread))

    def _keep_payloads(self, payloads: Iterable[Any]) -> None:
        for number, payload in payloads:
            self.by_number[number].payload = payload

    def _record(
        self,
        row: ItemRow,
        ids: list[ItemId],
        deaths: list[Death],
        completed_at: Instant | None,
        content: Sequence[Any],
    ) -> StoredRecord:
        content_type, headers, put_at, expire_timeout, key, overrides, source_id, origin_id, origin_queue, home = (
            content
        )
        grant = None
        if row.token is not None:
            assert row.leased_at is not None
            assert row.deadline is not None
            token = make_token(row.item_no, row.id_suffix, row.token)
            grant = LeaseState(token, row.worker, row.leased_at, row.deadline, row.dead_reason)
        return StoredRecord(
            self,
            row,
            ids=ids,
            queue=self._names[row.queue],
            status=row.status,
            content_type=content_type or JSON,
            headers={} if headers is None else row.read("item", decode_headers, headers, _NO_HEADERS),
            priority=MAX_PRIORITY - row.rank,
            put_at=put_at,
            seq=row.seq,
            ready_at=row.ready_at,
            expire_timeout=expire_timeout,
            expire_deadline=row.expire_deadline,
            holders=row.holders,
            idempotency_key=key,
            overrides=row.read("item", overrides_of, overrides, NO_OVERRIDES),
            source_id=source_id,
            origin_id=origin_id,
            origin_queue=origin_queue,
            counters=row.counters,
            grant=grant,
            first_leased_at=row.first_leased_at,
            completed_at=completed_at,
            result=row.result,
            archived_from=row.archived_from,
            history=StoredHistory(self, row),
            deaths=deaths,
            is_in_dead_queue=_is_in_dead_queue(row),
            death_number=row.death_no or 0,
            home_store=home,
            route=row.route,
            damage=row.damage,
        )


def read_items(executor: Executor, rows: Collection[ItemRow], names: Mapping[int, str]) -> list[Item]:
    """Return the full items of these rows, in order."""
    records = RecordReader(executor, names).read(rows, whole=True)
    return [records[row.item_no].to_item() for row in rows]


def overrides_of(stored: str | None) -> Overrides:
    """Return the overrides of an item as its row has them."""
    return NO_OVERRIDES if stored is None else _decode_overrides(stored)


def _is_in_dead_queue(row: ItemRow) -> bool:
    if row.status is Status.ARCHIVED:
        return row.dead_reason is not None and row.archived_from in WAITING_STATUSES
    return row.death_no is not None and row.status is not Status.DEAD and not row.was_dead


def _is_dropped_completion(row: ItemRow) -> bool:
    """Return whether only the index entry has the time of the item's completion."""
    return row.dropped_at is not None and row.archived_from is Status.COMPLETED


def _completed_at(row: ItemRow) -> Instant | None:
    return row.ended_at if Status.COMPLETED in (row.status, row.archived_from) else None
