"""Checks that SQLite reads the whole log (WAL) of an open database."""

from __future__ import annotations

import contextlib
import os

import apsw

from redrive.errors import StoreUnavailable
from redrive.stores.sqlite.file_identity import FileGuard
from redrive.stores.sqlite.log_damage import (
    FRAME_HEADER_BYTES,
    HEADER_BYTES,
    MAGICS,
    find_damage,
    keep_damaged_log,
)
from redrive.telemetry import events

LOG_EMPTIED = (
    "its log was emptied or cut under this program, and changes that were only there are lost; restart this program, "
    "and see redrive doctor"
)
CHECKS = 4
"""How often the log is found too short before it counts as cut: another program may cut a log that SQLite needs no
longer, as all of it is in the file."""

_log = events.logger("redrive.store")


class LogGuard:
    """Checks of one log, which exists. It is kept open, and is to be closed."""

    def __init__(self, files: FileGuard, database: str, page_bytes: int) -> None:
        self._files = files
        self._database = database
        self._page_bytes = page_bytes
        self._length = 0
        """Bytes that SQLite needed when they were last counted."""
        self._file = -1
        if hasattr(os, "pread"):  # on other systems an open file cannot be cut
            self._file = os.open(f"{database}-wal", os.O_RDONLY | os.O_CLOEXEC)

    def keep_damaged(self, writer: apsw.Connection) -> None:
        """Keep a copy of a log of which SQLite reads only a part, before it writes over the rest. Call it in a turn."""
        pages = _pages(writer)
        damage = find_damage(self._database, pages, self._page_bytes)
        if damage is None or _pages(writer) != pages:  # a program that does not wait for its turn commits
            return
        copy = keep_damaged_log(self._database, damage)
        _log.error("store_damaged", store=self._database, transactions=damage.lost, copy=copy)
        with contextlib.suppress(apsw.Error):  # others use the log: it restarts later
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)

    def check(self, connection: apsw.Connection) -> None:
        """Raise `StoreUnavailable` if the log has less than this connection reads from it. It is in no transaction."""
        for _ in range(CHECKS):
            if self._length and not self.is_cut:
                return
            self._count(connection)
            if not self._length:
                return
        raise self.lose()

    def check_committed(self, writer: apsw.Connection) -> None:
        """Raise `StoreUnavailable` if the log was emptied during a commit: it is long again, but does not start as
        a log."""
        self._count(writer)
        if self._file >= 0 and self._length and os.pread(self._file, 4, 0) not in MAGICS:
            raise self.lose()

    def _count(self, connection: apsw.Connection) -> None:
        pages = _pages(connection)
        self._length = HEADER_BYTES + pages * (FRAME_HEADER_BYTES + self._page_bytes) if pages else 0

    @property
    def is_cut(self) -> bool:
        """True if the log is shorter than at the last check. Reads no times: see `FileGuard.check`."""
        return self._file >= 0 and self._length > 0 and not os.pread(self._file, 1, self._length - 1)

    def lose(self) -> StoreUnavailable:
        """Treat the files as lost, and let the next program know why. Returns the error."""
        _log.error("store_damaged", store=self._database, copy=keep_damaged_log(self._database, None))
        return self._files.lose(LOG_EMPTIED)

    def close(self) -> None:
        """Close the log. A second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _pages(connection: apsw.Connection) -> int:
    """Return how many pages of the log a connection reads, at most."""
    return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_NOOP)[0]
