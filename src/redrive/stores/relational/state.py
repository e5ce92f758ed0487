"""The state that the rules of `redrive.stores.rules` work on, in one transaction of an SQL database.

Items are read in bulk, each once. The rules change them in this process, and `flush` writes what has changed. The
tables are the indexes: to file an item is to write its row. A statement does not see what is not written yet.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from redrive.contract.item_calls import NewItem
from redrive.model.arrival import ledger_key
from redrive.model.filter import Filter, Order
from redrive.model.ids import PARTITION_BITS, ItemId, make_id, result_topic
from redrive.model.manual_change import death_text, is_outcome_of_death
from redrive.model.queue import QueueSettings
from redrive.model.state_machine import Verb
from redrive.stores.relational import find, verdicts
from redrive.stores.relational.batch import Batch, random_salt
from redrive.stores.relational.dead_letters import write_search_terms
from redrive.stores.relational.deduplication import digest_of
from redrive.stores.relational.holder_index import held_numbers
from redrive.stores.relational.item_rows import ItemRow, find_all, find_by_ids
from redrive.stores.relational.queue_rows import epoch_of
from redrive.stores.relational.queue_state import Queues
from redrive.stores.relational.record_rows import erase_record, write_record
from redrive.stores.relational.records import RecordReader, StoredHistory
from redrive.stores.relational.search_scope import scope_of
from redrive.stores.relational.tables import (
    ASIDE,
    RowTable,
    SqlFeed,
    SqlGroups,
    SqlOperations,
    SqlResults,
)
from redrive.stores.rules.find import FoundItems
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State

_OPEN_MOVE = "UPDATE redrive_ledger SET store = ? WHERE queue = ? AND source_id = ?"


class Items(RowTable[ItemId, Record]):
    """Items by every id that they have or had."""

    def __init__(self, batch: Batch, reader: RecordReader) -> None:
        super().__init__(batch)
        self._reader = reader

    def _read(self, names: Sequence[ItemId]) -> Iterable[tuple[ItemId, Record]]:
        found = find_by_ids(self._batch, names)
        records = self.adopt(found.values())
        return ((id, records[row.item_no]) for id, row in found.items() if row.item_no in records)

    def adopt(self, rows: Collection[ItemRow]) -> Mapping[int, Record]:
        """Read the items of state rows that were found. Returns them by number."""
        records = self._reader.read(rows)
        for item in records.values():
            for id in item.ids:
                self._known.setdefault(id, item)
        return records


class SqlState(State):
    """The queues and items of one namespace in one transaction."""

    queues: Queues
    items: Items
    operations: SqlOperations

    def __init__(self, batch: Batch) -> None:
        super().__init__(
            batch.namespace,
            batch.store,
            queues=Queues(batch),
            items=Items(batch, RecordReader(batch, batch.queues.names)),
            groups=SqlGroups(batch),
            feed=SqlFeed(batch),
            operations=SqlOperations(batch),
            results=SqlResults(batch),
        )
        self.batch = batch
        self.now = batch.now
        self.arrivals = batch.arrivals  # type: ignore[assignment]
        self._changed: dict[Record, bool] = {}
        """Items to write, in the order of their last changes; False: to delete."""
        self._texts: dict[Record, str] = {}
        """Texts to index for new dead letters."""
        if batch.unindexed:  # the rules may move or remove these letters
            write_search_terms(batch)

    # Reading

    def load(self, ids: Iterable[ItemId]) -> None:
        """Read items together that are needed later."""
        self.items.load(ItemId(id.lower()) for id in ids)

    def prefetch(self, queue: str, kind: str, names: Sequence[str]) -> None:
        """Read the idempotency keys or source ids of a queue together, and the items that they name."""
        if names and queue in self.queues:
            opened = self.queues[queue]
            if kind == "keys":
                self.lock_keys(opened, names)
            table = getattr(opened, kind)
            table.load(names)
            self.items.load(known.id for name in names if (known := table.get(name)) is not None)

    def settings(self) -> dict[str, QueueSettings]:
        return {name: row.settings for name, row in self.batch.by_name.items()}

    def lock_keys(self, queue: QueueState, keys: Sequence[str]) -> None:
        self.batch.session.lock_idempotency_keys(self.batch, self.batch.by_name[queue.name].key, keys)

    def held_ids(self, held_by: str, limit: int) -> list[ItemId]:
        numbers = held_numbers(self.batch, self.namespace, self.batch.namespace_key, held_by, limit)
        return [item.id for item in self.load_numbers(numbers)]

    def select(
        self, where: Filter, order: Order, limit: int, after: int | None = None, *, up_to: int | None = None
    ) -> FoundItems:
        """Return the next matches by the indexes of the database."""
        newest = order is Order.NEWEST
        scope = scope_of(self.batch)
        found = find.select(self.batch, scope, where, limit=limit, after=after, up_to=up_to, newest=newest)
        items = self.load_numbers(found.numbers)
        positions = [item.death_number if where.is_for_dead_letters else item.number for item in items]
        return FoundItems(list(zip(positions, items, strict=True)), found.position, found.exhausted)

    def load_numbers(self, numbers: Sequence[int]) -> list[Record]:
        """Return items by stored number, in order."""
        rows = find_all(self.batch, numbers)
        records = self.items.adopt(rows.values())
        return [records[number] for number in numbers if number in records]

    # Changing

    def draw_number(self) -> int:
        return self.batch.allocate()

    def next_version(self) -> int:
        """Return the epoch, which grows when the queue is written."""
        return epoch_of(self.batch)

    def allocate_id(self, number: int) -> ItemId:
        return make_id(number, random_salt() << PARTITION_BITS)

    def digest(self, new: NewItem) -> bytes:
        return digest_of(new)

    def aside_key(self, item: Record) -> str:
        return f"{ASIDE}{item.id}"

    def index_words(self, item: Record) -> None:
        """Collect the words. They are written at the end, when the first parts of all payloads are read together."""
        death = item.deaths[-1]
        history = item.history
        added = history.added if isinstance(history, StoredHistory) else history.entries()
        is_new = any(is_outcome_of_death(death, entry) for entry in added)
        self._texts[item] = death_text(death, added if is_new else history.entries())

    def open_move(self, queue: str, store: str, source_id: ItemId) -> None:
        """Record the store of origin in the ledger."""
        self.batch.write(_OPEN_MOVE, (store, self.batch.by_name[queue].key, ledger_key(source_id)))

    def close_move(self, queue: str, store: str, source_id: ItemId) -> None:
        """Do nothing: the entry of the source in the ledger is closed."""

    def wake_awaiting(self, item: Record) -> None:
        for id in item.ids:
            self.batch.arrivals[result_topic(id)] += 1

    def write_audit(
        self, actor: str, verb: str, queue: str | None, ids: tuple[ItemId, ...], count: int, note: str | None = None
    ) -> None:
        verdicts.audit(self.batch, actor, verb, queue, ids, count, note)

    def remove(self, item: Record, verb: Verb, *, forced: bool = False) -> None:
        super().remove(item, verb, forced=forced)
        self._mark(item, keeps=False)

    def _index(self, item: Record) -> None:
        self.queues[item.queue].counts[item.status] += 1
        self._mark(item, keeps=True)

    def _unindex(self, item: Record) -> None:
        self.queues[item.queue].counts[item.status] -= 1

    def _mark(self, item: Record, *, keeps: bool) -> None:
        self.batch.changes += 1
        self._changed.pop(item, None)
        self._changed[item] = keeps

    # Writing

    def flush(self) -> None:
        """Write all changes, each item once. The state must not be read afterwards."""
        for item, keeps in self._changed.items():
            if keeps:
                write_record(self.batch, item, self._texts.get(item))
            else:
                erase_record(self.batch, item)
        self.queues.write()
        self.batch.flush()
