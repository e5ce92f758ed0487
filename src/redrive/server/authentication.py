"""The gate: from the header of a request to who calls. Tokens are known by heart, and read anew every second."""

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
"""What was read longer ago is read anew, while requests go on with what is known."""
STALE_SECONDS = 1.0
"""What was read longer ago lets nobody in before it was read anew: a token that was revoked is refused by then."""
PATIENCE_SECONDS = 1.0
"""How long a request waits for a store that does not answer."""
GRACE_SECONDS = 30.0
"""For so long a store may fail to answer, and the tokens last known go on. Then nobody is let in."""
PENALTY_SECONDS = 0.25
"""How long whoever brings a wrong token waits for the answer."""
MAX_PENALTIES = 200
"""So many wait at once; more wrong tokens are told at once to come again. With the penalty it bounds guessing."""
MAX_VERIFIED = 1_000
"""Headers with a right token that are known without checking it again, until tokens are read again."""
LOG_EVERY_SECONDS = 10.0
"""The log has a line for all wrong tokens of such a time."""

_SCHEME = "bearer "
_MISSING = "this server needs a token, in the header Authorization: Bearer …"
_WRONG = "the token is not valid here, or not any more"


class Authenticator(Protocol):
    """Who calls."""

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """Raises `Unauthorized`."""
        ...

    async def close(self) -> None:
        """Nobody asks any more."""
        ...


class NoAuthentication:
    """Everybody may do everything."""

    async def identify(self, headers: dict[bytes, bytes]) -> Principal:
        """Anyone."""
        return UNAUTHENTICATED_ADMIN

    async def close(self) -> None:
        """There is nothing to close."""


class TokenAuthenticator:
    """Lets in who brings a token; and everybody, until the first token is made.

    Once this process has seen a token, it asks for one until it ends: to revoke the last one opens nothing.
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
        # Of its own: where all threads of the loop are busy with slow queries, a revocation still holds in time.
        self._thread = ThreadPoolExecutor(1, "redrive-tokens")

    async def identify(self, headers: Mapping[bytes, bytes]) -> Principal:
        """Who calls. Raises `Unauthorized`; `StoreUnavailable` where tokens could not be read for too long."""
        age = self._age
        if age is None or age >= READ_AGAIN_SECONDS:
            await self._read_anew(age)
        if not self._asks:
            return UNAUTHENTICATED_ADMIN
        header = headers.get(b"authorization")
        if header is None:
            raise Unauthorized(_MISSING)
        token = self._found(header)
        if token is None:
            await self._read_since(self._seconds())  # it may have been made a moment ago
            token = self._found(header)
        return self._principals[token.id] if token is not None else await self._refuse()

    async def has_tokens(self) -> bool:
        """Whether it asks for a token."""
        await self._read_anew(None)
        return self._asks

    @property
    def _age(self) -> float | None:
        return None if self._read_at is None else self._seconds() - self._read_at

    def _found(self, header: bytes) -> AccessToken | None:
        """The token of a header, if it lets in. The same is done for every header that is wrong, whatever is wrong.

        A header that was right since tokens were read is known by its digest.
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
        await asyncio.sleep(
            0
        )  # it is known only by waiting: a caller that does not wait asks again, and is counted once
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
        """Begin to read, and wait for it where what is known is too old to go by."""
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
            raise StoreUnavailable("of this server", "its tokens could not be read, so nobody is let in; try again")

    async def _read_since(self, asked: float) -> None:
        """Go by what was read since that time. All who ask meanwhile share one reading, or the one after it."""
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
        """Read no more."""
        if self._reading is not None:
            self._reading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)
