"""A port for a server of a test, which no other process gets before the server starts, or while it is restarted.

The system gives a port that was found and let go to any connection that goes out. So a socket stays bound to it, and
never listens: sockets with SO_REUSEADDR share a port as long as only one of them listens, and all servers here have it.
"""

from __future__ import annotations

import contextlib
import socket
import weakref


class ReservedPort:
    """A port of 127.0.0.1, as long as this object lives, and one `offset` above it where one is named."""

    def __init__(self, *, offset: int | None = None) -> None:
        while True:
            with contextlib.ExitStack() as bound, contextlib.suppress(OSError, OverflowError):
                self.number = _bind(bound, 0)
                if offset is not None:
                    _bind(bound, self.number + offset)
                weakref.finalize(self, bound.pop_all().close)
                return


def _bind(bound: contextlib.ExitStack, port: int) -> int:
    found = bound.enter_context(socket.socket())
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.bind(("127.0.0.1", port))
    number: int = found.getsockname()[1]
    return number
