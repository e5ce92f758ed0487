"""Details of an item beside its state row, which decide how a manual change treats it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.model.item import Death, HistoryEntry
from redrive.stores.relational.batch import Batch

if TYPE_CHECKING:
    from redrive.stores.relational.item_rows import ItemRow

_ITEMS = "SELECT item_no, expire_timeout, idempotency_key, home_store FROM redrive_item WHERE item_no IN carray(?)"
_LETTERS = "SELECT death_no, queue, section, fingerprint, died_at FROM redrive_dead_letter WHERE death_no IN carray(?)"
_DEATHS = """
    SELECT d.item_no, d.data FROM carray(?) AS c CROSS JOIN redrive_death AS d ON d.item_no = c.value ORDER BY d.key"""
_HISTORY = "SELECT item_no, data FROM redrive_history WHERE item_no IN carray(?) ORDER BY item_no, entry"
_decode_death = msgspec.json.Decoder(Death).decode
_decode_entry = msgspec.json.Decoder(HistoryEntry).decode


class DeadLetterDetails(NamedTuple):
    """The index entry of a dead letter or archived item."""

    queue: int
    section: int
    fingerprint: str
    died_at: Instant


class ItemDetails(msgspec.Struct):
    """Details of one item when they were read."""

    expire_timeout: int | None
    """What it was put with."""
    idempotency_key: str | None
    home_store: str | None
    """Where it came from, if that was another store."""
    dead_letter: DeadLetterDetails | None = None
    last_death: bytes | None = None
    history: tuple[HistoryEntry, ...] | None = None
    """Oldest first. None if not requested."""

    @property
    def death(self) -> Death:
        """Its newest death, which must exist."""
        assert self.last_death is not None
        return _decode_death(self.last_death)


def item_details(batch: Batch, item_row: ItemRow) -> ItemDetails:
    """The particulars of an item."""
    if item_row.details is None:
        read_details(batch, [item_row])
    assert item_row.details is not None
    return item_row.details


def history_of(batch: Batch, item_row: ItemRow) -> tuple[HistoryEntry, ...]:
    """What is kept of an item's history, oldest first."""
    if item_row.details is None or item_row.details.history is None:
        read_details(batch, [item_row], history=True)
    assert item_row.details is not None
    assert item_row.details.history is not None
    return item_row.details.history


def read_details(batch: Batch, item_rows: Collection[ItemRow], *, history: bool = False) -> None:
    """Read the details of many items, with one query per table."""
    numbers = batch.table([item_row.item_no for item_row in item_rows])
    death_nos = batch.table([item_row.death_no for item_row in item_rows if item_row.death_no is not None])
    # All are sent before the first is waited for.
    items = batch.execute(_ITEMS, (numbers,))
    counted = batch.execute(_LETTERS, (death_nos,))
    deaths = batch.execute(_DEATHS, (batch.table([item_row.item_no for item_row in item_rows if item_row.deaths]),))
    entries = batch.execute(_HISTORY, (numbers,)) if history else None
    details = {item_no: ItemDetails(*row) for item_no, *row in items.fetchall()}
    found = {death_no: DeadLetterDetails(*row) for death_no, *row in counted.fetchall()}
    last_deaths = dict(deaths.fetchall())
    histories: dict[int, list[HistoryEntry]] = {}
    for item_no, data in () if entries is None else entries.fetchall():
        histories.setdefault(item_no, []).append(_decode_entry(data))
    for item_row in item_rows:
        item_row.details = about = details[item_row.item_no]
        about.dead_letter = None if item_row.death_no is None else found[item_row.death_no]
        about.last_death = last_deaths.get(item_row.item_no)
        if history:
            about.history = tuple(histories.get(item_row.item_no, ()))
