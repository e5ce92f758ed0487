"""A SQLite file system that counts what is written, and fails, dies or loses power at the n-th time.

It is made the default of a forked child, so the store runs on it unchanged. The points are every write, sync,
truncation and deletion. Nothing is really synced: the machine goes on running, and a power cut is played here.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import apsw

BASE = "unix"
NAME = "redrive-faults"
KEPT_SHARE = 0.5
"""Of the writes that were not synced, how many a power cut leaves."""


class Fault(StrEnum):
    """What happens at the n-th point."""

    KILL = "kill"
    """SIGKILL before it is done. What was written so far stays: the system lives on."""
    POWER_CUT = "power cut"
    """SIGKILL, and of what was not synced some writes are lost and some are not."""
    DISK_FULL = "disk full"
    """SQLITE_FULL, once."""
    IO_ERROR = "I/O error"
    """SQLITE_IOERR, once."""


class _Change(NamedTuple):
    offset: int
    data: bytes
    before: bytes
    size_before: int


class Faults(apsw.VFS):
    """Passes everything on to the real file system until the n-th point."""

    def __init__(self, fault: Fault, seed: int = 0) -> None:
        super().__init__(NAME, BASE, makedefault=True)
        self.fault = fault
        self.count = 0
        self.at = 0
        self._note: Callable[[bytes], object] | None = None
        self.lock = threading.RLock()
        """One thread at a time, so that none writes any more while the power goes."""
        self._random = random.Random(seed)
        self._unsynced: dict[str, list[_Change]] = {}

    def arm(self, at: int, note: Callable[[bytes], object] | None = None) -> None:
        """Let it happen at the n-th point from now; 0 is never. `note` is called with the kind of each point."""
        self.count, self.at, self._note = 0, at, note

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:  # noqa: N802
        return _File(self, name, flags)

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        with self.lock:
            self.point("delete", name)
            super().xDelete(name, sync)

    def excepthook(self, *_: object) -> None:
        """The store reports the error; it need not be printed."""

    def point(self, kind: str, path: str) -> None:
        """One more write, sync, truncation or deletion is about to be done."""
        self.count += 1
        if self._note is not None:
            self._note(f"{kind} {os.path.basename(path)}\n".encode())
        if self.count != self.at:
            return
        match self.fault:
            case Fault.KILL:
                die()
            case Fault.POWER_CUT:
                self.cut_power()
            case Fault.DISK_FULL:
                raise apsw.FullError("planted")
            case Fault.IO_ERROR:
                raise apsw.IOError("planted")

    def cut_power(self) -> None:
        """Lose what was not synced: back to the last sync, then any of the writes since."""
        self.lock.acquire()
        for path, changes in self._unsynced.items():
            file = os.open(path, os.O_RDWR | os.O_CREAT)
            for change in reversed(changes):
                os.pwrite(file, change.before, change.offset)
                os.ftruncate(file, change.size_before)
            for change in changes:
                if change.data and self._random.random() < KEPT_SHARE:
                    os.pwrite(file, change.data, change.offset)
            os.close(file)
        die()

    def changing(self, path: str, offset: int, data: bytes) -> None:
        """Remember a write (or a truncation, without data), and what was there before it, until the next sync."""
        if self.fault is Fault.POWER_CUT:
            size = os.path.getsize(path)
            before = _read(path, offset, len(data) or size)
            self._unsynced.setdefault(path, []).append(_Change(offset, data, before, size))

    def synced(self, path: str) -> None:
        """What was written is safe."""
        self._unsynced.pop(path, None)


class _File(apsw.VFSFile):
    def __init__(self, faults: Faults, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__(BASE, name, flags)
        self._faults = faults
        self._path = name.filename() if isinstance(name, apsw.URIFilename) else name or ""

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        with self._faults.lock:
            self._faults.point("write", self._path)
            self._faults.changing(self._path, offset, bytes(data))
            super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:  # noqa: N802
        with self._faults.lock:
            self._faults.point("sync", self._path)
            self._faults.synced(self._path)

    def xTruncate(self, size: int) -> None:  # noqa: N802
        with self._faults.lock:
            self._faults.point("truncate", self._path)
            self._faults.changing(self._path, size, b"")
            super().xTruncate(size)

    def excepthook(self, *_: object) -> None:
        """The store reports the error; it need not be printed."""


def die() -> None:
    """End this process at once, without any clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def _read(path: str, offset: int, size: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read(size)
