"""Whose turn it is to write: a fair lock between connections and processes."""

from __future__ import annotations

import errno
import os

from redrive.errors import StoreReadOnly, StoreUnavailable

try:
    import fcntl
except ImportError:  # Windows: SQLite's own lock, which works but is not fair
    fcntl = None  # type: ignore[assignment]


class Turn:
    """A place in the line of writers: `flock` on a file beside the database.

    SQLite's own lock is not fair, and with many processes some would hardly ever get it. Whoever dies gives the turn
    back, and nobody has to take it: SQLite's lock is what keeps writers apart.
    """

    def __init__(self, database: str) -> None:
        self._file: int | None = None if fcntl is None else _open(database)

    def take(self) -> None:
        """Wait for the turn."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def end(self) -> None:
        """Let the next one write. No error without a turn."""
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Leave the line. Twice is no error."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _open(database: str) -> int:
    try:
        return os.open(f"{database}-lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError as error:
        raise StoreReadOnly(database) from error
    except OSError as error:
        raise (
            StoreReadOnly(database) if error.errno == errno.EROFS else StoreUnavailable(database, str(error))
        ) from error
