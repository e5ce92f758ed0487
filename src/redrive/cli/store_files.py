"""What `redrive doctor` looks at of a SQLite file: who may use its files, and who uses one that is gone."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator

from redrive.cli.checkups import Check
from redrive.model.sqlite_url import lock_mode, parse_sqlite_url

_GONE = " (deleted)"
"""What Linux appends to the name of an open file that has none any more."""


def check_files(url: str) -> Iterator[Check]:
    """The files of the store that a URL names."""
    file = parse_sqlite_url(url)
    path = os.path.realpath(file.path)
    modes = {path: file.mode, f"{path}-wal": file.mode, f"{path}-shm": file.mode, f"{path}-lock": lock_mode(file.mode)}
    loose = {name: found for name, mode in modes.items() if (found := _mode(name)) & ~mode}
    left_behind = _users_of_removed(path)
    if loose:
        shown = ", ".join(f"{os.path.basename(name)} ({found:04o})" for name, found in loose.items())
        mending = [
            _chmod(mode, [name for name in loose if modes[name] == mode]) for mode in dict.fromkeys(modes.values())
        ]
        yield Check(
            "files",
            "warn",
            f"other users than the URL says may use {shown}: to read the lock is enough to stop all writers",
            " && ".join(filter(None, mending)),
        )
    if left_behind:
        pids = ", ".join(map(str, left_behind))
        told = f"a file of that name which was removed or replaced is still in use, by process {pids}"
        yield Check("files", "warn", told, "restart what still uses it: what it reads and writes is not in this store")
    if not loose and not left_behind:
        yield Check("files", "ok", "in place, and closed to users other than the URL says")


def _mode(name: str) -> int:
    """Who may read and write a file; 0 where there is none."""
    try:
        return stat.S_IMODE(os.stat(name).st_mode)
    except OSError:
        return 0


def _chmod(mode: int, names: list[str]) -> str:
    return f"chmod {mode:o} {shlex.join(names)}" if names else ""


def _users_of_removed(path: str) -> list[int]:
    """Processes that have a database or log of this name open which no longer has it. Linux says so of one's own."""
    gone = {f"{path}{_GONE}", f"{path}-wal{_GONE}"}
    return [int(pid) for pid in _entries("/proc") if pid.isdecimal() and not gone.isdisjoint(_open_files(pid))]


def _open_files(pid: str) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    for number in _entries(folder):
        try:
            yield os.readlink(f"{folder}/{number}")
        except OSError:  # it was closed this moment
            continue


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
