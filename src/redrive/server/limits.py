"""What a server takes at most."""

from __future__ import annotations

import msgspec

from redrive.errors import Overloaded, RedriveError
from redrive.model.limits import KIB, MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one request, and of all that are under way. What is beyond is refused before it costs anything."""

    body: int = 32 * MIB
    """Bytes of a request."""
    values: int = 1_000_000
    """Commas and brackets in a body of JSON of more than 1 MiB: about as many values are in it. While they are read
    nobody else is served, for half a second at most; a payload is not read, and one of 1 MiB cannot have so many."""
    body_seconds: float = 30.0
    """From the first byte of a request to its last."""
    answer_seconds: float = 60.0
    """How long a client may take to read an answer."""
    wait_seconds: float = 60.0
    """How long a lease or a watch may wait; longer waits end then, with nothing."""
    waiting: int = 10_000
    """Leases and watches that wait at once; more are told to come again."""
    batch: int = 1000
    """Items in one request."""
    page: int = 1000
    """Items in one answer."""
    answer: int = 32 * MIB
    """Bytes of payloads in one answer. What is beyond comes with the next page, or is leased by the next request."""
    bodies: int = 256 * MIB
    """Bytes of requests that are being read or carried out at once; more are told to come again. One token gets no more
    of them than it leaves to others."""
    waiting_body: int = 256 * KIB
    """Bytes of a watch, which stay in memory while it waits: the names of a thousand queues."""


class Busy(Overloaded):
    """The server has too much to do. This request was not carried out."""

    def __init__(self, waiting: int, problem: str) -> None:
        self.waiting = waiting
        RedriveError.__init__(self, f"{problem}; this request was not carried out. Slow down and retry")


DEFAULT_LIMITS = Limits()
