"""A sentinel that ends commands when their worker and their parent were killed together.

It is a shell: small, and not hit by a kill of every process whose name has python or redrive in it. It reads the ids of
live sessions, and at the end of its input it kills those that are left. The parent registers a session immediately
after its start; if parent and worker are killed in between, that command continues.
"""

from __future__ import annotations

import contextlib
import os
import subprocess

_SOURCE = """
trap '' HUP INT TERM
live=' '
while read -r sign leader; do
    case $sign in
        +) live="$live$leader " ;;
        -) live="${live%%" $leader "*} ${live#*" $leader "}" ;;
    esac
done
for leader in $live; do
    kill -s KILL -- "-$leader"
    pkill -KILL -s "$leader"
done
"""


class Sentinel:
    """The parent's side of the shell. If the shell cannot be started, or has died, the parent continues without it."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        with contextlib.suppress(OSError):
            reads, self._pipe = os.pipe()
            os.set_blocking(self._pipe, False)
            try:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _SOURCE],
                    stdin=reads,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    process_group=0,
                )
            finally:
                os.close(reads)

    def watch(self, leader: int) -> None:
        """Register a session that has started."""
        self._tell(f"+ {leader}\n")

    def forget(self, leader: int) -> None:
        """Remove a session that has ended, before its leader is reaped: after that its id can be reused."""
        self._tell(f"- {leader}\n")

    def _tell(self, line: str) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, line.encode())
