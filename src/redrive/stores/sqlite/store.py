"""`SQLiteStore`: calls are executed in one durable transaction, which returns their results."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import apsw

from redrive.clock import Clock, Instant, SystemClock
from redrive.contract import Call, Query
from redrive.contract.item_calls import Put
from redrive.errors import InvalidInput, NotAStore, SchemaTooNew, SchemaTooOld, StoreUnavailable
from redrive.model.item import Receipt
from redrive.model.sqlite_url import OWNER_ONLY
from redrive.model.text import format_bytes
from redrive.store import Commit, Durability
from redrive.stores.relational.batch import Batch, SequenceAllocator, reseed_after_fork
from redrive.stores.relational.dispatch import execute_calls, write_pending
from redrive.stores.relational.puts import put_batch
from redrive.stores.relational.queries import answer_query
from redrive.stores.relational.queue_rows import NO_QUEUES, Queues, epoch_of
from redrive.stores.rules.damage import naming_damage
from redrive.stores.sqlite import schema
from redrive.stores.sqlite.database_files import names_of, several_names
from redrive.stores.sqlite.engine import LOG_LIMIT_BYTES, Engine
from redrive.stores.sqlite.examination import find_problems
from redrive.stores.sqlite.log_damage import damage_warnings
from redrive.stores.sqlite.session import LenientSession, Session

LARGE_LOG_BYTES = 4 * LOG_LIMIT_BYTES
"""A larger log means that a reader prevents its restart."""
_LARGEST = """
    SELECT max(
        coalesce((SELECT max(item_no) FROM redrive_item), 0), coalesce((SELECT max(key) + 1 FROM redrive_history), 0),
        coalesce((SELECT max(death_no) FROM redrive_dead_letter), 0), coalesce((SELECT max(death_no)
        FROM redrive_search_tombstone), 0),
        coalesce((SELECT max(number) FROM redrive_feed), 0),
        coalesce((SELECT max(number) FROM redrive_operation), 0))"""


class SQLiteStore:
    """Queues and items of one namespace in one SQLite file."""

    def __init__(
        self,
        path: Path,
        *,
        namespace: str = "default",
        name: str = "sqlite",
        relaxed: bool = False,
        mode: int = OWNER_ONLY,
        clock: Clock | None = None,
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.namespace = namespace
        self.name = name
        self._relaxed = relaxed
        self._closed = False
        self._noticed = -1
        self._numbers = SequenceAllocator()
        self._session: Session
        self._open(Engine(path.absolute(), relaxed=relaxed, mode=mode))

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        try:
            commit, self._queues = self._engine.transact(lambda connection: self._carry_out(connection, calls, now))
        except BaseException as error:
            # State read in that transaction may have been written in it, and is rolled back: the key of the namespace.
            self._current, self._queues = False, NO_QUEUES
            if isinstance(error.__cause__, UnicodeDecodeError) and not isinstance(self._session, LenientSession):
                return self._commit_leniently(calls, now)
            raise
        return commit

    def _commit_leniently(self, calls: Sequence[Call], now: Instant | None) -> Commit:
        """Execute calls that read a damaged text, and were rolled back."""
        session, self._session = self._session, LenientSession(self._engine.writer)
        try:
            return self.commit(calls, now)
        finally:
            self._session = session

    def read(self, query: Query) -> Any:
        with naming_damage(self.name), self._engine.reading() as connection:
            try:
                return answer_query(Session(connection), query, self.namespace, self.clock.now())
            except UnicodeDecodeError as error:
                traceback.clear_frames(error.__traceback__)
                return answer_query(LenientSession(connection), query, self.namespace, self.clock.now())

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        if not isinstance(connection, apsw.Connection):
            raise InvalidInput(
                f"transaction takes an apsw.Connection to {self._path}, not {type(connection).__name__}; "
                "the sqlite3 module brings another copy of SQLite, and two copies on one file can damage it"
            )
        if not connection.in_transaction:
            raise InvalidInput("transaction takes a connection with a transaction open; begin one, put, then commit it")
        if Path(connection.db_filename("main")) != self._filename:
            raise InvalidInput(f"transaction takes a connection to {self._path}, and this one is to another database")
        self._engine.check_files()
        self._engine.check_log()
        with self._engine.translated(), connection:
            self._lock_for_writing(connection)
            session = Session(connection)
            queues = Queues.read(session, self.namespace)
            self._numbers.raise_to(_largest_number(connection))
            batch = Batch(session, self.clock.now(), queues, self._numbers, self.namespace, self.name)
            receipts = put_batch(batch, (put,))
            write_pending(batch)
        return receipts

    def poll_changes(self) -> Collection[str] | None:
        version = self._engine.data_version()
        changed, self._noticed = version != self._noticed, version
        return None if changed else ()

    def subscribe(self, wake: Callable[[], None]) -> None:
        """Do nothing: a file sends no notifications."""

    def durability(self) -> Durability:
        if self._relaxed:
            return Durability("relaxed", "a crash of the program", "the last calls, if power or the system fails")
        return Durability("full", "a crash of the program and a power cut", "nothing that was acknowledged")

    def warnings(self) -> tuple[str, ...]:
        try:
            self._engine.check_files()
            self._engine.check_log()
            names = names_of(self._engine.name)
        except (StoreUnavailable, OSError) as error:
            return (str(error), *damage_warnings(self._engine.name))
        found = list(damage_warnings(self._engine.name))
        if names > 1:
            found.append(f"{self._path}: {several_names(names)}")
        if (log := self._engine.log_bytes()) > LARGE_LOG_BYTES:
            found.append(
                f"The log of {self._path} has grown to {format_bytes(log)}: it cannot restart "
                "while a program reads in one long transaction; end that transaction, or the program"
            )
        return tuple(found)

    def examine(self) -> tuple[str, ...]:
        try:
            with self._engine.reading() as connection:
                return tuple(f"The store {self._path} is damaged: {problem}" for problem in find_problems(connection))
        except NotAStore as error:
            return (str(error),)
        except UnicodeDecodeError as error:
            return (f"The store {self._path} is damaged: {error}",)

    def reopen(self) -> None:
        self._engine.reopen()
        reseed_after_fork()
        self._forget()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.close()

    def _carry_out(
        self, connection: apsw.Connection, calls: Sequence[Call], now: Instant | None
    ) -> tuple[Commit, Queues]:
        """Execute all calls inside a transaction, kind by kind. Also returns the queues that are valid if it
        commits."""
        self._catch_up(connection)
        instant = self.clock.now() if now is None else now
        batch = Batch(self._session, instant, self._queues, self._numbers, self.namespace, self.name)
        return Commit(execute_calls(batch, calls), batch.arrivals, batch.now), batch.queues

    def _open(self, engine: Engine) -> None:
        self._engine = engine
        self.place = engine.name
        self._path = Path(engine.name)
        self._filename = Path(engine.writer.db_filename("main"))
        self._closed = False
        self._forget()
        try:
            with engine.translated():
                found = schema.version_of(engine.writer)
            if found > schema.NEWEST:
                raise SchemaTooNew(str(self._path), found, schema.NEWEST)
            if 0 < found < schema.FIRST:
                raise SchemaTooOld(str(self._path), found, schema.FIRST)
            if found < schema.NEWEST:
                engine.transact(lambda connection: schema.migrate(connection, self.clock.now()))
        except BaseException:
            self.close()
            raise

    def _forget(self) -> None:
        self._session = Session(self._engine.writer)
        self._current = False
        self._noticed = -1
        self._queues = NO_QUEUES

    def _lock_for_writing(self, connection: apsw.Connection) -> None:
        """Take the write lock before anything is read in the caller's transaction: allocating numbers needs it."""
        try:
            connection.execute("UPDATE redrive_meta SET epoch = epoch WHERE false")
        except apsw.BusyError as error:
            raise StoreUnavailable(
                str(self._path), "others write to it; begin the transaction with BEGIN IMMEDIATE and a busy timeout"
            ) from error

    def _catch_up(self, connection: apsw.Connection) -> None:
        """Read what other processes committed since: numbers they allocated, queues they changed."""
        if self._engine.alone and self._current:
            return
        self._numbers.raise_to(_largest_number(connection))
        if epoch_of(self._session) != self._queues.epoch:
            self._queues = Queues.read(self._session, self.namespace)
        self._current = True


def _largest_number(connection: apsw.Connection) -> int:
    """Return the largest allocated number: of an id, a queue position, a death, or a history entry.

    A queue position is allocated next to the key of a history row (see `verdicts.record`), right before or after it.
    """
    largest: int = connection.execute(_LARGEST).get
    return largest
