"""Messages of clients and servers, in MessagePack: calls to commit, a query, a watch, and their responses.

Calls and queries are those of `redrive.store`, tagged with their kind; unknown kinds and fields are refused. A client
ignores unknown fields of a response, so that a server may be newer than its clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.store import Commit, Durability
from redrive.wire.result_codec import decode_results, encode, encode_results

WIRE_VERSION = 1
"""The version of this protocol. A client of another version does not open."""
CONTENT_TYPE = "application/msgpack"


class WireMessage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The base of requests."""


class CommitPosition(msgspec.Struct, frozen=True, gc=False):
    """The position of a server in its sequence of commits, as clients know it."""

    server_epoch: str
    """The id of the server process; new at each start."""
    sequence: int = 0
    """The number of the last commit that it received. Later commits have higher numbers."""


class CommitRequest(WireMessage, frozen=True):
    """A request to commit these calls exactly once."""

    id: str
    """Unique among all requests of all clients. A repeated request gets the first response again."""
    server_epoch: str
    """The epoch of the server that it is for. Any other refuses it, since it cannot know whether that one ran it."""
    calls: list[Call]
    now: Instant | None = None
    """For tests. A server that uses its own clock refuses it."""
    is_retry: bool = False
    """True if it was sent before: run it only if it is certain that it did not run."""
    position: int = 0
    """The sequence number of that server that the client knew at the first send. The request ran after it, so responses
    dropped up to that number are irrelevant, and no clock decides whether the server would still know this request."""


class WatchRequest(WireMessage, frozen=True):
    """A long poll: the response comes as soon as something arrives, or after `seconds`."""

    server_epoch: str | None = None
    since: int = 0
    """The number of the last response."""
    queues: tuple[str, ...] | None = None
    """The queues to watch; None: all."""
    seconds: float = 0.0


class WatchAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The queues in which items arrived since."""

    server_epoch: str
    number: int
    queues: tuple[str, ...] | None = ()
    """None: any queue."""
    anything: bool = False
    """True if anything was committed, even if nothing became available to lease."""


class ServerInfo(msgspec.Struct, frozen=True):
    """The description of a server."""

    wire: int
    server_epoch: str
    """New at each start."""
    store: str
    """The name of its store."""
    now: Instant
    durability: Durability
    warnings: tuple[str, ...]
    number: int = 0
    """As in `CommitPosition`."""


MISDIRECTED = 421
"""The HTTP status of a request for another server, or for this one before its last start. This server did not run it;
its `CommitPosition` is in the details."""


class _CommitAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    server_epoch: str
    now: Instant
    arrivals: Mapping[str, int]
    results: list[msgspec.Raw]
    number: int = 0


decode_commit = msgspec.msgpack.Decoder(CommitRequest).decode
decode_query: Any = msgspec.msgpack.Decoder(Query).decode
decode_watch = msgspec.msgpack.Decoder(WatchRequest).decode
decode_watch_answer = msgspec.msgpack.Decoder(WatchAnswer).decode
decode_about = msgspec.msgpack.Decoder(ServerInfo).decode
_decode_answer = msgspec.msgpack.Decoder(_CommitAnswer).decode


def encode_commit(seen: CommitPosition, calls: Sequence[Call], commit: Commit) -> bytes:
    """Return the encoded response to a commit."""
    return encode(
        (seen.server_epoch, commit.now, commit.arrivals, encode_results(calls, commit.results), seen.sequence)
    )


def read_commit(calls: Sequence[Call], raw: bytes) -> tuple[CommitPosition, Commit]:
    """Return the server's position and the commit. Raises `msgspec.DecodeError` if it does not answer these calls."""
    answer = _decode_answer(raw)
    if len(answer.results) != len(calls):
        raise msgspec.DecodeError(f"{len(answer.results):,} results for {len(calls):,} calls")
    return CommitPosition(answer.server_epoch, answer.number), Commit(
        decode_results(calls, answer.results), answer.arrivals, answer.now
    )
