"""Forked children that talk back through a pipe, and may die."""

from __future__ import annotations

import fcntl
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import NamedTuple

Say = Callable[[bytes], None]
BEAT = b"." * 4096
"""Fills the smallest pipe: a child that says it works no further ahead than its killer has seen, however busy the
machine is."""


class Ended(NamedTuple):
    """How a child ended, and what it said before."""

    killed: bool
    code: int
    said: bytes


def fork(work: Callable[[Say], None], *, pipe_bytes: int | None = None) -> tuple[int, int]:
    """Run `work` in a child. Gives its process id and the reading end of its pipe, which holds at most `pipe_bytes`."""
    reader, writer = os.pipe()
    if pipe_bytes is not None:
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, pipe_bytes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns where other threads run; the child needs none
        pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    code = 1
    try:
        os.close(reader)
        work(lambda data: os.write(writer, data) and None)
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)


def join(pid: int, reader: int) -> Ended:
    """Wait until a child has ended."""
    said = b""
    while data := os.read(reader, 65536):
        said += data
    os.close(reader)
    _, status = os.waitpid(pid, 0)
    return Ended(os.WIFSIGNALED(status), os.waitstatus_to_exitcode(status), said)


def run(work: Callable[[Say], None]) -> Ended:
    """Run `work` in a child to its end. The test fails if it raised."""
    ended = join(*fork(work))
    assert ended.killed or ended.code == 0, "the child failed; see its traceback"
    return ended
