"""One item runs once at a time on one host, for one user: whoever runs it holds a lock on a file of its name.

The lock ends with the process that holds it, however that ends. Whoever finds it taken waits: the other run has lost
its lease, and is about to end. Only modules of Python are imported here, because `command_parent` has to start fast.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from itertools import islice
from pathlib import Path

LOOK_SECONDS = 0.05
"""How often to look whether a lock that was taken is free."""
MOST_LEFT = 1_000
"""How many files of runs that were killed are looked at."""


class RunLock:
    """The lock of one item. For one thread."""

    def __init__(self, item: str) -> None:
        self._path = _folder() / item
        self._descriptor: int | None = None

    def take(self) -> bool:
        """Whether it is ours now. Raises OSError where there can be no lock at all."""
        _make_private(self._path.parent)
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The file may have been removed by its holder since it was opened: then the lock is on nothing.
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
            with contextlib.suppress(OSError):  # what ran may have closed it
                self._path.unlink(missing_ok=True)
                os.close(self._descriptor)
            self._descriptor = None


def remove_left() -> None:
    """Remove the files of runs that were killed, of which others took no notice. For whoever just started."""
    with contextlib.suppress(OSError):
        for name in islice(os.listdir(_folder()), MOST_LEFT):
            lock = RunLock(name)
            if lock.take():
                lock.release()


def _folder() -> Path:
    return Path(tempfile.gettempdir(), f"redrive-{os.getuid()}")


def _make_private(folder: Path) -> None:
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} is not a folder of this user alone: remove it, or set TMPDIR to another folder"
        )
