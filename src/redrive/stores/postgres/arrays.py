"""Arrays as PostgreSQL reads them: binary, and of one type whatever is in them."""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any, ClassVar

from psycopg.adapt import Dumper
from psycopg.pq import Format

_BIGINT, _TEXT, _BYTEA = 20, 25, 17
_ABSENT = struct.pack("!i", -1)
_length = struct.Struct("!i").pack


class Bigints(list[int | None]):
    """A bigint[]."""


class Texts(list[str | None]):
    """A text[]."""


class Blobs(list[bytes | None]):
    """A bytea[]."""


class _ArrayDumper(Dumper):
    format = Format.BINARY
    element: ClassVar[int]

    def dump(self, obj: Any) -> bytes:
        absent = None in obj
        if not obj:
            return struct.pack("!iii", 0, 0, self.element)
        header = struct.pack("!iiiii", 1, int(absent), self.element, len(obj), 1)
        return header + (self._absent(obj) if absent else self._all(obj))

    def _all(self, values: Any) -> bytes:
        """The elements, each after its length."""
        encoded = self._encoded(values)
        return b"".join(chain.from_iterable(zip(map(_length, map(len, encoded)), encoded, strict=True)))

    def _absent(self, values: Any) -> bytes:
        """The same, where some are NULL."""
        encoded = iter(self._encoded(value for value in values if value is not None))
        return b"".join(_ABSENT if value is None else _length(len(each := next(encoded))) + each for value in values)

    @abstractmethod
    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        """Each element as the server reads it."""


class _BigintsDumper(_ArrayDumper):
    oid, element = 1016, _BIGINT

    def _all(self, values: Any) -> bytes:
        return struct.pack("!" + "iq" * len(values), *chain.from_iterable(zip(repeat(8), values)))

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        return [struct.pack("!q", value) for value in values]


class _TextsDumper(_ArrayDumper):
    oid, element = 1009, _TEXT

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        return [value.encode() for value in values]


class _BlobsDumper(_ArrayDumper):
    oid, element = 1001, _BYTEA

    def _encoded(self, values: Iterable[Any]) -> list[bytes]:
        return list(values)


def register(adapters: Any) -> None:
    """Let psycopg send them."""
    adapters.register_dumper(Bigints, _BigintsDumper)
    adapters.register_dumper(Texts, _TextsDumper)
    adapters.register_dumper(Blobs, _BlobsDumper)
