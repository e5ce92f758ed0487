"""Redrive's own script on Redis, called by hand in batches of a fixed size: what a broker can reach at best.

The arguments are made once where they can be, and of the answer only what the next call needs is looked at.
"""

from functools import partial
from pathlib import Path
from random import getrandbits
from secrets import token_hex
from typing import Any

import msgspec

from benchmarks.harness import Bar, Case, NotReady
from benchmarks.load import Measurement, payload, rate, run_one
from benchmarks.redis import SYNCS, open_broker, server
from benchmarks.subject import QUEUE, create_queue

BATCH = 100
BACKLOG = 100_000
FIRST_ARGUMENT = 3
"""The script counts its arguments from 1, and the first two are not items."""
PRIORITY = 5
ID_BITS = 11
"""Numbers in ids have so many bits more."""


class Raw:
    """One connection, one queue, and the script that puts, leases and completes."""

    def __init__(self, url: str, sync: str) -> None:
        try:
            from redrive.stores.redis.codec import Content
            from redrive.stores.redis.keys import Keys
            from redrive.stores.redis.redis_client import RedisClient
            from redrive.stores.redis.scripts import COMMIT
        except ImportError as error:
            raise NotReady(f"redrive: {error}") from error
        with open_broker(url, sync) as broker:
            create_queue(broker)
        self._script = COMMIT
        self._client = RedisClient(url, relaxed=sync != "always")
        keys = Keys("redrive", "default")
        self._keys, self._root = [keys.meta, keys.lock], keys.root
        self.encode = msgspec.msgpack.encode
        body = msgspec.json.encode(payload())
        self._content = self.encode(Content(QUEUE, body, "json", PRIORITY))
        self._put = self._plan(p=[(QUEUE, FIRST_ARGUMENT, BATCH, PRIORITY, len(body))])

    def put(self) -> int:
        """A batch of items with new ids, in one script."""
        suffix, content = getrandbits(47) << 16, self._content
        contents = [b"%016x" % (suffix + (position << 16)) + content for position in range(BATCH)]
        puts, _, _ = self._run(self._put, contents)
        accepted, first = puts[0]
        assert accepted and isinstance(first, int)
        return BATCH

    def lease_complete(self) -> int:
        """A batch is leased by one script and completed by another."""
        _, _, leased = self._run(self._plan(l=[(QUEUE, BATCH, False, -1, False, token_hex(16))]), [])
        _, _, leases = leased[0]
        if not leases:
            return 0
        _, ends, _ = self._run(self._plan(e=[self._end(*lease) for lease in leases]), [])
        assert all(end.__class__ is bytes for end in ends)  # the queue: the item is gone
        return len(leases)

    def _end(self, body: bytes, content: bytes, state: bytes) -> str:
        """A completion with nothing to it, in the short form that the script has for it."""
        number = int(body)
        id = f"{content[16:32].decode()}{number << ID_BITS:016x}"
        return f"{body.decode()}{msgspec.msgpack.decode(state)['t']}{id}"

    def _plan(self, **calls: Any) -> bytes:
        return self.encode({"t": 0, "w": False, "p": [], "e": [], "m": [], "l": [], **calls})

    def _run(self, plan: bytes, contents: list[bytes]) -> tuple[Any, Any, Any]:
        is_done, _, puts, ends, _, leases, *_ = self._client.run_write(
            self._script, self._keys, [self._root, plan, *contents]
        )
        assert is_done, "no other process is there that could have the lock"
        return puts, ends, leases


def measure(scenario: str, sync: str, directory: Path) -> Measurement:
    with server(directory, sync) as running:
        raw = Raw(running.url, sync)
        if scenario == "lease_complete":
            for _ in range(BACKLOG // BATCH):
                raw.put()
        step = raw.put if scenario == "put" else raw.lease_complete
        return rate(*run_one(step), appendfsync=sync)


CASES = [
    Case(
        f"raw.{scenario}.k{BATCH}.{sync}",
        "Raw",
        f"{words}, {BATCH} per script, appendfsync {sync}",
        partial(measure, scenario, sync),
    )
    for sync in SYNCS
    for scenario, words in (("put", "put"), ("lease_complete", "lease and complete"))
]
BARS: list[Bar] = []
