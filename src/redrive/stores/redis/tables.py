"""The tables of `rules/tables.py` in Redis hashes, strings and sorted sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence, Set
from itertools import chain, takewhile
from typing import Generic, TypeVar, cast

import msgspec

from redrive.clock import Instant
from redrive.contract.admin_calls import Registration
from redrive.contract.queries import FeedPage, ReadFeed, matches_feed_query
from redrive.model.feed import FeedEntry
from redrive.model.filter import MAX_EXAMINED
from redrive.model.ids import ItemId, parse_id
from redrive.model.item import KeptResult, Result
from redrive.model.operation import Operation
from redrive.stores.redis.codec import encode
from redrive.stores.redis.indexes import NamesByInstant
from redrive.stores.redis.keys import DIGITS, SHIFT, digits, long, short
from redrive.stores.redis.unit_of_work import Session
from redrive.stores.rules.damage import read_value
from redrive.stores.rules.queue_state import IdempotencyEntry, SourceEntry
from redrive.stores.rules.record import Record
from redrive.stores.rules.tables import Feed, OperationTable, RegistrationTable, ResultTable

_PAGE = 1000

Name = TypeVar("Name", bound=str)
Value = TypeVar("Value")


class Hash(MutableMapping[Name, Value], Generic[Name, Value]):
    """A hash whose fields are read on demand."""

    def __init__(
        self,
        session: Session,
        key: str,
        encode_value: Callable[[Value], bytes],
        decode_value: Callable[[bytes], Value],
        prefetch: str | None = None,
    ) -> None:
        self._session = session
        self._prefetch_names = [] if prefetch is None else session.prefetch_names[prefetch]
        self._prefetched = 0
        """The number of these names that were read."""
        self._key = key
        self._encode = encode_value
        self._decode = decode_value
        self._known: dict[Name, Value | None] = {}

    def load(self, names: Iterable[Name]) -> None:
        """Read several fields together, and those that will probably be read next."""
        unknown = [name for name in names if name not in self._known]
        if not unknown:
            return
        likely = cast(list[Name], self._prefetch_names)[self._prefetched :]
        self._prefetched += len(likely)
        unknown = list(dict.fromkeys((*unknown, *(name for name in likely if name not in self._known))))
        pages = [unknown[start : start + _PAGE // 2] for start in range(0, len(unknown), _PAGE // 2)]
        answers = self._session.fetch(*(("HMGET", self._key, *map(str, some)) for some in pages))
        for name, raw in zip(unknown, chain.from_iterable(answers), strict=True):
            self._known[name] = None if raw is None else self._decode(raw)

    def __getitem__(self, name: Name) -> Value:
        self.load((name,))
        value = self._known[name]
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: Name, value: Value) -> None:
        self._known[name] = value
        self._session.write("HSET", self._key, name, self._encode(value))

    def __delitem__(self, name: Name) -> None:
        self._known[name] = None
        self._session.write("HDEL", self._key, name)

    def __iter__(self) -> Iterator[Name]:
        raise NotImplementedError("a hash is not walked")

    def __len__(self) -> int:
        raise NotImplementedError("a hash is not counted")


def encode_idempotency_entry(known: IdempotencyEntry) -> bytes:
    """Return the value of an idempotency key in fixed widths, because scripts read it."""
    return f"{known.id}{known.digest.hex()}{digits(known.until)}".encode()


def decode_idempotency_entry(raw: bytes) -> IdempotencyEntry:
    """Decode the value of an idempotency key."""
    text = raw.decode()
    return IdempotencyEntry(ItemId(text[:32]), bytes.fromhex(text[32:96]), Instant(int(text[96:])))


def encode_source_entry(source: SourceEntry) -> bytes:
    """Return the value of a source id in fixed widths, because scripts read it."""
    return f"{source.id}{digits(source.until)}".encode()


def decode_source_entry(raw: bytes) -> SourceEntry:
    """Decode the value of a source id."""
    return SourceEntry(ItemId(raw[:32].decode()), Instant(int(raw[32:])))


_decode_operation = msgspec.msgpack.Decoder(Operation).decode


def _read_operation(raw: bytes) -> Operation:
    """Decode an operation; None, as for one that does not exist, if it is damaged."""
    return cast(Operation, read_value(_decode_operation, raw, None, tuple))


class RedisOperations(OperationTable):
    """Operations in a hash, their order in a sorted set, and active ones in a set."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._known: Hash[str, Operation] = Hash(session, session.keys.of("operations"), encode, _read_operation)
        self._order = session.keys.of("operation_order")
        self._active = session.keys.of("active_operations")

    def get(self, id: str) -> Operation | None:
        return self._known.get(id)

    def save(self, operation: Operation) -> None:
        self._known[operation.id] = operation
        number = short(parse_id(ItemId(operation.id))[0])
        self._session.write("ZADD", self._order, number, operation.id)
        self._session.write("SADD" if operation.is_active else "SREM", self._active, operation.id)

    def newest(self) -> Iterator[Operation]:
        start = 0
        while True:
            (ids,) = self._session.fetch(("ZREVRANGE", self._order, start, start + _PAGE // 2 - 1))
            yield from self._of(map(bytes.decode, ids))
            start += _PAGE // 2
            if len(ids) < _PAGE // 2:
                return

    def at_work(self) -> Iterator[Operation]:
        (ids,) = self._session.fetch(("SMEMBERS", self._active))
        newest_first = sorted(map(bytes.decode, ids), key=lambda id: parse_id(id)[0], reverse=True)
        return iter([each for each in self._of(newest_first) if each.is_active])

    def forget(self, until: int, limit: int) -> int:
        """Examine only the oldest: operations end in about the order in which they started."""
        (ids,) = self._session.fetch(("ZRANGE", self._order, 0, max(0, limit - 1))) if limit else ((),)
        expired = [each.id for each in self._of(map(bytes.decode, ids)) if each.ended and each.updated_at <= until]
        for id in expired:
            del self._known[id]
            self._session.write("ZREM", self._order, id)
            self._session.write("UNLINK", self._changed_key(id))
        return len(expired)

    def next_at(self) -> Instant | None:
        return min((each.next_at for each in self.at_work() if each.is_running), default=None)

    def remember(self, id: str, item: ItemId) -> None:
        self._session.write("SADD", self._changed_key(id), item)

    def changed(self, id: str, item: Record) -> bool:
        return any(self._session.fetch(*(("SISMEMBER", self._changed_key(id), each) for each in item.ids)))

    def changed_among(self, id: str, items: list[Record]) -> list[bool]:
        """Return for each item whether an operation changed it."""
        commands = [("SISMEMBER", self._changed_key(id), each) for item in items for each in item.ids]
        answers = iter(self._session.fetch(*commands))
        return [any([next(answers) for _ in item.ids]) for item in items]

    def _of(self, ids: Iterable[str]) -> Iterator[Operation]:
        names = tuple(ids)
        self._known.load(names)
        return (operation for name in names if (operation := self._known.get(name)) is not None)

    def _changed_key(self, id: str) -> str:
        return self._session.keys.of("operation_items", id)


_SEPARATOR = " "
"""A character that kinds do not have."""
_decode_registration = msgspec.msgpack.Decoder(Registration).decode


class RedisRegistrations(RegistrationTable):
    """A hash for each kind."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kinds: dict[str, Hash[str, Registration]] = {}
        self._until = NamesByInstant(session, session.keys.of("registration_expiry"))

    def get(self, kind: str, name: str) -> Registration | None:
        return self._of(kind).get(name)

    def of(self, kind: str) -> Iterable[Registration]:
        """Return registrations of a kind without the changes of this transaction."""
        (raw,) = self._session.fetch(("HVALS", self._key(kind)))
        read = (read_value(_decode_registration, each, None, tuple) for each in raw)
        return [registration for registration in read if registration is not None]

    def save(self, registration: Registration) -> None:
        kind, name = registration.kind, registration.name
        self._of(kind)[name] = registration
        if registration.expires_at is None:
            self._until.discard(_member(kind, name))
        else:
            self._until.add(_member(kind, name), (registration.expires_at,))

    def remove(self, kind: str, name: str) -> None:
        del self._of(kind)[name]
        self._until.discard(_member(kind, name))

    def forget(self, now: Instant, limit: int) -> int:
        expired = self._until.until(now, limit)
        for member in expired:
            kind, _, name = member.partition(_SEPARATOR)
            self.remove(kind, name)
        return len(expired)

    def _of(self, kind: str) -> Hash[str, Registration]:
        return self._kinds.setdefault(kind, Hash(self._session, self._key(kind), encode, _decode_registration))

    def _key(self, kind: str) -> str:
        return self._session.keys.of("registrations", kind)


def _member(kind: str, name: str) -> str:
    return f"{kind}{_SEPARATOR}{name}"


_decode_result = msgspec.msgpack.Decoder(Result).decode


def encode_kept_result(result: KeptResult, until: Instant) -> bytes:
    """Encode a result. Text that scripts write is first: expiry, and queues with a NUL after each; then the result."""
    head = f"{digits(until)}{result.queue}\0{result.put_to or ''}\0"
    return head.encode() + encode(Result(result.payload, result.content_type))


def decode_kept_result(raw: bytes, now: Instant) -> KeptResult | None:
    """Decode a result, unless it has expired."""
    if int(raw[:DIGITS]) <= now:
        return None
    queue, put_to, rest = raw[DIGITS:].split(b"\0", 2)
    result = _decode_result(rest)
    return KeptResult(result.payload, result.content_type, queue.decode(), put_to.decode() or None)


class RedisResults(ResultTable):
    """A string for each id, and ids by expiry."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._until = NamesByInstant(session, session.keys.of("result_expiry"))  # type: ignore[assignment]

    def get(self, id: ItemId, now: Instant) -> KeptResult | None:
        (raw,) = self._session.fetch(("GET", self._key(id)))
        return None if raw is None else decode_kept_result(raw, now)

    def keep(self, ids: Sequence[ItemId], result: KeptResult, until: Instant) -> None:
        for id in ids:
            self._session.write("SET", self._key(id), encode_kept_result(result, until))
            self._until.add(id, (until,))

    def forget(self, now: Instant, limit: int) -> int:
        expired = self._until.until(now, limit)
        for id in expired:
            self._until.discard(id)
            self._session.write("DEL", self._key(id))
        return len(expired)

    def _key(self, id: str) -> str:
        return self._session.keys.of("result", id)


_decode_feed_entry = msgspec.msgpack.Decoder(FeedEntry).decode


def encode_feed_entry(entry: FeedEntry) -> bytes:
    """Encode an entry: number and instant in digits, because scripts write entries too, and then the rest."""
    head = digits(short(entry.number)) + digits(entry.at)
    return head.encode() + encode(msgspec.structs.replace(entry, number=0, at=Instant(0)))


def decode_feed_entry(raw: bytes) -> FeedEntry:
    """Decode an entry."""
    number, at = long(int(raw[:16])), Instant(int(raw[16:32]))
    return msgspec.structs.replace(_decode_feed_entry(raw[32:]), number=number, at=at)


class RedisFeed(Feed):
    """One sorted set."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._key = session.keys.of("feed")

    def add(self, entry: FeedEntry) -> None:
        self._session.write("ZADD", self._key, short(entry.number), encode_feed_entry(entry))

    def forget(self, until: int, limit: int) -> int:
        (oldest,) = self._session.fetch(("ZRANGE", self._key, 0, max(0, limit - 1))) if limit else ((),)
        count = sum(1 for _ in takewhile(lambda raw: int(raw[16:32]) <= until, oldest))
        if count:
            self._session.write("ZREMRANGEBYRANK", self._key, 0, count - 1)
        return count

    def read(self, query: ReadFeed, ids: Set[ItemId] | None) -> FeedPage:
        backwards = query.before is not None and query.after is None
        after = 0 if query.after is None else query.after
        found: list[FeedEntry] = []
        last, more = after, False
        for examined, entry in enumerate(self._walk(after, query.before, backwards)):
            if examined == MAX_EXAMINED or len(found) == query.limit:
                more = True
                break
            last = max(last, entry.number)
            if matches_feed_query(query, ids, entry):
                found.append(entry)
        return FeedPage(tuple(reversed(found) if backwards else found), last, more)

    def _walk(self, after: int, before: int | None, backwards: bool) -> Iterator[FeedEntry]:
        low = f"({short(after)}"
        high = "+inf" if before is None else f"({-(-before >> SHIFT)}"
        while True:
            command = (
                ("ZREVRANGEBYSCORE", self._key, high, low, "LIMIT", 0, _PAGE)
                if backwards
                else ("ZRANGEBYSCORE", self._key, low, high, "LIMIT", 0, _PAGE)
            )
            (raw,) = self._session.fetch(command)
            read = (read_value(decode_feed_entry, each, None, tuple) for each in raw)
            yield from (entry for entry in read if entry is not None)
            if len(raw) < _PAGE:
                return
            beyond = f"({int(raw[-1][:16])}"
            low, high = (low, beyond) if backwards else (beyond, high)
