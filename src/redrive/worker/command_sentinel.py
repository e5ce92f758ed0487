"""Ends commands when their worker and their parent were killed together.

It is a shell: small, and not hit by a kill of every process whose name has python or redrive in it. It reads which
sessions live, and at the end of its input it kills what is left of them. The parent makes a session known to it
immediately after its start; if both are killed in between, that command goes on.
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
    """The shell, as the parent of commands sees it. Where it cannot be started, or is gone, the parent does without."""

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
        """A session began."""
        self._tell(f"+ {leader}\n")

    def forget(self, leader: int) -> None:
        """It is over. To be said before its leader is reaped: from then on the number may be that of another."""
        self._tell(f"- {leader}\n")

    def _tell(self, line: str) -> None:
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, line.encode())
