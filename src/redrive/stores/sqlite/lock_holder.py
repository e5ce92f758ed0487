"""The process that holds a lock, if the system reports it."""

from __future__ import annotations

import os
from typing import NamedTuple

from redrive.model.redact import redact_text

_LOCKS = "/proc/locks"
_MAX_COMMAND_BYTES = 200


class Holder(NamedTuple):
    """A process that holds a lock."""

    pid: int
    command: str | None
    stopped: bool
    """True if Ctrl-Z, a debugger or `kill -STOP` stopped it: it continues with SIGCONT."""


def find_holder(file: int) -> Holder | None:
    """Return the process that holds `flock` on an open file; None if it is unknown. Linux has a list of locks."""
    try:
        found = os.fstat(file)
        item_row = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        with open(_LOCKS, encoding="ascii") as locks:
            # 12: FLOCK  ADVISORY  WRITE 4242 fe:01:1234 0 EOF. One that waits has an arrow behind the number.
            fields = [line.split() for line in locks]
        pid = next(int(each[4]) for each in fields if each[1] == "FLOCK" and each[5] == item_row)
    except (OSError, ValueError, LookupError, StopIteration):
        return None
    return Holder(pid, _command(pid), _is_stopped(pid)) if pid > 0 else None


def _command(pid: int) -> str | None:
    """Return the command line of a process, without anything that resembles a secret: other users may read errors,
    too."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read(_MAX_COMMAND_BYTES).split(b"\0")
    except OSError:
        return None
    return redact_text(b" ".join(words).decode(errors="replace").strip()) or None


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
