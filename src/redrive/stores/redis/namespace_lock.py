"""The lock of a namespace: one process at a time reads and changes it.

The script of the fast path does not take the lock, and does nothing while a process has it. The holder reads, computes
its writes, and sends them by one script that also releases the lock. A lock expires, and other processes break it if
its holder is gone. In both cases the script of the former holder writes nothing.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from redrive.clock import Instant
from redrive.errors import OutcomeUnknown, RedriveError, StoreUnavailable
from redrive.stores.redis.keys import Keys
from redrive.stores.redis.redis_client import Part, RedisClient
from redrive.stores.redis.scripts import LOCK_ACQUIRE, LOCK_COMMIT, LOCK_RELEASE, READ_COMMANDS
from redrive.stores.redis.unit_of_work import flat

LOCK_TTL_MICROSECONDS = 5_000_000
"""Expiry of the lock."""
LOCK_TIMEOUT_SECONDS = 15.0
"""Maximum wait of other processes for it."""
_PAUSE_SECONDS = 0.0005
_MAX_PAUSE_SECONDS = 0.02
_HOLDER_CHECK_SECONDS = 0.05
"""Interval at which a waiting process checks whether the holder is still connected."""
_NO_CLIENT = "-"
"""Placeholder for an unknown client id of the holder."""


class LockGrant(NamedTuple):
    """The lock, and numbers of the namespace when it was taken."""

    token: str
    now: Instant
    last: int
    """The last number allocated."""
    epoch: int
    version: int


class LockWait:
    """Waits while another process has the lock. One for each operation."""

    def __init__(self, lock: NamespaceLock) -> None:
        self._lock = lock
        self._started = time.monotonic()
        self._checked = self._started
        self._pause = _PAUSE_SECONDS

    def wait(self, lock: bytes) -> None:
        """Pause, longer each time. `lock` is the stored value. Raises `StoreUnavailable` after the timeout."""
        now = time.monotonic()
        if now - self._started > LOCK_TIMEOUT_SECONDS:
            raise StoreUnavailable(self._lock.name, "another process has the namespace for too long; try again")
        if now - self._checked > _HOLDER_CHECK_SECONDS:
            self._checked = now
            if self._lock.break_stale_lock(lock):
                return
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _MAX_PAUSE_SECONDS)


class NamespaceLock:
    """The lock of one namespace."""

    def __init__(self, client: RedisClient, keys: Keys) -> None:
        self._client = client
        self._keys = keys
        self.name = client.name

    @contextlib.contextmanager
    def held(self) -> Iterator[LockGrant]:
        """Hold the lock within this context. Any exception releases it, even one during its acquisition."""
        token, grant = secrets.token_hex(8), None
        try:
            grant = self._acquire(token)
            yield grant
        except RedriveError:
            if grant is not None:
                self._try_release(token)
            raise
        except BaseException:  # from a signal handler: the lock may have been taken before its grant was known here
            self._try_release(token)
            raise

    def _acquire(self, token: str) -> LockGrant:
        """Wait for the lock, and take it."""
        lock_wait = LockWait(self)
        while True:
            is_taken, *answer = self._request(token)
            if is_taken:
                now, last, epoch, version = answer
                return LockGrant(token, Instant(now), last, epoch, version)
            lock_wait.wait(answer[0])

    def _request(self, token: str) -> list[Any]:
        """Request the lock once."""
        try:
            args = (token, self._client.client_id() or _NO_CLIENT, LOCK_TTL_MICROSECONDS)
            answer: list[Any] = self._client.run_write(LOCK_ACQUIRE, [self._keys.meta, self._keys.lock], args)
            return answer
        except OutcomeUnknown as unknown:
            # Nothing was changed. Other processes would wait for a holder that does not know that it has the lock.
            self._try_release(token)
            raise StoreUnavailable(self.name, str(unknown)) from unknown

    def is_held(self, token: str) -> bool:
        """Return whether the lock is still that of the token."""
        (_, lock) = self._client.run(READ_COMMANDS, [self._keys.meta], flat([("GET", self._keys.lock)]))
        return lock is not None and lock.decode().startswith(token)

    def apply(self, token: str, writes: Sequence[Part], *, when_full: bool = False) -> bool:
        """Run the writes, and release the lock. Return False, with nothing written, if it was lost.

        `writes`: the last number allocated, and flat commands. `when_full`: also if the memory of the server is full.
        """
        args = (token, writes[0], int(when_full), *writes[1:])
        return bool(self._client.run_write(LOCK_COMMIT, [self._keys.meta, self._keys.lock], args))

    def release(self, lock: str | bytes) -> None:
        """Release the lock without writes. `lock` is its token or the stored value."""
        self._client.run_write(LOCK_RELEASE, [self._keys.lock], [lock])

    def _try_release(self, token: str) -> None:
        """Release the lock if the server can be reached. If not, the lock expires."""
        with contextlib.suppress(RedriveError):
            self.release(token)

    def break_stale_lock(self, lock: bytes) -> bool:
        """Release a lock whose holder is no longer connected. Return whether it was released."""
        _, client_id, _ = lock.split(b" ")
        if client_id.decode() == _NO_CLIENT or self._client.has_client(client_id.decode()):
            return False
        self.release(lock)
        return True
