"""One SQLite file as the engine sees it: connections, the fair lock, transactions, the log, and its errors.

Writers take turns through `flock` on a file beside the database: SQLite's own lock is not fair, and with many
processes some would hardly ever get it. The log (WAL) is copied back into the file by a thread, off the commit path.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from redrive.errors import (
    DiskFull,
    EngineUnsupported,
    NotAStore,
    OutcomeUnknown,
    RedriveError,
    StoreFailed,
    StoreReadOnly,
    StoreUnavailable,
)

try:
    import fcntl
except ImportError:  # Windows: SQLite's own lock, which works but is not fair
    fcntl = None  # type: ignore[assignment]

OLDEST_ENGINE = (3, 51, 3)
"""Before this one, two connections that write or checkpoint can lose committed data (the WAL-reset bug)."""
PAGE_BYTES = 4096
CACHE_KIB = 64 * 1024
BUSY_TIMEOUT_MS = 10_000
"""How long to wait for a lock that a connection outside Redrive holds."""
CHECKPOINT_PAGES = 1_000
"""The log is copied back once it has this many pages."""
LOG_LIMIT_BYTES = 64 * 1024 * 1024
"""The log file is cut to this size when it starts anew."""
COURTESY_SECONDS = 0.0001
"""How long a writer steps back after its turn while other processes write, so that they get theirs."""

_kept_for_the_parent: list[object] = []
"""Connections that a forked child inherited. Closing them would disturb the parent."""


class Engine:
    """Connections to one file. `write` is for one thread at a time; `read` for any."""

    def __init__(self, path: Path, *, relaxed: bool) -> None:
        self.path = path
        self.name = str(path)
        self.relaxed = relaxed
        self.busy = False
        _check_engine()
        with self.translated():
            if path.is_dir():
                raise NotAStore(self.name, "it is a folder")
            if not path.parent.is_dir():
                raise StoreUnavailable(self.name, f"the folder {path.parent} does not exist; create it first")
            self._open()

    def _open(self) -> None:
        self._reading = threading.Lock()
        self._checkpointer: _Checkpointer | None = None
        self._turn = self._open_lock()
        try:
            self.writer = self._connect()
            self._reader: apsw.Connection | None = None
        except BaseException:
            self._close_lock()
            raise

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self.name)
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        if connection.readonly("main"):
            connection.close()
            raise StoreReadOnly(self.name)
        connection.pragma("page_size", PAGE_BYTES)
        with self._taking_turns():
            mode = connection.pragma("journal_mode", "wal")
        if mode != "wal":
            connection.close()
            raise StoreUnavailable(self.name, "its file system does not support the WAL mode; use a local disk")
        connection.pragma("synchronous", "NORMAL" if self.relaxed else "FULL")
        connection.pragma("cache_size", -CACHE_KIB)
        connection.pragma("temp_store", "MEMORY")
        connection.pragma("journal_size_limit", LOG_LIMIT_BYTES)
        connection.wal_autocheckpoint(0)
        connection.set_wal_hook(self._log_grew)
        return connection

    @contextlib.contextmanager
    def transaction(self) -> Iterator[apsw.Connection]:
        """A write transaction, durable when the block has ended; rolled back if it raises."""
        connection = self.writer
        with self.translated(), self._taking_turns():
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                self._roll_back()
                raise
            try:
                connection.execute("COMMIT")
            except apsw.IOError as error:
                self._roll_back()
                raise OutcomeUnknown(self.name, str(error)) from error
            except BaseException:
                self._roll_back()
                raise
        if self.busy:
            time.sleep(COURTESY_SECONDS)

    @contextlib.contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """A connection that sees one snapshot, which includes every acknowledged commit."""
        with self.translated(), self._reading:
            if self._reader is None:
                self._reader = self._connect()
            self._reader.execute("BEGIN")
            try:
                yield self._reader
            finally:
                if self._reader.in_transaction:
                    self._reader.execute("ROLLBACK")

    def data_version(self) -> int:
        """A number that changes when another connection has committed. For whoever holds the reader, any thread."""
        with self.translated(), self._reading:
            if self._reader is None:
                self._reader = self._connect()
            return self._reader.data_version()

    def reopen(self) -> None:
        """In a forked child: connections and the turn of its own. SQLite's random numbers must differ as well."""
        _kept_for_the_parent.append((self.writer, self._reader, self._checkpointer, self._turn))
        apsw.randomness(0)
        self._open()

    def close(self) -> None:
        """Release the file. The last connection to close copies the log back."""
        if self._checkpointer is not None:
            self._checkpointer.close()
        with self._reading:
            if self._reader is not None:
                self._reader.close()
                self._reader = None
        self.writer.close()
        self._close_lock()

    @contextlib.contextmanager
    def translated(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except RedriveError:
            raise
        except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.AuthError) as error:
            raise StoreReadOnly(self.name) from error
        except apsw.FullError as error:
            raise DiskFull(self.name) from error
        except apsw.NotADBError as error:
            raise NotAStore(self.name, "it is not a SQLite database") from error
        except apsw.CorruptError as error:
            raise NotAStore(self.name, f"it is damaged ({error}); restore a backup") from error
        except apsw.CantOpenError as error:
            raise StoreUnavailable(
                self.name, "the file cannot be opened; check the path and its permissions"
            ) from error
        except (apsw.BusyError, apsw.LockedError) as error:
            raise StoreUnavailable(self.name, "another program holds its lock; close its transaction") from error
        except (apsw.Error, OSError) as error:
            raise StoreFailed(self.name, f"{type(error).__name__}: {error}") from error

    def _roll_back(self) -> None:
        if self.writer.in_transaction:
            with contextlib.suppress(apsw.Error):
                self.writer.execute("ROLLBACK")

    def _open_lock(self) -> int | None:
        if fcntl is None:
            return None
        try:
            return os.open(f"{self.name}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except PermissionError as error:
            raise StoreReadOnly(self.name) from error
        except OSError as error:
            raise (
                StoreReadOnly(self.name) if error.errno == 30 else StoreUnavailable(self.name, str(error))
            ) from error

    def _close_lock(self) -> None:
        if self._turn is not None:
            os.close(self._turn)
            self._turn = None

    @contextlib.contextmanager
    def _taking_turns(self) -> Iterator[None]:
        if self._turn is None:
            yield
            return
        fcntl.flock(self._turn, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._turn, fcntl.LOCK_UN)

    def _log_grew(self, connection: apsw.Connection, schema: str, pages: int) -> int:
        if pages >= CHECKPOINT_PAGES:
            if self._checkpointer is None:
                self._checkpointer = _Checkpointer(self)
            self._checkpointer.bell.set()
        return apsw.SQLITE_OK


class _Checkpointer:
    """Copies the log back into the file, in a thread.

    Most of it while others write; then, in a turn of its own, the rest, so that the log starts anew and stays small.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.bell = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="redrive-checkpoint", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        self.bell.set()
        self._thread.join()

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self._engine.name)
        connection.pragma("synchronous", "NORMAL" if self._engine.relaxed else "FULL")
        connection.pragma("user_version")  # one that has read nothing yet does not know of the log and copies nothing
        return connection

    def _loop(self) -> None:
        connection: apsw.Connection | None = None
        turn = self._engine._open_lock()
        while True:
            self.bell.wait()
            self.bell.clear()
            if self._closed:
                break
            # A failure here loses nothing: the log grows, and the next commit rings again.
            with contextlib.suppress(apsw.Error, OSError):
                connection = connection or self._connect()
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                if turn is not None:
                    fcntl.flock(turn, fcntl.LOCK_EX)
                try:
                    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
                finally:
                    if turn is not None:
                        fcntl.flock(turn, fcntl.LOCK_UN)
        if connection is not None:
            connection.close()
        if turn is not None:
            os.close(turn)


def _check_engine() -> None:
    found = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if found < OLDEST_ENGINE:
        needed = ".".join(map(str, OLDEST_ENGINE))
        raise EngineUnsupported(
            "SQLite", apsw.sqlite_lib_version(), f"it can lose committed data; {needed} or newer is needed"
        )
