"""`SQLiteStore`: calls in, one durable transaction, results out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import apsw

from redrive.clock import Clock, Instant, SystemClock
from redrive.errors import InvalidInput, NotAStore, RedriveError, SchemaTooNew, StoreUnavailable
from redrive.model.item import Receipt
from redrive.store import (
    KINDS,
    Call,
    Change,
    Clean,
    Commit,
    Complete,
    Durability,
    Expire,
    Hold,
    Import,
    LeaseItems,
    Promote,
    Put,
    Query,
    SetOperation,
    StartOperation,
    StepOperation,
    Unhold,
)
from redrive.stores.sqlite import groups, letters, schema
from redrive.stores.sqlite.batch import NO_QUEUES, Batch, Numbers, Queues, draw_anew, epoch_of
from redrive.stores.sqlite.by_hand import change, hold, unhold
from redrive.stores.sqlite.engine import Engine
from redrive.stores.sqlite.imports import import_items
from redrive.stores.sqlite.leases import lease_all
from redrive.stores.sqlite.operations import set_operation, start, step
from redrive.stores.sqlite.puts import put_all, put_together
from redrive.stores.sqlite.queries import answer
from redrive.stores.sqlite.queues import change_queue
from redrive.stores.sqlite.settles import settle_all
from redrive.stores.sqlite.upkeep import clean, expire, promote_all

_LARGEST = """
    SELECT max(
        coalesce((SELECT max(n) FROM redrive_item), 0), coalesce((SELECT max(key) + 1 FROM redrive_history), 0),
        coalesce((SELECT max(d) FROM redrive_letter), 0), coalesce((SELECT max(d) FROM redrive_wordless), 0),
        coalesce((SELECT max(number) FROM redrive_feed), 0),
        coalesce((SELECT max(number) FROM redrive_operation), 0))"""

Handler = Callable[[Batch, Sequence[Any]], list[Any]]


class SQLiteStore:
    """Queues and items of one namespace in one SQLite file."""

    def __init__(
        self,
        path: Path,
        *,
        namespace: str = "default",
        name: str = "sqlite",
        relaxed: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.namespace = namespace
        self.name = name
        self._relaxed = relaxed
        self._closed = False
        self._noticed = -1
        self._path = path.absolute()
        self._numbers = Numbers()
        self._open(Engine(self._path, relaxed=relaxed))

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        try:
            commit, self._queues = self._engine.transact(lambda connection: self._carry_out(connection, calls, now))
        except BaseException:
            # What was read in that transaction may have been written in it, and is gone: the key of the namespace.
            self._current, self._queues = False, NO_QUEUES
            raise
        return commit

    def read(self, query: Query) -> Any:
        with self._engine.reading() as connection:
            return answer(connection, query, self.namespace, self.clock.now())

    def put_within(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        if not isinstance(connection, apsw.Connection):
            raise InvalidInput(
                f"within takes an apsw.Connection to {self._path}, not {type(connection).__name__}; the sqlite3 module "
                f"brings another copy of SQLite, and two copies on one file can damage it"
            )
        if not connection.in_transaction:
            raise InvalidInput("within takes a connection with a transaction open; begin one, put, then commit it")
        if Path(connection.db_filename("main")) != self._filename:
            raise InvalidInput(f"within takes a connection to {self._path}, and this one is to another database")
        with self._engine.translated(), connection:
            self._lock_for_writing(connection)
            queues = Queues.read(connection, self.namespace)
            self._numbers.raise_to(_largest_number(connection))
            batch = Batch(connection, self.clock.now(), queues, self._numbers, self.namespace, self.name)
            receipts = put_together(batch, (put,))[0]
            _write_counts(batch)
        return receipts

    def changed(self) -> Collection[str] | None:
        version = self._engine.data_version()
        changed, self._noticed = version != self._noticed, version
        return None if changed else ()

    def durability(self) -> Durability:
        if self._relaxed:
            return Durability("relaxed", "a crash of the program", "the last calls, if power or the system fails")
        return Durability("full", "a crash of the program and a power cut", "nothing that was acknowledged")

    def reopen(self) -> None:
        self._engine.reopen()
        draw_anew()
        self._forget()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.close()

    def _carry_out(
        self, connection: apsw.Connection, calls: Sequence[Call], now: Instant | None
    ) -> tuple[Commit, Queues]:
        """Inside a transaction: all calls, kind by kind. Gives the queues as they are if it commits, too."""
        self._catch_up(connection)
        batch = self._batch(connection, self.clock.now() if now is None else now)
        kinds = {call.__class__ for call in calls}
        if len(kinds) == 1 and (only := kinds.pop()) in _UNIFORM:
            results = _HANDLERS[_KIND[only]](batch, calls)
        else:
            results = _by_kind(batch, calls)
        _write_counts(batch)
        return Commit(results, batch.arrivals, batch.now), batch.queues

    def _open(self, engine: Engine) -> None:
        self._engine = engine
        self._filename = Path(engine.writer.db_filename("main"))
        self._closed = False
        self._forget()
        try:
            with engine.translated():
                found = schema.version_of(engine.writer)
            if found > schema.NEWEST:
                raise SchemaTooNew(str(self._path), found, schema.NEWEST)
            if 0 < found < schema.FIRST:
                raise NotAStore(str(self._path), f"it has schema {found}, which no release of Redrive ever had")
            if found < schema.NEWEST:
                engine.transact(lambda connection: schema.migrate(connection, self.clock.now()))
        except BaseException:
            self.close()
            raise

    def _forget(self) -> None:
        self._current = False
        self._noticed = -1
        self._queues = NO_QUEUES

    def _lock_for_writing(self, connection: apsw.Connection) -> None:
        """Before anything is read in the caller's transaction: whoever draws numbers holds the lock of the file."""
        try:
            connection.execute("UPDATE redrive_meta SET epoch = epoch WHERE false")
        except apsw.BusyError as error:
            raise StoreUnavailable(
                str(self._path), "others write to it; begin the transaction with BEGIN IMMEDIATE and a busy timeout"
            ) from error

    def _batch(self, connection: apsw.Connection, now: Instant) -> Batch:
        return Batch(connection, now, self._queues, self._numbers, self.namespace, self.name)

    def _catch_up(self, connection: apsw.Connection) -> None:
        """Notice what others committed since: numbers they drew, queues they changed."""
        if self._engine.alone and self._current:
            return
        self._numbers.raise_to(_largest_number(connection))
        if epoch_of(connection) != self._queues.epoch:
            self._queues = Queues.read(connection, self.namespace)
        self._current = True


def _write_counts(batch: Batch) -> None:
    """What a transaction gathered to the end."""
    if batch.unworded:
        letters.write_words(batch)
    if batch.groups:
        groups.write(batch)
    batch.write_tallies()


def _by_kind(batch: Batch, calls: Sequence[Call]) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    kinds: dict[int, list[int]] = {}
    for index, call in enumerate(calls):
        kinds.setdefault(_KIND[call.__class__], []).append(index)
    for kind in sorted(kinds):
        members = kinds[kind]
        for index, result in zip(members, _HANDLERS[kind](batch, [calls[i] for i in members]), strict=True):
            results[index] = result
    return results


def _largest_number(connection: apsw.Connection) -> int:
    """The largest number that was drawn: of an item's id, its place at the tail, its death, or what happened to it.

    A place at the tail is drawn next to the key of a history row (see `verdicts.record`), before it or right after it.
    """
    largest: int = connection.execute(_LARGEST).get
    return largest


def _one_by_one(handlers: dict[type[Any], Callable[[Batch, Any], Any]]) -> Handler:
    def handle(batch: Batch, call: Any) -> Any:
        try:
            return handlers[call.__class__](batch, call)
        except RedriveError as refusal:
            return refusal

    return lambda batch, calls: [handle(batch, call) for call in calls]


_KIND = {call: rank for rank, kind in enumerate(KINDS) for call in kind}
_HANDLERS: tuple[Handler, ...] = (
    _one_by_one(dict.fromkeys(KINDS[0], change_queue)),
    put_all,
    _one_by_one({Import: import_items}),
    _one_by_one({Hold: hold, Unhold: unhold}),
    settle_all,
    _one_by_one({Change: change}),
    _one_by_one({StartOperation: start, StepOperation: step, SetOperation: set_operation}),
    _one_by_one({Promote: promote_all, Expire: expire, Clean: clean}),
    lease_all,
)
"""Who carries out each kind, in the order of KINDS."""
_UNIFORM = frozenset({Put, Complete, LeaseItems})
"""What batches often consist of: they need no sorting by kind."""
