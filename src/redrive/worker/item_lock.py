"""The lock of an item, which runs once at a time on one host, for one user: on the byte of a file that its id names.

The file is empty: a lock needs no byte to be there. The lock ends with the process that holds it, however that ends. A
run that finds it taken by another process waits: the other run has lost its lease, and is about to end. Only the
standard library is imported here, because `command_parent` has to start fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
import time
from functools import cache

POLL_SECONDS = 0.05
"""Seconds between two attempts to take a lock that another process holds."""
RENEWED_SECONDS = 3600.0
"""Greatest age of the file in use: programs that clean temporary folders remove files that are days old, and a lock on
a removed file excludes no other process."""
_OFFSETS = 2**61 - 1
"""A prime, so that every digit of an id counts. Two items that run at the same time hardly ever have the same byte."""


class ItemLock:
    """The lock of one item. Between processes, not within one."""

    def __init__(self, item: str) -> None:
        self._offset = int(item, 16) % _OFFSETS
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Take the lock, if it is free, and return whether it was. Raises OSError if locks are impossible."""
        if not _is_there(*_lock_file()):
            _lock_file.cache_clear()
        descriptor, _ = _lock_file()
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, self._offset)
        except (BlockingIOError, PermissionError):
            return False
        self._descriptor = descriptor
        return True

    def release(self) -> None:
        """Release the lock, if it was taken."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):  # what ran may have closed it
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._offset)
            self._descriptor = None


@cache
def _lock_file() -> tuple[int, os.stat_result]:
    """Return the file. It stays open: closing any descriptor of a file ends all locks of a process on it."""
    path = f"{private_folder()}/running"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return descriptor, os.fstat(descriptor)


def _is_there(descriptor: int, opened: os.stat_result) -> bool:
    """Return whether this is still the file: its folder may have been cleaned, and a handler may have closed it."""
    try:
        now = os.fstat(descriptor)
    except OSError:
        return False
    if now.st_nlink == 0 or not os.path.samestat(now, opened):
        return False
    if time.time() - now.st_mtime > RENEWED_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(descriptor)
    return True


def private_folder() -> str:
    """Return the folder of the file. Raises PermissionError if other users can access it."""
    folder = f"{tempfile.gettempdir()}/redrive-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a folder of this user alone: remove it, or set TMPDIR to another folder"
        )
    return folder
