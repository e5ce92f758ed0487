"""What is written about an item beside its place, and decides where it goes when somebody changes it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.model.item import Death, HistoryEntry
from redrive.stores.relational.batch import Batch

if TYPE_CHECKING:
    from redrive.stores.relational.item_rows import ItemRow

_ITEMS = "SELECT n, expire_timeout, idempotency_key, home FROM redrive_item WHERE n IN carray(?)"
_LETTERS = "SELECT d, queue, shelf, fingerprint, died_at FROM redrive_letter WHERE d IN carray(?)"
_DEATHS = """
    SELECT d.n, d.data FROM carray(?) AS c CROSS JOIN redrive_death AS d ON d.n = c.value ORDER BY d.key"""
_HISTORY = "SELECT n, data FROM redrive_history WHERE n IN carray(?) ORDER BY n, entry"
_decode_death = msgspec.json.Decoder(Death).decode
_decode_entry = msgspec.json.Decoder(HistoryEntry).decode


class DeadLetterDetails(NamedTuple):
    """What a dead letter, or an archived item, is counted and found by."""

    queue: int
    shelf: int
    fingerprint: str
    died_at: Instant


class ItemDetails(msgspec.Struct):
    """Of one item, as they were when somebody looked."""

    expire_timeout: int | None
    """What it was put with."""
    idempotency_key: str | None
    home_store: str | None
    """Where it came from, if that was another store."""
    letter: DeadLetterDetails | None = None
    last_death: bytes | None = None
    history: tuple[HistoryEntry, ...] | None = None
    """Oldest first. None where nobody asked for it."""

    @property
    def death(self) -> Death:
        """Its newest death, of which there is one."""
        assert self.last_death is not None
        return _decode_death(self.last_death)


def item_details(batch: Batch, place: ItemRow) -> ItemDetails:
    """The particulars of an item."""
    if place.particulars is None:
        read_particulars(batch, [place])
    assert place.particulars is not None
    return place.particulars


def history_of(batch: Batch, place: ItemRow) -> tuple[HistoryEntry, ...]:
    """What is kept of an item's history, oldest first."""
    if place.particulars is None or place.particulars.history is None:
        read_particulars(batch, [place], history=True)
    assert place.particulars is not None
    assert place.particulars.history is not None
    return place.particulars.history


def read_particulars(batch: Batch, places: Collection[ItemRow], *, history: bool = False) -> None:
    """Look at the particulars of many items, with one look at each table."""
    numbers = batch.table([place.n for place in places])
    letters = batch.table([place.letter for place in places if place.letter is not None])
    # All are sent before the first is waited for.
    items = batch.execute(_ITEMS, (numbers,))
    counted = batch.execute(_LETTERS, (letters,))
    deaths = batch.execute(_DEATHS, (batch.table([place.n for place in places if place.deaths]),))
    entries = batch.execute(_HISTORY, (numbers,)) if history else None
    particulars = {n: ItemDetails(*row) for n, *row in items.fetchall()}
    found = {d: DeadLetterDetails(*row) for d, *row in counted.fetchall()}
    last_deaths = dict(deaths.fetchall())
    histories: dict[int, list[HistoryEntry]] = {}
    for n, data in () if entries is None else entries.fetchall():
        histories.setdefault(n, []).append(_decode_entry(data))
    for place in places:
        place.particulars = about = particulars[place.n]
        about.letter = None if place.letter is None else found[place.letter]
        about.last_death = last_deaths.get(place.n)
        if history:
            about.history = tuple(histories.get(place.n, ()))
