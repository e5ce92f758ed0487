"""The files of one database: where they are, and who may read and write them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from redrive.errors import NotAStore, StoreReadOnly, StoreUnavailable
from redrive.model.sqlite_url import OWNER_ONLY, lock_mode

_OPEN = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def locate(path: Path) -> Path:
    """The path without symbolic links, so that log and lock have the same names for all who open the file."""
    found = Path(os.path.realpath(path))
    if found.is_dir():
        raise NotAStore(str(path), "it is a folder")
    if not found.parent.is_dir():
        raise StoreUnavailable(str(path), f"the folder {found.parent} does not exist; create it first")
    if found.is_symlink():
        raise StoreUnavailable(str(path), f"the symbolic link {found} leads back to itself; correct it")
    return found


def create_database(path: str, mode: int) -> None:
    """Create an empty database with this mode, where there is none.

    SQLite gives its log and index the mode of the database, and would create that one as the umask says. Only for
    callers that have the turn: closing the file would end the locks of another connection in this process.

    A log without its database holds what was acknowledged, and SQLite would remove it.
    """
    log = f"{path}-wal"
    if not os.path.exists(path) and os.path.exists(log) and os.path.getsize(log):
        raise StoreUnavailable(
            path, f"it was removed or renamed, and its log is still there; put it back, or remove {log} to begin anew"
        )
    try:
        file = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return
    _give(file, mode)
    os.close(file)


def open_lock(path: str, mode: int) -> int:
    """Open the lock of a database. It is created for those who may write to the database, or could if it existed."""
    lock = f"{path}-lock"
    try:
        database = _stat(path)
        try:
            file = os.open(lock, _OPEN | os.O_CREAT | os.O_EXCL, OWNER_ONLY)
        except FileExistsError:
            return os.open(lock, _OPEN)
        _give(file, lock_mode(mode if database is None else database.st_mode), database)
        return file
    except PermissionError as error:
        raise StoreReadOnly(path, f"make it, its folder and {lock} writable for this user") from error
    except OSError as error:
        if error.errno == errno.EROFS:
            raise StoreReadOnly(path) from error
        raise StoreUnavailable(path, f"its lock {lock} cannot be opened: {error.strerror}") from error


def names_of(path: str) -> int:
    """How many names (hard links) the database has."""
    return os.stat(path).st_nlink


def check_names(path: str) -> None:
    """Refuse a database that has two names: SQLite would give it a log for each, and lose what is in one of them."""
    if (names := names_of(path)) > 1:
        raise StoreUnavailable(path, several_names(names))


def several_names(names: int) -> str:
    """What is wrong with a database that has so many names."""
    return (
        f"the file has {names} names (hard links), and a program that opens another one would not see what is in the "
        f"log of this one; remove all names but one, or use symbolic links"
    )


def _give(file: int, mode: int, like: os.stat_result | None = None) -> None:
    """Give a new file its mode, whatever the umask is, and what root creates to the owner of the database."""
    if hasattr(os, "fchmod"):
        os.fchmod(file, mode)
        if like is not None and os.geteuid() == 0:
            os.fchown(file, like.st_uid, like.st_gid)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
