"""Tables in hashes: idempotency keys, source ids, and whatever else has a name and a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, MutableMapping
from itertools import chain
from typing import Generic, TypeVar, cast

from redrive.clock import Instant
from redrive.model.ids import ItemId
from redrive.stores.redis.keys import digits
from redrive.stores.redis.session import Session
from redrive.stores.rules.queue_state import Known, Source

_PAGE = 1000

Name = TypeVar("Name", bound=str)
Value = TypeVar("Value")


class Hash(MutableMapping[Name, Value], Generic[Name, Value]):
    """A hash: fields are read when they are asked for."""

    def __init__(
        self,
        session: Session,
        key: str,
        write: Callable[[Value], bytes],
        read: Callable[[bytes], Value],
        ahead: str | None = None,
    ) -> None:
        self._session = session
        self._ahead = [] if ahead is None else session.ahead[ahead]
        self._ahead_from = 0
        self._key = key
        self._write = write
        self._read = read
        self._known: dict[Name, Value | None] = {}

    def load(self, names: Iterable[Name]) -> None:
        """Read several fields at once, and those that are likely to be next."""
        unknown = [name for name in names if name not in self._known]
        if not unknown:
            return
        ahead = cast(list[Name], self._ahead)[self._ahead_from :]
        self._ahead_from += len(ahead)
        unknown = list(dict.fromkeys((*unknown, *(name for name in ahead if name not in self._known))))
        pages = [unknown[start : start + _PAGE // 2] for start in range(0, len(unknown), _PAGE // 2)]
        answers = self._session.look(*(("HMGET", self._key, *map(str, some)) for some in pages))
        for name, raw in zip(unknown, chain.from_iterable(answers), strict=True):
            self._known[name] = None if raw is None else self._read(raw)

    def __getitem__(self, name: Name) -> Value:
        self.load((name,))
        value = self._known[name]
        if value is None:
            raise KeyError(name)
        return value

    def __setitem__(self, name: Name, value: Value) -> None:
        self._known[name] = value
        self._session.write("HSET", self._key, name, self._write(value))

    def __delitem__(self, name: Name) -> None:
        self._known[name] = None
        self._session.write("HDEL", self._key, name)

    def __iter__(self) -> Iterator[Name]:
        raise NotImplementedError("a hash is not walked")

    def __len__(self) -> int:
        raise NotImplementedError("a hash is not counted")


def write_known(known: Known) -> bytes:
    """What an idempotency key stands for, in fixed widths: scripts read it."""
    return f"{known.id}{known.digest.hex()}{digits(known.until)}".encode()


def read_known(raw: bytes) -> Known:
    """The same, read."""
    text = raw.decode()
    return Known(ItemId(text[:32]), bytes.fromhex(text[32:96]), Instant(int(text[96:])))


def write_source(source: Source) -> bytes:
    """The item that came with a source_id."""
    return f"{source.id}{digits(source.until)}".encode()


def read_source(raw: bytes) -> Source:
    """The same, read."""
    return Source(ItemId(raw[:32].decode()), Instant(int(raw[32:])))
