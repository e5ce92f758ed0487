"""The files of one database: their location and their modes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from redrive.errors import NotAStore, StoreReadOnly, StoreUnavailable
from redrive.model.sqlite_url import OWNER_ONLY, lock_mode

_OPEN = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)


def locate(path: Path) -> Path:
    """Return the path without symbolic links, so that log and lock have the same names for every process."""
    found = Path(os.path.realpath(path))
    if found.is_dir():
        raise NotAStore(str(path), "it is a folder")
    if not found.parent.is_dir():
        raise StoreUnavailable(str(path), f"the folder {found.parent} does not exist; create it first")
    if found.is_symlink():
        raise StoreUnavailable(str(path), f"the symbolic link {found} leads back to itself; correct it")
    return found


def create_database(path: str, mode: int) -> None:
    """Create an empty database with this mode, unless it exists.

    SQLite gives log and index the mode of the database, and would create the database itself according to the umask.
    Only for callers that have the turn: closing the file would end the locks of another connection in this process.

    A log without its database contains acknowledged changes, and SQLite would remove it.
    """
    log = f"{path}-wal"
    if not os.path.exists(path) and os.path.exists(log) and os.path.getsize(log):
        raise StoreUnavailable(
            path,
            f"it was removed or renamed, and its log is still there; restore it, or remove {log} to start with an "
            "empty store",
        )
    try:
        file = os.open(path, _OPEN | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return
    _give(file, mode)
    os.close(file)


def open_lock(path: str, mode: int) -> int:
    """Open the lock of a database. It is created for the users who may write to the database, or could if it
    existed."""
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
    """Return the number of names (hard links) of the database."""
    return os.stat(path).st_nlink


def check_names(path: str) -> None:
    """Refuse a database that has two names: SQLite would use a separate log for each, and lose the content of one."""
    if (names := names_of(path)) > 1:
        raise StoreUnavailable(path, several_names(names))


def several_names(names: int) -> str:
    """Return the problem text for a database with this number of names."""
    return (
        f"the file has {names} names (hard links), and a program that opens another one would not see what is in the "
        f"log of this one; remove all names but one, or use symbolic links"
    )


def _give(file: int, mode: int, like: os.stat_result | None = None) -> None:
    """Set the mode of a new file, regardless of the umask. If root creates it, the owner of the database becomes its
    owner."""
    if hasattr(os, "fchmod"):
        os.fchmod(file, mode)
        if like is not None and os.geteuid() == 0:
            os.fchown(file, like.st_uid, like.st_gid)


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None
