"""Connections to PostgreSQL: transactions, the meaning of a lost connection, and forks."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

import psycopg
from psycopg import errors as pg
from psycopg.pq import PipelineStatus, TransactionStatus

from redrive.errors import (
    Closed,
    DiskFull,
    OutcomeUnknown,
    RedriveError,
    StoreFailed,
    StoreReadOnly,
    StoreUnavailable,
)
from redrive.stores.connection_slots import Slots
from redrive.stores.interruption import interruption, is_mistake
from redrive.stores.postgres import session as patience
from redrive.stores.postgres.connection_settings import configure, configure_writer, connection_info, display_name
from redrive.stores.postgres.session import Rows, Session, TimeoutConnection
from redrive.stores.rules.damage import failure_of

MAX_READERS = 8
"""Connections that answer queries."""
READER_TIMEOUT_SECONDS = 30.0
"""Maximum wait of a query for one of them."""
MAX_TRIES = 10
"""Maximum number of attempts at a transaction that fails because of others (a deadlock)."""
_BEGIN_READING = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_BEGIN_READING_ALONE = "BEGIN READ ONLY"
"""Its snapshot is taken when the lock is held, not before."""

_never_collected: list[object] = []
"""Connections of a parent process: closing them in the child would end the parent's sessions."""
_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_T = TypeVar("_T")
_OWN = (psycopg.Error, RedriveError)
"""Exceptions of the engine and of the work in it; any other comes from outside."""


class _ConnectionLostBeforeCommit(Exception):
    """The connection was lost before the server was asked to commit."""


class _ConnectionLostInRead(psycopg.OperationalError):
    """The connection was lost during a query."""


class Engine:
    """Connections to one database. `transact` is for one thread at a time; the rest for any."""

    def __init__(self, url: str, schema: str, *, relaxed: bool) -> None:
        self.schema = schema
        self.relaxed = relaxed
        self._info = connection_info(url)
        self.name = display_name(self._info, schema)
        self._open()

    def _open(self) -> None:
        self._closed = False
        self.is_the_parents = False
        """True in a forked child before `reopen`: all connections are the parent's."""
        self._connections: weakref.WeakSet[TimeoutConnection] = weakref.WeakSet()
        self._writer: TimeoutConnection | None = None
        self._session: Session | None = None
        self._idle: list[TimeoutConnection] = []
        self._readers = Slots(MAX_READERS)
        self._mutex = threading.Lock()
        self._turn = threading.Lock()
        """Held while the writing connection is used."""
        _open_engines.add(self)

    def connect(self) -> TimeoutConnection:
        """Return a new connection with the requested durability."""
        if self._closed:
            raise Closed
        with self.translated():
            connection = TimeoutConnection.connect(autocommit=True, **self._info)
        try:
            with self.translated():
                configure(connection, self.name, relaxed=self.relaxed)
        except BaseException:
            connection.close()
            raise
        self._connections.add(connection)
        return connection

    def transact(self, work: Callable[[Session], _T]) -> _T:
        """Execute the work in a transaction, which is durable when this returns; rolled back if it raises.

        A transaction that failed because of others (a deadlock), or lost its connection before COMMIT was sent, was
        rolled back and is retried.
        """
        with self._turn:
            for _ in range(MAX_TRIES - 1):
                with contextlib.suppress(pg.DeadlockDetected, pg.SerializationFailure, _ConnectionLostBeforeCommit):
                    return self._transact_once(work)
            try:
                return self._transact_once(work)
            except (psycopg.Error, _ConnectionLostBeforeCommit) as error:
                raise StoreUnavailable(self.name, _first_line(error)) from error

    def _transact_once(self, work: Callable[[Session], _T]) -> _T:
        """Execute the work once. After COMMIT may have been sent, the outcome is done or unknown, unless the server
        reports a rollback. An exception from outside (an interruption) is raised unchanged. An unexpected exception of
        the work is `StoreFailed`: it is rolled back, and the connection is kept."""
        before = sys.exception()
        connection, session = self._writing()
        connection.in_order = False
        commit: Rows | None = None
        committing = False
        try:
            with _pipeline(connection):
                session.execute("BEGIN")
                result = work(session)
                connection.warnings.clear()
                committing = True
                commit = session.execute("COMMIT")
        except BaseException as error:
            if (interrupted := interruption(error, before, _OWN)) is not None:
                if not committing and is_mistake(interrupted):
                    self._undo(connection, interrupted, committing=False)
                self._drop_writer()  # at any point: not even a rollback can be relied on
                raise interrupted from None
            if commit is None or commit.tag != "COMMIT":
                self._undo(connection, error, committing=committing)
        else:
            connection.in_order = True
        if commit.tag != "COMMIT":
            raise StoreFailed(self.name, f"the server answered COMMIT with {commit.tag}")
        if connection.warnings:  # committed on this server, perhaps not on its standbys
            raise OutcomeUnknown(self.name, connection.warnings[0])
        return result

    def _undo(self, connection: TimeoutConnection, error: BaseException, *, committing: bool) -> NoReturn:
        """Raise the outcome of a transaction for which the server did not confirm COMMIT."""
        alive = connection.in_order = _roll_back(connection)
        refusal = _refusal(error)
        if refusal is None and isinstance(error, psycopg.Error):
            if committing:
                raise OutcomeUnknown(self.name, _problem(connection, error)) from error
            if not alive:
                self._check_patience(connection, error)
                raise _ConnectionLostBeforeCommit(_first_line(error)) from error
        if isinstance(refusal, pg.DeadlockDetected | pg.SerializationFailure):
            raise refusal
        if (translated := self.translate(refusal or error)) is error:
            raise error
        raise translated from error

    def read(self, work: Callable[[Session], _T], *, lock: int | None = None) -> _T:
        """Execute the work in one snapshot, which includes every acknowledged commit; retry it if its connection is
        lost.

        With `lock`, no transaction holds that lock when the snapshot is taken.
        """
        with self.translated():
            for _ in range(MAX_READERS):  # a restart of the server breaks all idle connections
                with contextlib.suppress(_ConnectionLostInRead), self._reader() as connection:
                    return self._read_once(connection, work, lock)
            with self._reader() as connection:
                return self._read_once(connection, work, lock)

    def run_autocommit(self, work: Callable[[Session], _T]) -> _T:
        """Execute the work on a separate connection, each statement in its own transaction."""
        with self.translated(), self._reader() as connection:
            result = work(Session(connection, self.schema, locking=True))
            connection.in_order = True
            return result

    def _read_once(self, connection: TimeoutConnection, work: Callable[[Session], _T], lock: int | None) -> _T:
        before = sys.exception()
        session = Session(connection, self.schema, locking=False)
        try:
            with _pipeline(connection):
                session.execute(_BEGIN_READING if lock is None else _BEGIN_READING_ALONE)
                if lock is not None:
                    session.execute("SELECT pg_advisory_xact_lock(?)", (lock,))
                result = work(session)
                session.execute("ROLLBACK")
            connection.in_order = True
            return result
        except BaseException as error:
            if (interrupted := interruption(error, before, _OWN)) is not None:
                connection.close()
                raise interrupted from None
            connection.in_order = _roll_back(connection)
            if not connection.in_order and isinstance(error, psycopg.Error):
                self._check_patience(connection, error)
                raise _ConnectionLostInRead(_first_line(error)) from error
            raise

    def close(self) -> None:
        """Release all connections. A second call does nothing."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        with self._turn:  # readers close their own connections
            self._drop_writer()
        _open_engines.discard(self)

    def reopen(self) -> None:
        """Open new connections in a forked child."""
        self._open()

    def detach_after_fork(self) -> None:
        """Detach the connections in a forked child: nothing done to them here may reach the server."""
        connections = tuple(self._connections)
        for connection in connections:
            with contextlib.suppress(psycopg.Error, OSError):
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, connection.fileno())
                os.close(nowhere)
        _never_collected.extend(connections)
        self.is_the_parents = True
        self._closed, self._idle, self._writer, self._session = True, [], None, None
        _open_engines.discard(self)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise PostgreSQL's errors as Redrive's."""
        try:
            yield
        except psycopg.Error as error:
            raise self.translate(error) from error

    def translate(self, error: BaseException) -> BaseException:
        """Return PostgreSQL's errors, and unexpected ones, as Redrive's; refusals and interruptions unchanged."""
        match error:
            case pg.DiskFull():
                return DiskFull(self.name)
            case pg.ReadOnlySqlTransaction():
                return StoreReadOnly(self.name, "this server is a standby, or was set so; connect to the primary")
            case pg.InsufficientPrivilege():
                problem = f"{_first_line(error)}: grant this role the rights that the guide to PostgreSQL lists"
                return StoreReadOnly(self.name, problem)
            case psycopg.OperationalError() | psycopg.InterfaceError():
                return StoreUnavailable(self.name, _first_line(error))
            case Exception() if not isinstance(error, RedriveError):
                return failure_of(self.name, error)
            case _:
                return error

    def _writing(self) -> tuple[TimeoutConnection, Session]:
        if self._closed:
            raise Closed
        if self._writer is not None and not _is_idle(self._writer):
            self._drop_writer()  # lost, or interrupted: its statements would be committed with the next transaction
        if self._writer is None or self._session is None:
            self._writer = self.connect()
            with self.translated():
                configure_writer(self._writer)
            self._session = Session(self._writer, self.schema, locking=True)
        return self._writer, self._session

    def _drop_writer(self) -> None:
        writer, self._writer, self._session = self._writer, None, None
        if writer is not None:
            with contextlib.suppress(psycopg.Error):
                writer.close()

    def _check_patience(self, connection: TimeoutConnection, error: BaseException) -> None:
        """Raise if the server did not answer in time: a retry would take as long again."""
        if connection.timed_out:
            raise StoreUnavailable(self.name, _problem(connection, error)) from error

    @contextlib.contextmanager
    def _reader(self) -> Iterator[TimeoutConnection]:
        with self._readers.one(READER_TIMEOUT_SECONDS) as is_free:
            if not is_free:
                problem = f"{MAX_READERS} queries are running and none of them has ended; retry"
                raise StoreUnavailable(self.name, problem)
            with self._mutex:
                if self._closed:
                    raise Closed
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self.connect()
            connection.in_order = False
            try:
                yield connection
            finally:
                with self._mutex:
                    keep = _is_idle(connection) and not self._closed
                    if keep:
                        self._idle.append(connection)
                if not keep:
                    connection.close()


def _is_idle(connection: TimeoutConnection) -> bool:
    """Return whether a connection is open, as far as is known, and its last use has ended completely."""
    state = connection.pgconn
    return (
        connection.in_order
        and state.transaction_status == TransactionStatus.IDLE
        and state.pipeline_status == PipelineStatus.OFF
    )


def _refusal(error: BaseException) -> psycopg.Error | None:
    """Return the server's report that a statement of the transaction failed, and with it the transaction.

    None if the server ends the connection: that may come after the commit. For statements after the failed one, psycopg
    may report last that the pipeline was aborted.
    """
    found: BaseException | None = error
    while isinstance(found, pg.PipelineAborted):
        found = found.__context__
    if isinstance(found, psycopg.Error) and found.diag.severity_nonlocalized == "ERROR":
        return found
    return None


@contextlib.contextmanager
def _pipeline(connection: TimeoutConnection) -> Iterator[None]:
    """A pipeline that raises its first error, and hides it from the driver, which would log the one at the end too."""
    first: BaseException | None = None
    try:
        with connection.pipeline():
            try:
                yield
            except BaseException as error:
                first = error
    except Exception:  # of the driver too, where the first one interrupted it
        if first is None:
            raise
    if first is not None:
        try:
            raise first
        finally:
            del first  # it refers to this frame


def _roll_back(connection: TimeoutConnection) -> bool:
    """Roll back. Returns whether the connection is still open: the server may have ended it, unknown to libpq."""
    try:
        connection.execute("ROLLBACK")
    except psycopg.Error:
        connection.close()
        return False
    return True


def _problem(connection: TimeoutConnection, error: BaseException) -> str:
    seconds = patience.ANSWER_TIMEOUT_SECONDS
    return f"no answer within {seconds:g} seconds" if connection.timed_out else _first_line(error)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _after_fork_in_child() -> None:
    for engine in tuple(_open_engines):
        engine.detach_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
