"""What a client and a server say to each other, in MessagePack: calls to commit, a query, a watch, and their answers.

Calls and queries are those of `redrive.store`, each with its kind; unknown kinds and fields are refused. Fields of an
answer that a client does not know are passed over, so that a server may be newer than its clients.
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
"""Of all that is written here. A client of another version does not open."""
CONTENT_TYPE = "application/msgpack"


class WireMessage(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a client asks."""


class CommitPosition(msgspec.Struct, frozen=True, gc=False):
    """How far a server is, as its clients see it."""

    server_epoch: str
    """Which one it is, since its last start."""
    sequence: int = 0
    """Of the last commit that came to it. Those that come after have higher ones."""


class CommitRequest(WireMessage, frozen=True):
    """Commit these calls, once."""

    id: str
    """Nobody else's, and of no other request: whoever sends it twice gets the first answer twice."""
    server_epoch: str
    """The server as it is since its last start. Any other refuses it: it cannot know whether that one ran it."""
    calls: list[Call]
    now: Instant | None = None
    """For tests. A server that keeps its own time refuses it."""
    is_retry: bool = False
    """It was sent before: run it only if it is known that it did not run."""
    position: int = 0
    """The number that the client had from that server when it sent this first. What the server forgot up to that
    number came before: so no clock decides whether it would still know this."""


class WatchRequest(WireMessage, frozen=True):
    """Answer as soon as something arrives, or `seconds` are over."""

    server_epoch: str | None = None
    since: int = 0
    """The number of the last answer."""
    queues: tuple[str, ...] | None = None
    """Those that somebody waits for. None: all of them."""
    seconds: float = 0.0


class WatchAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where something arrived since."""

    server_epoch: str
    number: int
    queues: tuple[str, ...] | None = ()
    """None: anywhere."""
    anything: bool = False
    """Whether anything was committed, if only something that nobody can lease."""


class ServerInfo(msgspec.Struct, frozen=True):
    """What a server says of itself."""

    wire: int
    server_epoch: str
    """Another one after each start."""
    store: str
    """The name of its store."""
    now: Instant
    durability: Durability
    warnings: tuple[str, ...]
    number: int = 0
    """As in `CommitPosition`."""


MISDIRECTED = 421
"""The HTTP status of a request that is for another server, or for this one before it was started. This one did not run
it; its `CommitPosition` is in the details."""


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
    """The answer to a commit."""
    return encode(
        (seen.server_epoch, commit.now, commit.arrivals, encode_results(calls, commit.results), seen.sequence)
    )


def read_commit(calls: Sequence[Call], raw: bytes) -> tuple[CommitPosition, Commit]:
    """Who answered, and what. Raises `msgspec.DecodeError` where it is no answer to these calls."""
    answer = _decode_answer(raw)
    if len(answer.results) != len(calls):
        raise msgspec.DecodeError(f"{len(answer.results):,} results for {len(calls):,} calls")
    return CommitPosition(answer.server_epoch, answer.number), Commit(
        decode_results(calls, answer.results), answer.arrivals, answer.now
    )
