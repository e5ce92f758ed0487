"""`PostgresStore`: calls are executed in one durable transaction, which returns their results.

Transactions of one namespace that only put, lease and settle run concurrently: each row is locked when it is read. A
transaction that reads more than the rows it changes (queues, keys, manual changes, operations, deaths) locks the
namespace exclusively; the others share that lock.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from redrive.clock import Clock, Instant, ServerClock
from redrive.contract import Call, Query
from redrive.contract.admin_calls import StepOperation, UpdateQueue
from redrive.contract.item_calls import Put
from redrive.contract.queries import GetOverdue, ReadFeed
from redrive.errors import Closed, InvalidInput
from redrive.model.duration import MINUTE
from redrive.model.item import Receipt
from redrive.model.text import format_elapsed
from redrive.store import Commit, Durability, commit_rest
from redrive.stores.postgres import schema
from redrive.stores.postgres.dialect import Texts
from redrive.stores.postgres.engine import Engine
from redrive.stores.postgres.listen_notify import ListenNotify
from redrive.stores.postgres.low_water_marks import HAS_ID, HOLDS_META, LowWaterMarks
from redrive.stores.postgres.session import LOCK_KEYS, Session
from redrive.stores.relational.batch import LEFT, Batch, SequenceAllocator, reseed_after_fork
from redrive.stores.relational.dispatch import execute_calls, write_pending
from redrive.stores.relational.low_water_marks import INSTANT_KINDS
from redrive.stores.relational.puts import put_batch
from redrive.stores.relational.queries import answer_query
from redrive.stores.relational.queue_rows import NO_QUEUES, Queues
from redrive.stores.relational.unrelated_rows import find_unrelated_rows
from redrive.stores.rules.damage import naming_damage

_BEGUN = """
    SELECT epoch, nextval('redrive_number'), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    FROM redrive_meta, pg_current_xact_id()"""
"""Start of a transaction. It locks redrive_meta, gets its id, then its numbers and its instant: low-water marks rely on
this order."""
_MORE_NUMBERS = "SELECT nextval('redrive_number')"
_KEEP_QUEUE = "SELECT key FROM redrive_queue WHERE namespace = ? AND name = ? FOR KEY SHARE"
"""Locks a queue against deletion until the end of the transaction, but not against changes."""
_BY_WORDS = "SET LOCAL enable_bitmapscan = on"
"""Enables the bitmap scan, the only way to read the index of search terms."""
LONG_TRANSACTION = 5 * MINUTE
"""Maximum age of a snapshot, or of a transaction that wrote, before a warning."""
LONG_PUT = MINUTE
"""Maximum age of a transaction that put an item before a warning."""
_LONG_TRANSACTIONS = f"""
    WITH ours AS MATERIALIZED (
        SELECT unnest(array_agg(transactionid) FILTER (WHERE {HAS_ID})) AS id FROM pg_locks
        GROUP BY virtualtransaction HAVING {HOLDS_META}),
    found AS (
        SELECT pid, application_name AS name, xact_start AS since, backend_xid AS id FROM pg_stat_activity
        WHERE (backend_xid IS NOT NULL OR backend_xmin IS NOT NULL AND datname = current_database())
            AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
        UNION ALL SELECT NULL, gid, prepared, transaction FROM pg_prepared_xacts)
    SELECT DISTINCT ON (has_put) id IN (SELECT id FROM ours) IS TRUE AS has_put, pid, name,
        (extract(epoch FROM clock_timestamp() - since) * 1000000)::bigint
    FROM found ORDER BY has_put, since"""
"""The oldest transaction that put an item, and the oldest of the others that keep rows from being cleaned up."""
_NAMESPACE = "INSERT INTO redrive_namespace (name) VALUES (?) ON CONFLICT DO NOTHING"
_NAMESPACE_KEY = "SELECT key FROM redrive_namespace WHERE name = ?"


class BlockAllocator(SequenceAllocator):
    """Numbers from the sequence of the database, a block at a time."""

    def __init__(self, session: Session, first: int) -> None:
        super().__init__()
        self._session = session
        self._begin(first)

    def next(self, count: int, now: Instant) -> int:
        if self._next + count > self._end:
            self._begin(self._session.execute(_MORE_NUMBERS).get)
        first = self._next
        self._next += count
        return first

    def _begin(self, first: int) -> None:
        self._next, self._end = first, first + schema.BLOCK


class PostgresStore:
    """Queues and items of one namespace in one schema of a PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        namespace: str = "default",
        name: str = "postgres",
        schema_name: str = "redrive",
        relaxed: bool = False,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        server_clock = ServerClock()
        self.clock: Clock = clock or server_clock
        self._server_clock = server_clock if clock is None else None
        self.namespace = namespace
        self.name = name
        self._closed = False
        self._engine = Engine(url, schema_name, relaxed=relaxed)
        self.place = self._engine.name
        self._queues = NO_QUEUES
        try:
            self._prepare(create)
        except BaseException:
            self._engine.close()
            raise
        self._marks = LowWaterMarks(self._engine, clock)
        self._notifications = ListenNotify(self._engine, self.clock, f"redrive/{schema_name}/{self._key}")

    def commit(self, calls: Sequence[Call], now: Instant | None = None) -> Commit:
        shared = Batch.has_lanes and all(call.runs_beside_others for call in calls)
        commit = self._transact(calls, now, shared=shared)
        if any(result is LEFT for result in commit.results):
            commit = self._commit_rest(calls, commit, now)
        if commit.arrivals:
            self._notifications.publish(commit.arrivals)
        if self._server_clock is not None:
            self._server_clock.follow(commit.now)
        return commit

    def _transact(self, calls: Sequence[Call], now: Instant | None, *, shared: bool) -> Commit:
        commit, self._queues = self._engine.transact(lambda session: self._carry_out(session, calls, now, shared))
        return commit

    def _commit_rest(self, calls: Sequence[Call], commit: Commit, now: Instant | None) -> Commit:
        """Execute the calls that the shared transaction deferred to an exclusive one. If that fails, the other calls
        stay committed. Its instant is later: marks may have passed the first instant while it waited."""
        left = [index for index, result in enumerate(commit.results) if result is LEFT]

        def execute(positions: Sequence[int]) -> Commit:
            return self._transact([calls[position] for position in positions], now, shared=False)

        return commit_rest(commit, left, execute, self.name)

    def read(self, query: Query) -> Any:
        if isinstance(query, GetOverdue) and query.queue is None:  # only maintenance reads this, no caller waits
            self._marks.move()
        # While no transaction writes, every allocated number is committed or will never be.
        lock = self._lock if isinstance(query, ReadFeed) else None
        with naming_damage(self.name):
            return self._engine.read(
                lambda session: answer_query(session, query, self.namespace, self.clock.now()), lock=lock
            )

    def put_in_transaction(self, connection: Any, put: Put) -> tuple[Receipt, ...]:
        if self._closed:
            raise Closed
        if not isinstance(connection, psycopg.Connection):
            raise InvalidInput(f"transaction takes a psycopg.Connection, not {type(connection).__name__}")
        if connection.info.transaction_status is not TransactionStatus.INTRANS:
            raise InvalidInput("transaction takes a connection with a transaction open; begin one, put, then commit it")
        with self._engine.translated():
            session = Session(connection, self._engine.schema, locking=True, own=False)
            if session.execute("SELECT to_regclass(?)", (f'"{self._engine.schema}".redrive_meta',)).get is None:
                raise InvalidInput(
                    f"transaction takes a connection to {self._engine.name}, this one is to another database"
                )
            _, first, server_now = self._begun(session)
            instant = self._instant(server_now)
            session.execute(_KEEP_QUEUE, (self.namespace, put.queue))
            queues = Queues.read(session, self.namespace)
            batch = Batch(session, instant, queues, BlockAllocator(session, first), self.namespace, self.name)
            receipts = put_batch(batch, (put,))
            write_pending(batch)
            self._marks.lower(session, self._below(batch))
            for name in batch.arrivals:
                session.execute("SELECT pg_notify(?, ?)", (self._notifications.channel, name))
        return receipts

    def poll_changes(self) -> Collection[str] | None:
        if self._closed:
            raise Closed
        return self._notifications.received()

    def subscribe(self, wake: Callable[[], None]) -> None:
        self._notifications.subscribe(wake)

    def durability(self) -> Durability:
        if self._engine.relaxed:
            return Durability("relaxed", "a crash of the program", "the last calls, if the server fails")
        return Durability("full", "a crash of the program or the server, and a power cut", "nothing acknowledged")

    def warnings(self) -> tuple[str, ...]:
        found = self._engine.read(lambda session: session.execute(_LONG_TRANSACTIONS).fetchall())
        return tuple(_warning(*each) for each in found if each[-1] > (LONG_PUT if each[0] else LONG_TRANSACTION))

    def examine(self) -> tuple[str, ...]:
        problems = self._engine.read(lambda session: tuple(find_unrelated_rows(session)))
        return tuple(f"The store {self.name} is damaged: {problem}" for problem in problems)

    def reopen(self) -> None:
        self._engine.reopen()
        self._notifications.reopen()
        self._marks.reset()
        reseed_after_fork()
        self._queues = NO_QUEUES

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._engine.is_the_parents:
            self._notifications.close()
            self._engine.close()

    def _prepare(self, create: bool) -> None:
        with self._engine.translated():
            connection = self._engine.connect()
            try:
                schema.prepare(connection, self._engine.schema, self._engine.name, self.clock.now(), create=create)
                session = Session(connection, self._engine.schema, locking=True)
                session.execute(_NAMESPACE, (self.namespace,))
                self._key: int = session.execute(_NAMESPACE_KEY, (self.namespace,)).get
            finally:
                connection.close()
        self._lock = zlib.crc32(f"redrive/{self._engine.schema}".encode()) << 31 | self._key

    def _carry_out(
        self, session: Session, calls: Sequence[Call], now: Instant | None, shared: bool
    ) -> tuple[Commit, Queues]:
        """Execute all calls inside a transaction. Also returns the queues that are valid if it commits."""
        self._wait_for_keys(session, calls)
        kind = "_shared" if shared else ""
        session.execute(f"SELECT pg_advisory_xact_lock{kind}(?)", (self._lock,))
        if any(isinstance(call, StepOperation) for call in calls):
            session.execute(_BY_WORDS)
        epoch, first, server_now = self._begun(session)
        if epoch != self._queues.epoch:
            self._queues = Queues.read(session, self.namespace)
        instant = self._instant(server_now) if now is None else now
        batch = Batch(session, instant, self._queues, BlockAllocator(session, first), self.namespace, self.name)
        batch.is_shared = shared
        results = execute_calls(batch, calls)
        for call in calls:
            if isinstance(call, UpdateQueue) and (row := batch.by_name.get(call.name)) is not None:
                batch.below[row.key, "lease"] = (
                    instant  # the mark of leases is ahead by a timeout that this update may change
                )
        if below := self._below(batch):
            self._marks.lower(session, below)
        self._marks.used(batch.rolled_up)
        return Commit(results, batch.arrivals, batch.now), batch.queues

    def _below(self, batch: Batch) -> Mapping[tuple[int, str], Instant]:
        """Return entries that a transaction inserted below possible marks: any entry if the clock was set back."""
        if batch.now >= self._marks.highest:
            return batch.below
        return {
            (queue, kind): min(batch.now, batch.below.get((queue, kind), batch.now))
            for queue in batch.count_deltas
            for kind in INSTANT_KINDS
        }

    def _wait_for_keys(self, session: Session, calls: Sequence[Call]) -> None:
        """Lock keys before the namespace is locked: another process may put with a key in a long transaction.

        Queues may have changed since they were read, so keys are locked again before they are used.
        """
        keys: dict[int, list[str]] = {}
        for put in itertools.chain.from_iterable(call.puts for call in calls):
            row = self._queues.by_name.get(put.queue)
            named = [item.idempotency_key for item in put.items if item.idempotency_key is not None]
            if row is not None and named:
                keys.setdefault(row.key, []).extend(named)
        for queue in sorted(keys):
            session.execute(LOCK_KEYS, (queue, Texts(keys[queue])))

    def _instant(self, server_now: Instant) -> Instant:
        """Return the instant of a transaction: the server's, unless another clock was given."""
        return server_now if self._server_clock is not None else self.clock.now()

    def _begun(self, session: Session) -> tuple[int, int, Instant]:
        """Return the start values of a transaction: the epoch, the first number of its block, and the time."""
        begun: tuple[int, int, Instant] = session.execute(_BEGUN).get
        return begun


def _warning(has_put: bool, pid: int | None, name: str, age: int) -> str:
    """Return the sentence about a transaction that is open for too long: of a process, or a prepared one."""
    if pid is None:
        subject, remedy = f"The prepared transaction {name!r}", "end it, with COMMIT PREPARED or ROLLBACK PREPARED"
    else:
        subject = f"A transaction of process {pid} of the server (application {name!r})"
        remedy = f"end it, as with pg_terminate_backend({pid})"
    if has_put:
        effect = "it has put an item, so leases get slower with every item that is done"
    else:
        effect = "what was removed since cannot be cleaned up, and tables grow"
    return f"{subject} has been open for {format_elapsed(age)}: {effect}; {remedy}"
