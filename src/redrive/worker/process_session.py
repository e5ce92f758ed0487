"""All processes of a session: a program that was started as its leader, and what it started in the same session."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator

_PROCESSES = "/proc"


def members_of(leader: int) -> list[int]:
    """Return the processes of a session that have not ended, without the leader."""
    return [pid for pid, session in _processes() if session == leader and pid != leader]


def signal_session(leader: int, number: signal.Signals) -> None:
    """Send a signal to the group of the leader, and to the processes of its session in other groups."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in members_of(leader):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) != leader:
                os.kill(pid, number)


def _processes() -> Iterator[tuple[int, int]]:
    """Yield the processes that have not ended, with their sessions."""
    if not os.path.exists(f"{_PROCESSES}/self/stat"):
        yield from _listed()
        return
    for name in os.listdir(_PROCESSES):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"{_PROCESSES}/{name}/stat", "rb") as file:
                # After the name, which may be anything: state, parent, group, session.
                state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
                if state not in (b"Z", b"X"):
                    yield int(name), int(session)


def _listed() -> Iterator[tuple[int, int]]:
    """Yield the same from `ps`, where there is no /proc."""
    listed = subprocess.run(["ps", "-axo", "pid=,stat="], stdout=subprocess.PIPE, check=False).stdout
    for line in listed.splitlines():
        pid, state = line.split()[:2]
        if not state.startswith(b"Z"):
            with contextlib.suppress(OSError):
                yield int(pid), os.getsid(int(pid))
