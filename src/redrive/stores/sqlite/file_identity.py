"""Checks that a database and its log are still the files that were opened."""

from __future__ import annotations

import os
import time

from redrive.errors import StoreUnavailable

FOLDER_SETTLES_NS = 100_000_000
"""Minimum interval after which two changes of a folder have different times; some systems keep them in steps of 10
ms."""

FOLDER_LOST = "its folder was removed or renamed under this program; put it back where it was, and restart this program"
DATABASE_LOST = (
    "the file was removed or renamed under this program; put it back or restore a backup, and restart this program"
)
DATABASE_REPLACED = (
    "another file was put in its place under this program, which does not use it; restart this program to use it"
)
LOG_LEFT = (
    "another file was put in its place under this program, but the log is still that of the file before, and would "
    "damage the new one; end all programs that use it, remove {log}, and start again"
)
LOG_LOST = (
    "its log was removed under this program, probably because the file was also opened with the sqlite3 module; use "
    "apsw for your own connections, and restart this program"
)

_Identity = tuple[int, int]


class FileGuard:
    """Checks the files of an open database, so that no commit to a file without a name is acknowledged.

    Files are removed and replaced by people and tools. A log is also removed by another copy of SQLite in this process,
    such as Python's own sqlite3 module: it ignores our locks, and when it closes the file, it assumes that it is the
    last connection.

    Once a file is lost, it stays lost, even if it is restored: another program may have used its log in between.
    """

    def __init__(self, database: str) -> None:
        """Create it before the database is opened, and call `watch_log` after that."""
        self._database = database
        self._log = f"{database}-wal"
        self._folder = os.path.dirname(database)
        self._opened_database = _identity(database)
        self._opened_log: _Identity | None = None
        self._settled: tuple[int, ...] | None = None
        """State of the folder when all files were found; None while a change could leave its times unchanged."""
        self._lost: str | None = None

    def watch_log(self) -> None:
        """Check the log too from now on. It exists as long as a connection has read or written something."""
        self._opened_log = _identity(self._log)
        self.check()

    def check(self) -> None:
        """Raise `StoreUnavailable` unless the files are where they were opened.

        They are if the folder is unchanged. Reading the times of the log itself would be slow: since Linux 6.13 a file
        whose times were read gets new ones with its next write, and a sync that has to wait for them takes half as long
        again.
        """
        if self._lost is None:
            try:
                folder = os.stat(self._folder)
                state = (folder.st_dev, folder.st_ino, folder.st_ctime_ns, folder.st_mtime_ns)
                if state == self._settled:
                    return
                self._lost = self._look()
            except (FileNotFoundError, NotADirectoryError):
                self._lost = FOLDER_LOST
            except OSError as error:  # temporary: the files may still be there
                raise StoreUnavailable(self._database, f"its files cannot be checked: {error}") from error
            if self._lost is None:
                now = time.time_ns()
                settled = all(abs(now - at) > FOLDER_SETTLES_NS for at in state[2:])
                self._settled = state if settled else None
                return
        raise StoreUnavailable(self._database, self._lost)

    def lose(self, problem: str) -> StoreUnavailable:
        """Treat the files as lost from now on. Returns the error."""
        self._lost = problem
        return StoreUnavailable(self._database, problem)

    def _look(self) -> str | None:
        """Return what happened to missing files, or None."""
        database, log = _identity(self._database), _identity(self._log)
        if database is None:
            return DATABASE_LOST
        if database != self._opened_database:
            return LOG_LEFT.format(log=self._log) if log == self._opened_log else DATABASE_REPLACED
        return None if log == self._opened_log else LOG_LOST


def _identity(name: str) -> _Identity | None:
    """Return what distinguishes a file from all others, regardless of its name."""
    try:
        found = os.stat(name)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
