"""Results that outlive their items: a string for each id. The script writes most of them."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from redrive.clock import Instant
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.stores.redis.codec import encode
from redrive.stores.redis.indexes import NamesByInstant
from redrive.stores.redis.keys import digits
from redrive.stores.redis.session import Session
from redrive.stores.rules.result_table import ResultTable

_DIGITS = 16
_read_result = msgspec.msgpack.Decoder(Result).decode


class RedisResults(ResultTable):
    """A string for each id, and the ids by when they are over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._until = NamesByInstant(session, session.keys.of("resultage"))  # type: ignore[assignment]

    def get(self, id: ItemId, now: Instant) -> Result | None:
        (raw,) = self._session.look(("GET", self._key(id)))
        return None if raw is None or int(raw[:_DIGITS]) <= now else _read_result(raw[_DIGITS:])

    def keep(self, ids: Iterable[ItemId], result: Result, until: Instant) -> None:
        for id in ids:
            self._session.write("SET", self._key(id), digits(until).encode() + encode(result))
            self._until.add(id, (until,))

    def forget(self, now: Instant, limit: int) -> int:
        over = self._until.until(now, limit)
        for id in over:
            self._until.discard(id)
            self._session.write("DEL", self._key(id))
        return len(over)

    def _key(self, id: str) -> str:
        return self._session.keys.of("result", id)
