# /// script
# dependencies = ["apsw==3.54.1.0", "cronsim==2.8", "msgspec==0.22.0", "structlog==26.1.0"]
# ///
"""Runs in the environment of the frozen store: executes what comes in by a pipe, one request after the other.

A request is an operation, the instant, and its body; an answer is whether it was refused, and its body. Calls, queries,
results and refusals are in MessagePack, as between a client and a server.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from redrive.errors import RedriveError
from redrive.stores.sqlite import SQLiteStore
from redrive.testing import FakeClock
from redrive.wire.error_codec import encode_error
from redrive.wire.messages import CommitPosition, decode_commit, decode_query, encode_commit
from redrive.wire.result_codec import encode

LENGTH = struct.Struct(">I")


class _Server:
    """One store at a time; the next `open` closes it."""

    def __init__(self) -> None:
        self._store: SQLiteStore | None = None

    def answer(self, operation: str, now: int, body: bytes) -> bytes:
        if operation == "open":
            self.close()
            path, name = msgspec.msgpack.decode(body)
            self._clock = FakeClock()
            self._store = SQLiteStore(Path(path), name=name, relaxed=True, clock=self._clock)
            return b""
        assert self._store is not None
        self._clock._now = now
        if operation == "read":
            return encode(self._store.read(decode_query(body)))
        asked = decode_commit(body)
        return encode_commit(CommitPosition(""), asked.calls, self._store.commit(asked.calls, asked.now))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Until the other end is closed."""
    with contextlib.closing(_Server()) as server:
        while header := requests.read(LENGTH.size):
            operation, now, body = msgspec.msgpack.decode(requests.read(*LENGTH.unpack(header)))
            answer: tuple[bool, Any]
            try:
                answer = False, server.answer(operation, now, body)
            except RedriveError as refusal:
                answer = True, encode(encode_error(refusal))
            frame = msgspec.msgpack.encode(answer)
            answers.write(LENGTH.pack(len(frame)) + frame)
            answers.flush()


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    serve(sys.stdin.buffer, sys.stdout.buffer)
