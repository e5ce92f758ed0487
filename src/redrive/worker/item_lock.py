"""One item runs once at a time on one host, for one user: a run holds a lock on a file that has the item's id.

The lock ends with the process that holds it, however that ends. A run that finds it taken waits: the other run has lost
its lease, and is about to end. Only modules of Python are imported here, because `command_parent` has to start fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from functools import cache
from itertools import islice

POLL_SECONDS = 0.05
"""How often to look whether a lock that was taken is free."""
MOST_LEFT = 1_000
"""How many files of runs that were killed are looked at."""


class ItemLock:
    """The lock of one item. For one thread."""

    def __init__(self, item: str) -> None:
        self._item = item
        self._path = ""
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises OSError where there can be no lock at all."""
        try:
            descriptor = self._open()
        except FileNotFoundError:  # the folder was tidied
            private_folder.cache_clear()
            descriptor = self._open()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder may have removed the file since it was opened: then the lock is on nothing.
            if os.path.samestat(os.fstat(descriptor), os.stat(self._path)):
                self._descriptor = descriptor
        except (BlockingIOError, FileNotFoundError):
            pass
        finally:
            if self._descriptor is None:
                os.close(descriptor)
        return self._descriptor is not None

    def release(self) -> None:
        """Let others have it, also where a process that was forked meanwhile still has the file open."""
        if self._descriptor is not None:
            with contextlib.suppress(FileNotFoundError):  # the folder was tidied
                os.unlink(self._path)
            with contextlib.suppress(OSError):  # what ran may have closed it
                os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        self._path = f"{private_folder()}/{self._item}"
        return os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def remove_left() -> None:
    """Remove the files of runs that were killed, and of which no other has been begun. For a process that starts."""
    with contextlib.suppress(OSError):
        for name in islice(os.listdir(private_folder()), MOST_LEFT):
            lock = ItemLock(name)
            if lock.take():
                lock.release()


@cache
def private_folder() -> str:
    """Where the files are. Raises PermissionError where another user has a hand in it."""
    folder = f"{tempfile.gettempdir()}/redrive-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a folder of this user alone: remove it, or set TMPDIR to another folder"
        )
    return folder
