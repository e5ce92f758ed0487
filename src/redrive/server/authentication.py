"""Authentication: from the headers of a request to its principal. Tokens are cached, and read again every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Protocol

from redrive.auth import token_store
from redrive.auth.principal import TOKENS_NAMESPACE, UNAUTHENTICATED_ADMIN, Principal
from redrive.auth.token_store import AccessToken
from redrive.broker.async_broker import AsyncBroker
from redrive.broker.flow import run
from redrive.errors import RedriveError, StoreUnavailable, Unauthorized
from redrive.server.broker_pool import BrokerPool
from redrive.server.request_limits import Busy
from redrive.telemetry import events
from redrive.telemetry.metrics import TOKENS_REFUSED

_log = events.logger("redrive.server")

READ_AGAIN_SECONDS = 0.5
"""Age in seconds after which tokens are read again, while requests continue with the cached ones."""
STALE_SECONDS = 1.0
"""Age in seconds after which requests wait until tokens are read again: a revoked token is refused by then."""
PATIENCE_SECONDS = 1.0
"""Seconds that a request waits for a store that does not answer."""
GRACE_SECONDS = 30.0
"""Seconds for which cached tokens stay valid while the store fails to answer. Then every request is refused."""
PENALTY_SECONDS = 0.25
"""Seconds that the response to a wrong token is delayed."""
MAX_PENALTIES = 200
"""Maximum number of delayed responses; further wrong tokens are immediately refused with `Busy`. Limits guessing."""
MAX_VERIFIED = 1_000
"""Maximum number of valid headers that are cached until tokens are read again."""
LOG_EVERY_SECONDS = 10.0
"""Seconds between log entries about wrong tokens; each has their number."""

_SCHEME = "bearer "
_MISSING = "this server needs a token, in the header Authorization: Bearer …"
_WRONG = "the token is not valid here, or not any more"


class Authenticator(Protocol):
    """The authentication of requests."""

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """Return the principal of a request. Raises `Unauthorized`."""
        ...

    def known(self, headers: dict[bytes, bytes]) -> Principal | None:
        """Return the principal if that needs no waiting, otherwise None: then `identify` decides."""
        ...

    async def close(self) -> None:
        """Release resources; no request follows."""
        ...


class NoAuthentication:
    """No authentication: every caller may do everything."""

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """Return the principal with all rights."""
        return UNAUTHENTICATED_ADMIN

    def known(self, headers: dict[bytes, bytes]) -> Principal | None:
        """Return the principal with all rights."""
        return UNAUTHENTICATED_ADMIN

    async def close(self) -> None:
        """Do nothing."""


class TokenAuthenticator:
    """Authentication by token; every caller is admitted until the first token is created.

    Once this process has read a token, it requires one until it ends: revoking the last token opens nothing.
    """

    def __init__(
        self,
        brokers: BrokerPool,
        *,
        seconds: Callable[[], float] = time.monotonic,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self._brokers = brokers
        self._seconds = seconds
        self._pause = pause
        self._by_id: Mapping[str, AccessToken] = {}
        self._verified: dict[bytes, AccessToken] = {}
        self._principals: Mapping[str, Principal] = {}
        self._broker: AsyncBroker | None = None
        self._asks = False
        self._read_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._reading_since = 0.0
        self._penalties = 0
        self._logged_at: float | None = None
        self._unlogged = 0
        # A separate thread: a revocation takes effect in time even while slow queries use all threads of the loop.
        self._thread = ThreadPoolExecutor(1, "redrive-tokens")

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Return the principal. Raises `Unauthorized`; `StoreUnavailable` if tokens could not be read for too long."""
        age = self._age
        if age is None or age >= READ_AGAIN_SECONDS:
            await self._read_anew(age)
        principal = self._cached(headers)
        if principal is None:
            if b"authorization" not in headers:
                raise Unauthorized(_MISSING)
            await self._read_since(self._seconds())  # it may have been created just now
            principal = self._cached(headers)
        return principal if principal is not None else await self._refuse()

    def known(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Return the principal if the cached tokens have it. Start no read; None if tokens have to be read first."""
        age = self._age
        if age is None or (age >= READ_AGAIN_SECONDS and (age >= STALE_SECONDS or not self._is_reading)):
            return None
        return self._cached(headers)

    def _cached(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Return the principal of a request by the cached tokens, or None if they do not have it."""
        if not self._asks:
            return UNAUTHENTICATED_ADMIN
        header = headers.get(b"authorization")
        token = None if header is None else self._found(header)
        return None if token is None else self._principals[token.id]

    async def has_tokens(self) -> bool:
        """Read the tokens and return whether a token is required."""
        await self._read_anew(None)
        return self._asks

    @property
    def _age(self) -> float | None:
        return None if self._read_at is None else self._seconds() - self._read_at

    @property
    def _is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def _found(self, header: bytes) -> AccessToken | None:
        """Return the token of a header if it is valid. Every wrong header takes the same steps, to reveal nothing.

        A header that was valid since tokens were last read is found by its digest.
        """
        digest = sha256(header).digest()
        token = self._verified.get(digest) or self._verify(header)
        if token is None:
            return None
        if len(self._verified) < MAX_VERIFIED:
            self._verified[digest] = token
        assert self._broker is not None
        return None if token.is_over(self._broker.core.clock.now()) else token

    def _verify(self, header: bytes) -> AccessToken | None:
        given = header.decode("latin-1")
        text = given[len(_SCHEME) :].strip() if given[: len(_SCHEME)].lower() == _SCHEME else ""
        id, secret = token_store.parse(text) or ("", "")
        token = self._by_id.get(id)
        return token if token_store.verify_secret(token, secret) else None

    async def _refuse(self) -> Principal:
        self._count()
        if self._penalties >= MAX_PENALTIES:
            raise Busy(self._penalties, f"{self._penalties} wrong tokens are being refused")
        self._penalties += 1
        try:
            await self._pause(PENALTY_SECONDS)
        finally:
            self._penalties -= 1
        raise Unauthorized(_WRONG)

    def _count(self) -> None:
        assert self._broker is not None
        self._broker.metrics.add(TOKENS_REFUSED)
        self._unlogged += 1
        now = self._seconds()
        if self._logged_at is None or now - self._logged_at >= LOG_EVERY_SECONDS:
            _log.warning("tokens_refused", count=self._unlogged)
            self._logged_at, self._unlogged = now, 0

    async def _read_anew(self, age: float | None) -> None:
        """Start to read tokens, and wait for that if the cached ones are too old to use."""
        reading = self._reading
        if reading is None or reading.done():
            self._reading_since = self._seconds()
            reading = self._reading = asyncio.create_task(self._read())
        if age is not None and age < STALE_SECONDS:
            return
        patience = PATIENCE_SECONDS - (self._seconds() - self._reading_since)
        if not reading.done() and patience > 0:
            await asyncio.wait({reading}, timeout=patience)
        age = self._age
        if age is None or age >= GRACE_SECONDS:
            raise StoreUnavailable("of this server", "its tokens could not be read, so all requests are refused; retry")

    async def _read_since(self, asked: float) -> None:
        """Make sure that tokens were read after that time. Concurrent callers share one read, or the next one."""
        for _ in range(2):
            if self._read_at is None or self._read_at < asked:
                await self._read_anew(None)

    async def _read(self) -> None:
        began = self._seconds()
        try:
            broker = self._broker = await self._brokers.at(TOKENS_NAMESPACE)
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, run, broker.core, token_store.list_all())
        except RedriveError as error:
            _log.warning("tokens_unavailable", error=str(error))
            return
        except Exception:
            _log.exception("token_read_internal_error")
            return
        self._by_id, self._verified = {token.id: token for token in found}, {}
        self._principals = {token.id: token.principal for token in found}
        self._asks = self._asks or bool(found)
        self._read_at = began

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
