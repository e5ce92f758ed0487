"""What a server takes at most."""

from __future__ import annotations

import msgspec

from redrive.model.limits import MIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one request, and of all that are under way. What is beyond is refused before it costs anything."""

    body: int = 32 * MIB
    """Bytes of a request."""
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
    """Bytes of requests that are being read or carried out at once; more are told to come again."""


DEFAULT_LIMITS = Limits()
