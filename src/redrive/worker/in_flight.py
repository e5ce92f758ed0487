"""The in-flight log: the items that a worker runs now, readable after the worker was killed.

A small file, mapped into the memory of the worker and of its supervisor: a heartbeat, and for each slot the token of
the item that runs there. Writing needs no system call, and the data survives the process (not the machine: then there
is no reader either).

A slot is marked as running only after its token is complete, and before the handler is called. So a token that is read
after a death is of an item whose handler had started, or was about to, and had not ended.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import sys
import time
from pathlib import Path

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput
from redrive.model.ids import ItemId, Token, item_id_of
from redrive.model.limits import MAX_LABEL_CHARS
from redrive.worker.process_exit import Exit

_MAGIC = b"redrive-inflight"
_HEAD = struct.Struct("<16sIH1026s")
"""Magic, number of slots, length of the worker's name, the name."""
_BEATS = struct.Struct("<Q")
"""Heartbeats so far."""
_BEATS_AT = 1056
_FINISHED_AT = 1072
_FINISHED, _STOPPED = 1, 2
_EXIT_LENGTH = struct.Struct("<H")
_EXIT_AT = 1080
_EXIT_BYTES = 900
_BECAUSE_CHARS = 200
_SLOTS_AT = 2048
_SLOT_BYTES = 128
_SLOT = struct.Struct("<IIQ48s55s")
"""Process id, items that ended here; start time, token and label of the current one. The byte after that: its state.

That is a byte because a single byte is written atomically.
"""
_STATE_AT = _SLOT_BYTES - 1
_RUNS, _WAITS = 1, 2  # 0: none
_BEGIN = struct.Struct("<Q48s55s")
_BEGIN_AT = 8
_ENDED = struct.Struct("<I")
_ENDED_AT = 4
_PID = struct.Struct("<I")


class WorkerExit(msgspec.Struct, frozen=True):
    """The end of a worker, as recorded by its supervisor, or by the worker itself before it ends."""

    exit: Exit
    because: str = ""
    """Reason for which it was ended."""
    by_order: bool = False
    """True if it was asked to stop: what it ran is not charged."""


class InFlightItem(msgspec.Struct, frozen=True):
    """An item that runs."""

    slot: int
    token: Token
    began_at: Instant
    label: str = ""
    """The name of its task."""
    pid: int = 0
    """The process that runs it, where that is not the worker."""

    @property
    def id(self) -> ItemId:
        """The id of the item."""
        return item_id_of(self.token)


class InFlightLog:
    """The items that one worker runs, in a memory-mapped file. One writer per slot, any number of readers."""

    def __init__(self, path: Path) -> None:
        self._map = _map_file(path)
        magic, slots, length, name = _HEAD.unpack_from(self._map)
        if magic != _MAGIC:
            raise InvalidInput(f"{path} is not the in-flight log of a worker")
        self.path = path
        self.slots: int = slots
        self.worker: str = name[:length].decode()

    @classmethod
    def create(cls, path: Path, worker: str, slots: int) -> InFlightLog:
        """Create a log that only this user can read. `worker` is the name under which it holds its leases."""
        name = worker.encode()
        if not 0 < len(worker) <= MAX_LABEL_CHARS:
            raise InvalidInput(f"the name of a worker has 1 to {MAX_LABEL_CHARS} characters, not {len(worker)}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(_HEAD.pack(_MAGIC, slots, len(name), name))
            file.truncate(_SLOTS_AT + slots * _SLOT_BYTES)
        return cls(path)

    # The worker writes.

    def begin(self, slot: int, token: Token, label: str = "", *, waits: bool = False) -> None:
        """Record that an item starts in this slot; with `waits`, that it waits for the end of an earlier run."""
        start = _SLOTS_AT + slot * _SLOT_BYTES
        now = time.time_ns() // 1000
        self._map[start + _STATE_AT] = 0  # of the item before, which was not cleared
        _BEGIN.pack_into(self._map, start + _BEGIN_AT, now, token.encode(), label.encode()[:55])
        self._map[start + _STATE_AT] = _WAITS if waits else _RUNS

    def end(self, slot: int) -> None:
        """Record that the item in this slot has ended."""
        self.clear(slot)
        self.count(slot)

    def clear(self, slot: int) -> None:
        """Record that no item runs in this slot."""
        self._map[_SLOTS_AT + slot * _SLOT_BYTES + _STATE_AT] = 0

    def count(self, slot: int) -> None:
        """Count an item that has ended in this slot. Another one may have started."""
        start = _SLOTS_AT + slot * _SLOT_BYTES + _ENDED_AT
        (ended,) = _ENDED.unpack_from(self._map, start)
        _ENDED.pack_into(self._map, start, (ended + 1) & 0xFFFFFFFF)

    def assign_process(self, slot: int, pid: int) -> None:
        """Record the process that runs the items of this slot from now on; 0: none."""
        _PID.pack_into(self._map, _SLOTS_AT + slot * _SLOT_BYTES, pid)

    def beat(self) -> None:
        """Record a heartbeat. For one thread."""
        _BEATS.pack_into(self._map, _BEATS_AT, self.beats + 1)

    def finish(self, settled_all: bool = True) -> None:
        """Record that the worker ends as requested, and whether it has settled all that it had."""
        self._map[_FINISHED_AT] = _FINISHED if settled_all else _STOPPED

    # The supervisor reads.

    @property
    def beats(self) -> int:
        """Heartbeats so far."""
        beats: int = _BEATS.unpack_from(self._map, _BEATS_AT)[0]
        return beats

    @property
    def is_finished(self) -> bool:
        """True if the worker ended as requested, and has settled all that it had."""
        return self._map[_FINISHED_AT] == _FINISHED

    @property
    def is_stopped(self) -> bool:
        """True if the worker ended as requested, but could not settle all that it had: that is not charged."""
        return self._map[_FINISHED_AT] == _STOPPED

    @property
    def ended(self) -> int:
        """Number of items that have ended so far."""
        starts = range(_SLOTS_AT + _ENDED_AT, _SLOTS_AT + self.slots * _SLOT_BYTES, _SLOT_BYTES)
        return sum(_ENDED.unpack_from(self._map, start)[0] for start in starts)

    def running(self) -> list[InFlightItem]:
        """Return the items that run: a snapshot while the worker lives, and after its death what it ran."""
        return [item for slot in range(self.slots) if (item := self.running_in(slot)) is not None]

    def running_in(self, slot: int) -> InFlightItem | None:
        """Return the item that runs in this slot, or None."""
        start = _SLOTS_AT + slot * _SLOT_BYTES
        if self._map[start + _STATE_AT] != _RUNS:
            return None
        pid, _, began_at, token, label = _SLOT.unpack_from(self._map, start)
        name = label.rstrip(b"\0").decode("utf-8", "ignore")
        return InFlightItem(slot, Token(token.decode("ascii", "replace")), Instant(began_at), name, pid)

    def token_in(self, slot: int) -> Token | None:
        """Return the token of the item that runs or waits in this slot, or None."""
        start = _SLOTS_AT + slot * _SLOT_BYTES
        token: bytes = _SLOT.unpack_from(self._map, start)[3]
        return Token(token.decode("ascii", "replace")) if self._map[start + _STATE_AT] else None

    def pids(self) -> list[int]:
        """Return the ids of the processes that the worker has for its slots."""
        starts = range(_SLOTS_AT, _SLOTS_AT + self.slots * _SLOT_BYTES, _SLOT_BYTES)
        return [pid for start in starts if (pid := _PID.unpack_from(self._map, start)[0])]

    def write_exit(self, worker_exit: WorkerExit) -> None:
        """Record how the worker ended, for the process that settles its leases."""
        data = msgspec.msgpack.encode(
            msgspec.structs.replace(worker_exit, because=worker_exit.because[:_BECAUSE_CHARS])
        )
        assert len(data) <= _EXIT_BYTES
        self._map[_EXIT_AT + 2 : _EXIT_AT + 2 + len(data)] = data
        _EXIT_LENGTH.pack_into(self._map, _EXIT_AT, len(data))

    @property
    def worker_exit(self) -> WorkerExit | None:
        """The recorded end of the worker. None while it lives, or if nothing was recorded."""
        (length,) = _EXIT_LENGTH.unpack_from(self._map, _EXIT_AT)
        if not length:
            return None
        return msgspec.msgpack.decode(self._map[_EXIT_AT + 2 : _EXIT_AT + 2 + length], type=WorkerExit)

    def close(self) -> None:
        """Unmap it. The file stays."""
        self._map.close()

    def remove(self) -> None:
        """Unmap it, and remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)


def _map_file(path: Path) -> mmap.mmap:
    """Map a file, and leave no descriptor of it open.

    A handler that truncated every open file would end all processes that have mapped this one, by SIGBUS.
    """
    with path.open("r+b") as file:
        if sys.version_info >= (3, 13):
            return mmap.mmap(file.fileno(), 0, trackfd=False)
        while True:
            number = os.dup(file.fileno())
            os.close(number)
            mapped = mmap.mmap(file.fileno(), 0)  # it duplicates the descriptor too, to the same number
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(number), os.fstat(file.fileno())):
                    break
            mapped.close()  # another thread was given the number
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, number, inheritable=False)  # and not closed: `mapped` closes this number in the end
        os.close(null)
        return mapped
