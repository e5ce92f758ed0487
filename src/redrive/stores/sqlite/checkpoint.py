"""Checkpoints: a thread copies the log (WAL) back into the file, off the commit path."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import apsw

from redrive.errors import RedriveError
from redrive.stores.sqlite.write_lock import WriteLock

if TYPE_CHECKING:
    from redrive.stores.sqlite.engine import Engine

CHECKPOINT_PAGES = 1_000
"""Size of the log, in pages, at which it is copied back."""
LARGE_LOG_PAGES = 4 * CHECKPOINT_PAGES
"""Size of the log, in pages, above which it grows faster than it is copied back: writers slow down."""
WRITE_YIELD_SECONDS = 0.0001
"""Pause of a writer after its turn while others wait, so that they get theirs."""
SLOWER_SECONDS = 0.001
"""That pause while the log is large."""


class Checkpointer:
    """Copies the log back into the file, in a thread that starts when it is first needed.

    Most of it concurrently with writers; then the rest in a separate turn, so that the log restarts and stays small.
    """

    def __init__(self, engine: Engine) -> None:
        # The thread keeps the engine alive: a fork must find this connection, even if the engine was never closed.
        self._engine = engine
        self.working = threading.RLock()
        self.connection: apsw.Connection | None = None
        self.turn: WriteLock | None = None
        self._is_in_line = False
        """True while it waits for its turn."""
        self._pages = 0
        self._is_held_up = False
        """True if a reader needs pages of the log: waiting would not make it shorter."""
        self._bell = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def log_grew(self, connection: apsw.Connection, schema: str, pages: int) -> int:
        """Wake the thread if the log is large enough. SQLite calls this after each commit."""
        self._pages = pages
        if pages >= CHECKPOINT_PAGES:
            # The commit is durable already: an error from here would deny it. The next commit retries.
            with contextlib.suppress(Exception):
                self._ring()
        return apsw.SQLITE_OK

    def pause_seconds(self) -> float:
        """Return the pause of a writer after its turn."""
        if self._pages > LARGE_LOG_PAGES and not self._is_held_up:
            return SLOWER_SECONDS
        return WRITE_YIELD_SECONDS if self._is_in_line else 0.0

    def close(self) -> None:
        """Stop, and wait for a running checkpoint."""
        self._closed = True
        self._bell.set()
        if self.turn is not None:
            self.turn.cancel()
        if self._thread is not None:
            self._thread.join()

    def _ring(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._loop, name="redrive-checkpoint", daemon=True)
            thread.start()
            self._thread = thread
        self._bell.set()

    def _loop(self) -> None:
        while not self._closed:
            self._bell.wait()
            self._bell.clear()
            if self._closed:
                break
            # A failure here loses nothing: the log grows, and the next commit wakes this thread again.
            with self.working, contextlib.suppress(apsw.Error, OSError, RedriveError):
                self._checkpoint()
        if self.connection is not None:
            self.connection.close()
        if self.turn is not None:
            self.turn.close()

    def _checkpoint(self) -> None:
        turn = self.turn = self.turn or WriteLock(self._engine.name, self._engine.mode)
        self._engine.check_files()
        connection = self.connection = self.connection or self._connect()
        self._engine.check_log()
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._is_in_line = True
        try:
            turn.run(self._copy_the_rest)
        finally:
            self._is_in_line = False

    def _copy_the_rest(self) -> None:
        """Copy the rest of the log. Call it in a turn."""
        assert self.connection is not None
        self._is_in_line = False
        self._engine.check_files()
        self._engine.check_log()
        pages, copied = self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        self._is_held_up = copied < pages
        self._bell.clear()  # set by recent commits, whose pages are copied now

    def _connect(self) -> apsw.Connection:
        connection = apsw.Connection(self._engine.name, apsw.SQLITE_OPEN_READWRITE)
        connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        connection.pragma("synchronous", "NORMAL" if self._engine.relaxed else "FULL")
        connection.pragma("user_version")  # before its first read a connection does not know the log and copies nothing
        return connection
