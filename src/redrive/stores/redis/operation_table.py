"""Operations, and which items each of them changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from redrive.clock import Instant
from redrive.model.ids import ItemId, parse_id
from redrive.model.operation import Operation
from redrive.stores.redis.codec import encode
from redrive.stores.redis.hashes import Hash
from redrive.stores.redis.keys import short
from redrive.stores.redis.session import Session
from redrive.stores.rules.operation_table import OperationTable
from redrive.stores.rules.record import Record

_PAGE = 1000

_read_operation = msgspec.msgpack.Decoder(Operation).decode


class RedisOperations(OperationTable):
    """Operations in a hash, their order in a sorted set, those at work in a set."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: Hash[str, Operation] = Hash(session, session.keys.of("operations"), encode, _read_operation)
        self._order = session.keys.of("operationorder")
        self._at_work = session.keys.of("atwork")

    def get(self, id: str) -> Operation | None:
        return self._known.get(id)

    def save(self, operation: Operation) -> None:
        self._known[operation.id] = operation
        number = short(parse_id(ItemId(operation.id))[0])
        self._session.write("ZADD", self._order, number, operation.id)
        self._session.write("SADD" if operation.at_work else "SREM", self._at_work, operation.id)

    def newest(self) -> Iterator[Operation]:
        start = 0
        while True:
            (ids,) = self._session.look(("ZREVRANGE", self._order, start, start + _PAGE // 2 - 1))
            yield from self._of(map(bytes.decode, ids))
            start += _PAGE // 2
            if len(ids) < _PAGE // 2:
                return

    def at_work(self) -> Iterator[Operation]:
        (ids,) = self._session.look(("SMEMBERS", self._at_work))
        newest_first = sorted(map(bytes.decode, ids), key=lambda id: parse_id(id)[0], reverse=True)
        return iter([each for each in self._of(newest_first) if each.at_work])

    def forget(self, until: int, limit: int) -> int:
        """They end in about the order in which they began: only the oldest are looked at."""
        (ids,) = self._session.look(("ZRANGE", self._order, 0, max(0, limit - 1))) if limit else ((),)
        over = [each.id for each in self._of(map(bytes.decode, ids)) if each.ended and each.updated_at <= until]
        for id in over:
            del self._known[id]
            self._session.write("ZREM", self._order, id)
            self._session.write("UNLINK", self._changed_key(id))
        return len(over)

    def next_at(self) -> Instant | None:
        return min((each.next_at for each in self.at_work() if each.is_running), default=None)

    def remember(self, id: str, item: ItemId) -> None:
        self._session.write("SADD", self._changed_key(id), item)

    def changed(self, id: str, item: Record) -> bool:
        return any(self._session.look(*(("SISMEMBER", self._changed_key(id), each) for each in item.ids)))

    def changed_among(self, id: str, items: list[Record]) -> list[bool]:
        """The same for several items."""
        commands = [("SISMEMBER", self._changed_key(id), each) for item in items for each in item.ids]
        answers = iter(self._session.look(*commands))
        return [any([next(answers) for _ in item.ids]) for item in items]

    def _of(self, ids: Iterable[str]) -> Iterator[Operation]:
        names = tuple(ids)
        self._known.load(names)
        return (operation for name in names if (operation := self._known.get(name)) is not None)

    def _changed_key(self, id: str) -> str:
        return self._session.keys.of("changed", id)
