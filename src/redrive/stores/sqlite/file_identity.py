"""Whether a database and its log are still the files that were opened."""

from __future__ import annotations

import os
import time

from redrive.errors import StoreUnavailable

FOLDER_SETTLES_NS = 100_000_000
"""Two changes of a folder that are this far apart have different times; some systems keep them in steps of 10 ms."""

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
    """Looks for the files of an open database, so that nothing is acknowledged that went into one without a name.

    Files are removed and replaced by people and tools. A log is also removed by another copy of SQLite in this
    process, such as Python's own sqlite3 module: it does not see our locks. When it closes the file, it takes itself
    for the last one.

    Once a file is lost, it stays lost, even if it comes back: its log may have been used by another program meanwhile.
    """

    def __init__(self, database: str) -> None:
        """Before the database is opened; `watch_log` after that."""
        self._database = database
        self._log = f"{database}-wal"
        self._folder = os.path.dirname(database)
        self._opened_database = _identity(database)
        self._opened_log: _Identity | None = None
        self._settled: tuple[int, ...] | None = None
        """The folder as it was when all was found; None while a change could leave its times as they are."""
        self._lost: str | None = None

    def watch_log(self) -> None:
        """From now on look for the log, too. It exists as long as a connection has read or written something."""
        self._opened_log = _identity(self._log)
        self.check()

    def check(self) -> None:
        """Raise `StoreUnavailable` unless the files are where they were opened.

        As long as nothing in the folder changed, they are. To ask for the times of the log itself would be slow: since
        Linux 6.13 a file whose times were read gets new ones with its next write, and a sync that has to wait for them
        takes half as long again.
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
            except OSError as error:  # it may be there, and it may be seen again
                raise StoreUnavailable(self._database, f"its files cannot be looked at: {error}") from error
            if self._lost is None:
                now = time.time_ns()
                settled = all(abs(now - at) > FOLDER_SETTLES_NS for at in state[2:])
                self._settled = state if settled else None
                return
        raise StoreUnavailable(self._database, self._lost)

    def _look(self) -> str | None:
        """What happened to the files, if they are not there."""
        database, log = _identity(self._database), _identity(self._log)
        if database is None:
            return DATABASE_LOST
        if database != self._opened_database:
            return LOG_LEFT.format(log=self._log) if log == self._opened_log else DATABASE_REPLACED
        return None if log == self._opened_log else LOG_LOST


def _identity(name: str) -> _Identity | None:
    """What distinguishes a file from all others, whatever its name is."""
    try:
        found = os.stat(name)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
