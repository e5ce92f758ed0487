"""Damage of the log (WAL): found before SQLite writes over it, and named as long as a copy of the log is kept.

SQLite takes the first frame that is not valid for the end of the log. After a kill or a power cut that is right: a
transaction was being written. But a transaction is written after the one before it was synced. So a valid commit behind
that end, with a valid frame right behind it, proves damage: the frames before were complete, and have changed since.
The last transaction alone proves nothing, as a power cut may leave its frames incomplete and its commit on the disk.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from redrive.model.text import pluralize

HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24
_BIG_ENDIAN = 0x377F0683
MAGICS = tuple(struct.pack(">I", magic) for magic in (_BIG_ENDIAN - 1, _BIG_ENDIAN))
"""How a log starts."""
_EMPTIED = "emptied"
_NAME = re.compile(rf"-wal-damaged-(?:[0-9a-f]{{16}}-(?P<lost>\d+)|{_EMPTIED})$")


class LogDamage(NamedTuple):
    """Transactions in a log that SQLite does not see, because something before them has changed."""

    salts: bytes
    """What distinguishes this log from those that were in the same file before."""
    lost: int
    """How many of these transactions are known."""


class _Frame(NamedTuple):
    head: bytes
    commits: bool
    salts: bytes
    checksum: tuple[int, int]


class _Log:
    """The frames of a log, by their position."""

    def __init__(self, file: BinaryIO, page_bytes: int) -> None:
        self._file = file
        self._bytes = FRAME_HEADER_BYTES + page_bytes
        self._header = file.read(HEADER_BYTES)
        self.count = max(0, os.fstat(file.fileno()).st_size - HEADER_BYTES) // self._bytes

    def salts(self) -> bytes:
        """Return the salts of this log: those of its header, unless its first frames say otherwise."""
        found = [self._header[16:24], *(self.frame(at).salts for at in range(min(3, self.count)))]
        return max(found, key=found.count)

    def frame(self, at: int) -> _Frame:
        self._file.seek(HEADER_BYTES + at * self._bytes)
        head = self._file.read(FRAME_HEADER_BYTES)
        return _Frame(head[:8], head[4:8] != bytes(4), head[8:16], struct.unpack(">2I", head[16:]))

    def is_valid(self, at: int) -> bool:
        """Return whether a frame, other than the first, is what was written behind the one before it."""
        before, this = self.frame(at - 1), self.frame(at)
        page = self._file.read(self._bytes - FRAME_HEADER_BYTES)
        return any(
            _checksum(order, page, _checksum(order, this.head, before.checksum)) == this.checksum for order in "<>"
        )


def find_damage(path: str, pages: int, page_bytes: int) -> LogDamage | None:
    """Return the damage of the log of a database, of which SQLite sees that many pages."""
    with open(f"{path}-wal", "rb") as file:
        log = _Log(file, page_bytes)
        if log.count <= pages:
            return None
        salts = log.salts()
        behind = [(at, frame) for at in range(pages, log.count) if (frame := log.frame(at)).salts == salts]
        commits = [at for at, frame in behind if frame.commits]
        followed = {at - 1 for at, _ in behind}
        proven = any(at and at in followed and log.is_valid(at) and log.is_valid(at + 1) for at in commits)
        return LogDamage(salts, len(commits)) if proven else None


def keep_damaged_log(path: str, damage: LogDamage | None) -> str:
    """Copy the log beside the database, once, and return the name of the copy. Without `damage` it was emptied."""
    copy = f"{path}-wal-damaged-"
    if damage is None:
        copy += _EMPTIED
    else:
        copy += damage.salts.hex()
        if there := glob.glob(f"{glob.escape(copy)}-*[0-9]"):
            return there[0]
        copy += f"-{damage.lost}"
    with open(f"{path}-wal", "rb") as log, contextlib.ExitStack() as stack:
        mode = os.fstat(log.fileno()).st_mode
        kept = stack.enter_context(open(f"{copy}.part", "wb", opener=lambda name, flags: os.open(name, flags, 0o600)))
        os.chmod(kept.name, mode & 0o777)
        while part := log.read(1 << 20):
            kept.write(part)
        kept.flush()
        os.fsync(kept.fileno())
    os.replace(f"{copy}.part", copy)
    return copy


def damage_warnings(path: str) -> Iterator[str]:
    """Return a sentence for each damaged log of which there is a copy."""
    for copy in sorted(glob.glob(f"{glob.escape(path)}-wal-damaged-*")):
        if (found := _NAME.search(copy)) is None:
            continue
        if found["lost"] is None:
            lost = "was emptied while programs used it, and what it kept is lost"
        else:
            lost = f"was damaged, and at least the last {pluralize(int(found['lost']), 'transaction')} in it are lost"
        yield (
            f"The store {path} is damaged: its log {lost}; restore a backup, or accept the loss; "
            f"{copy} is a copy of that log, remove it after that"
        )


def _checksum(order: str, data: bytes, start: tuple[int, int]) -> tuple[int, int]:
    first, second = start
    for one, other in struct.iter_unpack(f"{order}2I", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second
