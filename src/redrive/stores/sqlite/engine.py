"""Connections, transactions, forks and errors of one SQLite file."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import apsw

from redrive.errors import (
    Closed,
    DiskFull,
    EngineUnsupported,
    NotAStore,
    OutcomeUnknown,
    RedriveError,
    StoreReadOnly,
    StoreUnavailable,
)
from redrive.model.sqlite_url import OWNER_ONLY
from redrive.stores.rules.damage import failure_of
from redrive.stores.sqlite import database_files
from redrive.stores.sqlite.checkpoint import WRITE_YIELD_SECONDS, Checkpointer
from redrive.stores.sqlite.file_identity import FileGuard
from redrive.stores.sqlite.log_guard import LogGuard
from redrive.stores.sqlite.write_lock import WriteLock

OLDEST_ENGINE = (3, 51, 3)
"""Oldest supported SQLite. In earlier ones, two connections that write or checkpoint can lose committed data (the
WAL-reset bug)."""
PAGE_BYTES = 4096
WRITER_CACHE_KIB = 64 * 1024
READER_CACHE_KIB = 16 * 1024
"""Cache of the reader. A long read, such as an export, fills it; the pages are in the system cache anyway."""
BUSY_TIMEOUT_MS = 10_000
"""Maximum wait for a lock that a connection outside Redrive holds."""
LONGEST_PAUSE_SECONDS = 10.0
"""Maximum wait of a fork for a thread that is inside SQLite."""
LOG_LIMIT_BYTES = 64 * 1024 * 1024
"""The log file is truncated to this size when it restarts."""
_never_collected: list[object] = []
"""Connections that must not be closed: inherited by a child in the middle of a transaction."""

_T = TypeVar("_T")


class Engine:
    """Connections to one file. `transact` is for one thread at a time; the rest for any. `Closed` once it is closed.

    A fork waits until no thread is inside SQLite, and the child immediately closes the inherited connections. SQLite
    records per process which locks it holds on a file: connections that a child opened beside inherited ones would hold
    none, and the parent, closing its own, would delete the log that the child writes to.
    """

    def __init__(self, path: Path, *, relaxed: bool, mode: int = OWNER_ONLY) -> None:
        """mode: the permissions of files that are created."""
        self.name = str(path)
        self.mode = mode
        self.relaxed = relaxed
        self.alone = False
        """True if no other process has committed since the last transaction."""
        _check_engine()
        with self.translated():
            self.name = str(database_files.locate(path))
            self._open()

    def _open(self) -> None:
        # Reentrant locks know their owner: a fork releases those that it took, wherever a handler interrupted it.
        self._writing = threading.RLock()
        self._reading = threading.RLock()
        self._closed = True
        self._checkpointer = Checkpointer(self)
        self._reader: apsw.Connection | None = None
        self._last_version = -1
        self._turn = WriteLock(self.name, self.mode)
        try:
            self._turn.run(self._open_writer)
        except BaseException:
            self._turn.close()
            raise
        self._closed = False
        _open_engines.add(self)

    def _open_writer(self) -> None:
        database_files.create_database(self.name, self.mode)
        database_files.check_names(self.name)
        self._guard = FileGuard(self.name)
        self.writer = self._connect(WRITER_CACHE_KIB)
        try:
            self._guard.watch_log()
            self._log_guard = LogGuard(self._guard, self.name, int(self.writer.pragma("page_size")))
        except BaseException:
            self.writer.close()
            raise
        try:
            if not self.relaxed:  # without a sync after each transaction, a power cut leaves such logs
                self._log_guard.keep_damaged(self.writer)
            self._log_guard.check(self.writer)
        except BaseException:
            self._log_guard.close()
            self.writer.close()
            raise

    def _connect(self, cache_kib: int) -> apsw.Connection:
        connection = apsw.Connection(self.name, apsw.SQLITE_OPEN_READWRITE)  # never creates a missing file
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if connection.readonly("main"):
            connection.close()
            raise StoreReadOnly(self.name)
        connection.pragma("page_size", PAGE_BYTES)
        mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            connection.close()
            raise StoreUnavailable(self.name, "its file system does not support the WAL mode; use a local disk")
        connection.pragma("synchronous", "NORMAL" if self.relaxed else "FULL")
        connection.pragma("cache_size", -cache_kib)
        # Without it, SQLite plans a statement again for other values, which takes longer than executing it.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("journal_size_limit", LOG_LIMIT_BYTES)
        connection.wal_autocheckpoint(0)
        # The last connection to close removes the log by its name, which may be that of another database by then.
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.set_wal_hook(self._checkpointer.log_grew)
        connection.pragma("user_version")  # the first read opens or creates the log
        return connection

    def transact(self, work: Callable[[apsw.Connection], _T]) -> _T:
        """Execute the work in a write transaction, which is durable when this returns.

        Once COMMIT was sent, it is committed or `OutcomeUnknown`. A refusal needs proof that nothing was changed:
        COMMIT was never sent, or the engine reports a rollback. Exceptions from outside the engine and the work are
        raised unchanged.
        """
        with self._writing:
            self._check_open()
            result = self._turn.run(lambda: self._transact(work))
        if pause := self._checkpointer.pause_seconds() if self.alone else WRITE_YIELD_SECONDS:
            time.sleep(pause)
        return result

    def _transact(self, work: Callable[[apsw.Connection], _T]) -> _T:
        """Execute the work in a turn, in any thread."""
        self._guard.check()
        self._roll_back()  # left open by a transaction that was interrupted during its rollback
        result = self._commit(work)
        self._check_committed()
        return result

    def _commit(self, work: Callable[[apsw.Connection], _T]) -> _T:
        connection = self.writer
        execute = connection.execute
        sent = False
        try:
            self._log_guard.check(connection)
            execute("BEGIN IMMEDIATE")
            self.alone = connection.data_version() == self._last_version
            result = work(connection)
            sent = True
            execute("COMMIT")
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)  # a statement that one of them has open locks its tables
            outcome = self._outcome(error, sent)
            if outcome is error:
                raise
            raise outcome from error
        return result

    def _outcome(self, error: BaseException, sent: bool) -> BaseException:
        """Return the error that an exception means for the transaction. A disk that is full at COMMIT rolls it back."""
        if self._roll_back() or not sent or isinstance(error, apsw.FullError):
            return self.translate(error)
        if isinstance(error, apsw.Error):
            return OutcomeUnknown(self.name, str(error))
        return error

    def _check_committed(self) -> None:
        """Refuse to acknowledge a commit to files that are no longer those of the store."""
        try:
            self._guard.check()
            self._log_guard.check_committed(self.writer)
            self._last_version = self.writer.data_version()
        except StoreUnavailable as error:
            raise OutcomeUnknown(self.name, error.problem) from error
        except apsw.Error:
            self._last_version = -1  # the next transaction reads again what others may have changed

    def check_files(self) -> None:
        """Raise `StoreUnavailable` unless the database and its log are where they were opened."""
        self._guard.check()

    def check_log(self) -> None:
        """Raise `StoreUnavailable` if the log was emptied, unless a read runs: that has checked it."""
        if self._reading.acquire(blocking=False):
            try:
                with self.translated():
                    self._open_reader()
            finally:
                self._reading.release()

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """Open a connection in one snapshot, which includes every acknowledged commit."""
        with self.translated(), self._reading:
            reader = self._open_reader()
            reader.execute("BEGIN")
            try:
                yield reader
            finally:
                if reader.in_transaction:
                    reader.execute("ROLLBACK")

    def data_version(self) -> int:
        """Return a number that changes when a connection other than the reader has committed."""
        with self.translated(), self._reading:
            return data_version(self._open_reader())

    def log_bytes(self) -> int:
        """Return the size of the log."""
        try:
            return os.path.getsize(f"{self.name}-wal")
        except OSError:
            return 0

    def _open_reader(self) -> apsw.Connection:
        self._check_open()
        self.check_files()
        if self._reader is None:
            try:
                self._reader = self._connect(READER_CACHE_KIB)
            except apsw.IOError as error:
                if self._log_guard.is_cut:
                    raise self._log_guard.lose() from error
                raise
            self.check_files()  # another file may have been put there in between
        if not self._reader.in_transaction:
            self._log_guard.check(self._reader)
        return self._reader

    def _check_open(self) -> None:
        if self._closed:
            raise Closed

    def reopen(self) -> None:
        """Open new connections and a new write lock in a forked child, and reseed SQLite's random numbers."""
        apsw.randomness(0)
        with self.translated():
            self._open()

    def pause(self) -> None:
        """Wait before a fork until no thread is inside SQLite, and admit none."""
        for lock in self._locks:
            lock.acquire(timeout=LONGEST_PAUSE_SECONDS)

    def resume(self) -> None:
        """Release in the parent, after a fork, the locks that `pause` took, if any. A second call does nothing."""
        for lock in self._locks:
            _let_go(lock)

    @property
    def _locks(self) -> tuple[threading.RLock, ...]:
        """The locks. A thread that is inside SQLite holds one of them."""
        return self._writing, self._reading, self._checkpointer.working

    def detach_after_fork(self) -> None:
        """Release inherited connections in a forked child. The engine is closed until `reopen`."""
        connections = (self.writer, self._reader, self._checkpointer.connection)
        if all(lock.acquire(blocking=False) for lock in self._locks):
            for connection in connections:
                if connection is not None:
                    connection.close()
        else:
            _never_collected.extend(connections)
        # The parent's turn must not outlive the parent because a child has the file open.
        for turn in (self._turn, self._checkpointer.turn):
            if turn is not None:
                turn.detach_after_fork()
        self._log_guard.close()
        self._closed = True
        self._writing, self._reading = threading.RLock(), threading.RLock()
        _open_engines.discard(self)

    def close(self) -> None:
        """Release the file. The last connection to close copies the log back, unless a file is lost.

        A second call does nothing.
        """
        with self._writing, self._reading:
            if self._closed:
                return
            self._closed = True
            self._checkpointer.close()
            if self._reader is not None:
                self._reader.close()
            with contextlib.suppress(RedriveError):
                self.check_files()
                with self.translated():
                    self._log_guard.check(self.writer)
                self.writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0)
            self.writer.close()
            self._log_guard.close()
            self._turn.close()
            # Not before: a fork that holds these locks must find the engine here to release them.
            _open_engines.discard(self)

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """Raise SQLite's errors as Redrive's."""
        try:
            yield
        except (apsw.Error, OSError) as error:
            raise self.translate(error) from error

    def translate(self, error: BaseException) -> BaseException:
        """Return SQLite's errors, and unexpected ones, as Redrive's; refusals and interruptions unchanged."""
        match error:
            case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
                return StoreReadOnly(self.name)
            case apsw.FullError():
                return DiskFull(self.name)
            case apsw.NotADBError():
                return NotAStore(self.name, "it is not a SQLite database")
            case apsw.CorruptError():
                return NotAStore(self.name, f"it is damaged ({error}); restore a backup")
            case apsw.CantOpenError():
                return StoreUnavailable(self.name, "the file cannot be opened; check the path and its permissions")
            case apsw.BusyError() | apsw.LockedError():
                return StoreUnavailable(self.name, "another program holds its lock; close its transaction")
            case Exception() if not isinstance(error, RedriveError):
                return failure_of(self.name, error)
            case _:
                return error

    def _roll_back(self) -> bool:
        """Roll back. Returns whether a transaction was open and was undone."""
        if not self.writer.in_transaction:
            return False
        with contextlib.suppress(apsw.Error):
            self.writer.execute("ROLLBACK")
        return not self.writer.in_transaction


def data_version(connection: apsw.Connection) -> int:
    """Return a number that changes when another connection has committed, not with this connection's own commits."""
    version: int = connection.execute("PRAGMA data_version").get
    return version


def _check_engine() -> None:
    found = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if found < OLDEST_ENGINE:
        needed = ".".join(map(str, OLDEST_ENGINE))
        raise EngineUnsupported(
            "SQLite", apsw.sqlite_lib_version(), f"it can lose committed data; {needed} or newer is needed"
        )


_open_engines: weakref.WeakSet[Engine] = weakref.WeakSet()
_forking = threading.RLock()


def _before_fork() -> None:
    _forking.acquire()
    for engine in tuple(_open_engines):
        engine.pause()


def _after_fork_in_parent() -> None:
    for engine in tuple(_open_engines):
        engine.resume()
    _let_go(_forking)


def _after_fork_in_child() -> None:
    global _forking
    _forking = threading.RLock()
    for engine in tuple(_open_engines):
        engine.detach_after_fork()


def _let_go(lock: threading.RLock) -> None:
    """Release a lock if this thread holds it."""
    with contextlib.suppress(RuntimeError):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
    # A signal that arrives in a fork is handled in the first of these functions. An exception of its handler ends that
    # function and Python only reports it; so a second one does the rest.
    os.register_at_fork(after_in_parent=_after_fork_in_parent)
