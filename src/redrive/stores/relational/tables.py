"""The tables of `rules/tables.py`, idempotency keys and source ids, as rows that are read on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from redrive.clock import Instant
from redrive.contract.base import ENDED_KEY_RETENTION, LEDGER_RETENTION
from redrive.model.feed import FeedEntry
from redrive.model.ids import ItemId, make_id, parse_id
from redrive.model.item import KeptResult
from redrive.model.limits import MAX_INSTANT
from redrive.model.operation import TRACKED_VERBS, Operation
from redrive.stores.relational import feed, operations
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.dead_letters import count_letter
from redrive.stores.relational.deduplication import REMEMBER_KEY
from redrive.stores.relational.kept_results import keep_result
from redrive.stores.rules.queue_state import IdempotencyEntry, SourceEntry
from redrive.stores.rules.record import DeadLetterKey, Record
from redrive.stores.rules.tables import Feed, Groups, OperationTable, ResultTable

_LISTED = (
    "/*-*/ IN (SELECT value FROM json_each(?2)) /*-*//*= = ANY (ARRAY(SELECT json_array_elements_text(?2::json))) */"
)
_KEYS = f"""
    SELECT key, item_no, id_suffix, digest, expires_at FROM redrive_idempotency WHERE queue = ?1 AND key {_LISTED}"""
_DELETE_KEY = "DELETE FROM redrive_idempotency WHERE queue = ? AND key = ?"
_LEDGER = f"""
    SELECT source_id, item_no, id_suffix, closed_at FROM redrive_ledger WHERE queue = ?1 AND source_id {_LISTED}"""
_SOURCES = f"SELECT source_id, item_no, id_suffix FROM redrive_item WHERE queue = ?1 AND source_id {_LISTED}"
_REMEMBER_SOURCE = """
    INSERT INTO redrive_ledger (queue, source_id, item_no, id_suffix, closed_at) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (queue, source_id) DO UPDATE
    SET item_no = excluded.item_no, id_suffix = excluded.id_suffix, closed_at = excluded.closed_at"""
_CHANGED = "INSERT INTO redrive_operation_item (operation, item_no) VALUES (?, ?) ON CONFLICT DO NOTHING"
_ALL_CHANGED = """
    INSERT INTO redrive_operation_item (operation, item_no) SELECT ?, value FROM carray(?) WHERE true
    ON CONFLICT DO NOTHING"""
ASIDE = "\0"
"""The prefix of a key that was set aside. Its row has the negative key of its queue."""

Name = TypeVar("Name", bound=str)
Value = TypeVar("Value")


class RowTable(MutableMapping[Name, Value], Generic[Name, Value]):
    """Rows by name, each read once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._known: dict[Name, Value | None] = {}
        self._written: set[Name] = set()

    def _read(self, names: Sequence[Name]) -> Iterable[tuple[Name, Value]]:
        """Return the existing values of these names, which were not read before."""
        raise NotImplementedError

    def load(self, names: Iterable[Name]) -> None:
        """Read several names together."""
        unknown = [name for name in dict.fromkeys(names) if name not in self._known]
        if unknown:
            self._known.update(dict.fromkeys(unknown))
            self._known.update(self._read(unknown))

    def __getitem__(self, name: Name) -> Value:
        if name not in self._known:
            self.load((name,))
        value = self._known[name]
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: Name, value: Value) -> None:
        self._known[name] = value

    def __delitem__(self, name: Name) -> None:
        self._known[name] = None

    def _write(self, name: Name, statement: str, row: tuple[Any, ...]) -> None:
        """Write the row of a name. On PostgreSQL, one statement does not write it twice."""
        if name in self._written:
            self._batch.flush()
        self._written.add(name)
        self._batch.write(statement, row)

    def __iter__(self) -> Iterator[Name]:
        raise NotImplementedError("a table is not walked")

    def __len__(self) -> int:
        raise NotImplementedError("a table is not counted")


class Keys(RowTable[str, IdempotencyEntry]):
    """The idempotency keys of a queue."""

    def __init__(self, batch: Batch, queue: int) -> None:
        super().__init__(batch)
        self._queue = queue

    def _read(self, names: Sequence[str]) -> Iterable[tuple[str, IdempotencyEntry]]:
        aside = [name for name in names if name.startswith(ASIDE)]
        for sign, prefix, some in ((1, "", [name for name in names if name not in aside]), (-1, ASIDE, aside)):
            if some:
                listed = _encode([name.removeprefix(prefix) for name in some])
                for key, item_no, id_suffix, digest, expires_at in self._batch.execute(
                    _KEYS, (sign * self._queue, listed)
                ):
                    until = Instant(max(0, expires_at))
                    yield f"{prefix}{key}", IdempotencyEntry(make_id(item_no, id_suffix), digest, until)

    def __setitem__(self, name: str, known: IdempotencyEntry) -> None:
        super().__setitem__(name, known)
        expires_at = -(self._batch.now + ENDED_KEY_RETENTION) if known.ends_with_item else known.until
        self._write(name, REMEMBER_KEY, (*self._place(name), *parse_id(known.id), known.digest, expires_at))

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        self._batch.flush()  # a row that was just written may be this one
        self._batch.write(_DELETE_KEY, self._place(name))

    def _place(self, name: str) -> tuple[int, str]:
        self._batch.known_keys.pop((self._queue, name), None)  # the next put reads it again
        return (-self._queue, name[1:]) if name.startswith(ASIDE) else (self._queue, name)


class Sources(RowTable[ItemId, SourceEntry]):
    """The known source ids of a queue: those in the ledger, and those of present items."""

    def __init__(self, batch: Batch, queue: int) -> None:
        super().__init__(batch)
        self._queue = queue

    def _read(self, names: Sequence[ItemId]) -> Iterable[tuple[ItemId, SourceEntry]]:
        asked = (self._queue, _encode(names))
        there, ledger = self._batch.execute(_SOURCES, asked), self._batch.execute(_LEDGER, asked)
        for source_id, item_no, id_suffix in there:
            yield source_id, SourceEntry(make_id(item_no, id_suffix))
        for source_id, item_no, id_suffix, closed_at in ledger:
            until = MAX_INSTANT if closed_at is None else closed_at + LEDGER_RETENTION
            if until > self._batch.now:
                yield source_id, SourceEntry(make_id(item_no, id_suffix), Instant(until))

    def __setitem__(self, name: ItemId, source: SourceEntry) -> None:
        super().__setitem__(name, source)
        closed_at = None if source.until == MAX_INSTANT else source.until - LEDGER_RETENTION
        self._write(name, _REMEMBER_SOURCE, (self._queue, name, *parse_id(source.id), closed_at))


class SqlFeed(Feed):
    """The feed: entries are written at the end of the transaction."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def add(self, entry: FeedEntry) -> None:
        feed.append_entry(self._batch, entry)


class SqlGroups(Groups):
    """The groups of dead letters: counts, which change with their letters."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def join(self, letter: DeadLetterKey, item: Record) -> None:
        self._count(letter, 1)

    def leave(self, letter: DeadLetterKey) -> None:
        self._count(letter, -1)

    def _count(self, letter: DeadLetterKey, by: int) -> None:
        queue = self._batch.by_name[letter.queue].key
        count_letter(self._batch, queue, letter.fingerprint, letter.died_at, by)


class SqlOperations(OperationTable):
    """Operations, and the items that each has changed."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._read: dict[str, Operation] = {}

    def get(self, id: str) -> Operation | None:
        if id not in self._read:
            found = operations.find(self._batch, self._batch.namespace_key, id)
            if found is None:
                return None
            self._read[id] = found
        return self._read[id]

    def save(self, operation: Operation) -> None:
        self._read[operation.id] = operation
        operations.write(self._batch, operation)

    def remember(self, id: str, item: ItemId) -> None:
        self._batch.write(_CHANGED, (self._read[id].mark, parse_id(item)[0]))

    def remember_all(self, operation: Operation, numbers: Sequence[int]) -> None:
        """Record that an operation changed the items that had these numbers then."""
        if operation.verb in TRACKED_VERBS and numbers:
            self._batch.execute(_ALL_CHANGED, (operation.mark, self._batch.table(numbers)))


class SqlResults(ResultTable):
    """Results that outlive their items."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def keep(self, ids: Sequence[ItemId], result: KeptResult, until: Instant) -> None:
        keep_result(self._batch, ids, parse_id(ids[-1])[0], result.queue, result, until)


def _encode(names: Sequence[str]) -> str:
    return msgspec.json.encode(names).decode()
