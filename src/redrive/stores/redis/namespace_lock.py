"""The turn: the right of one process to change a namespace by what it works out from what it read.

What is done often runs as one script and needs no turn; it waits while somebody has it. Whoever has it reads, works
out what to write, and writes it by one script, which also gives the turn back. A turn ends by itself: then, and when
its holder is seen to be gone, others take it, and the script of the late one writes nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from redrive.clock import Instant
from redrive.errors import OutcomeUnknown, RedriveError, StoreUnavailable
from redrive.stores.redis.keys import Keys
from redrive.stores.redis.redis_client import RedisClient
from redrive.stores.redis.scripts import LOCK_ACQUIRE, LOCK_COMMIT, LOCK_RELEASE
from redrive.stores.redis.unit_of_work import Session, flat

LOCK_TTL_MICROSECONDS = 5_000_000
"""How long one holder has the turn."""
LOCK_TIMEOUT_SECONDS = 15.0
"""How long others wait for it."""
_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02
_HOLDER_CHECK_SECONDS = 0.05
"""After how long those who wait ask whether the holder is still there."""


class LockGrant(NamedTuple):
    """The turn, and what the namespace was when it was taken."""

    token: str
    now: Instant
    last: int
    """The last number drawn."""
    epoch: int
    version: int


class LockWait:
    """Waits while somebody else has the turn. One for each attempt to do something."""

    def __init__(self, turns: NamespaceLock) -> None:
        self._turns = turns
        self._began = time.monotonic()
        self._asked = self._began
        self._pause = _PAUSE_SECONDS

    def wait(self, turn: bytes) -> None:
        """A moment, longer each time. Raises when it has been too long."""
        now = time.monotonic()
        if now - self._began > LOCK_TIMEOUT_SECONDS:
            raise StoreUnavailable(self._turns.name, "another process has the namespace for too long; try again")
        if now - self._asked > _HOLDER_CHECK_SECONDS:
            self._asked = now
            if self._turns.break_stale_lock(turn):
                return
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE_SECONDS)


class NamespaceLock:
    """The turn of one namespace."""

    def __init__(self, connection: RedisClient, keys: Keys) -> None:
        self._connection = connection
        self._keys = keys
        self.name = connection.name

    @contextlib.contextmanager
    def mine(self) -> Iterator[LockGrant]:
        """Within this, the turn is taken. Where it ends with an exception, it is given back, from wherever it comes."""
        token, taken = secrets.token_hex(8), None
        try:
            taken = self._take(token)
            yield taken
        except RedriveError:
            if taken is not None:
                self.give_up(token)
            raise
        except BaseException:  # raised from outside, perhaps before it was known here that it was taken
            self.give_up(token)
            raise

    def _take(self, token: str) -> LockGrant:
        """Wait for the turn, and take it."""
        waiting = LockWait(self)
        while True:
            taken, *answer = self._ask(token)
            if taken:
                now, last, epoch, version = answer
                return LockGrant(token, Instant(now), last, epoch, version)
            waiting.wait(answer[0])

    def _ask(self, token: str) -> list[Any]:
        """Ask for the turn once."""
        try:
            args = (token, self._client(), LOCK_TTL_MICROSECONDS)
            answer: list[Any] = self._connection.run_write(LOCK_ACQUIRE, [self._keys.meta, self._keys.lock], args)
            return answer
        except OutcomeUnknown as unknown:
            # Nothing was changed. Others would wait for one who does not know whether he has the turn.
            self.give_up(token)
            raise StoreUnavailable(self.name, str(unknown)) from unknown

    def apply(self, token: str, last: int, session: Session, *, when_full: bool = False) -> bool:
        """Write what the session has, and give the turn back. False where it was lost before, and nothing was written.
        `when_full`: also where the memory of the server is full."""
        args = (token, last, int(when_full), *flat(session.writes))
        return bool(self._connection.run_write(LOCK_COMMIT, [self._keys.meta, self._keys.lock], args))

    def release(self, turn: str | bytes) -> None:
        """Give the turn back, with nothing written."""
        self._connection.run_write(LOCK_RELEASE, [self._keys.lock], [turn])

    def give_up(self, token: str) -> None:
        """Give the turn back if it is there and the server can be asked. If not, it ends by itself."""
        with contextlib.suppress(RedriveError):
            self.release(token)

    def break_stale_lock(self, turn: bytes) -> bool:
        """End a turn whose holder has no connection any more. Returns whether it did."""
        _, client, _ = turn.split(b" ")
        if client == b"-" or self._connection.has_client(client.decode()):
            return False
        self.release(turn)
        return True

    def _client(self) -> str:
        return self._connection.client() or "-"
