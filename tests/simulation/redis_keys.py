"""Every key of a namespace on Redis, so that those of two namespaces can be compared.

Values are shown decoded, since scripts and programs write the fields of a value in different orders. Numbers are
allocated in an order that is no promise, so each is shown as its place among those of its kind. Left out are the keys
of tokens, the random digits of ids, counts of 0, the last number and the epoch. The entries of the feed of one instant
are in the order of their items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import msgspec
from redis import Redis
from tests.servers.redis import Server

from redrive.model.item import Death
from redrive.stores.redis.codec import ItemState, decode_content, decode_entry, decode_state
from redrive.stores.redis.keys import DIGITS, score_of
from redrive.stores.redis.queue_state import decode_queue
from redrive.stores.redis.tables import decode_feed_entry, decode_idempotency_entry, decode_source_entry

_unpack = msgspec.msgpack.decode
_ASIDE = b"aside "
_LEFT_OUT = (b"next", b"epoch")
_OF_ITEMS = ("c", "s", "h", "d", "w", "y")
_BY_RULES = ("operations", "operation_order", "operation_items", "active_operations", "moving", "audit")
"""Keys that no script writes, with ids and numbers in them."""
_BY_INSTANT = ("waiting", "expiring", "completed", "dead", "archived", "dropped")
_BY_DEATH = ("dead_letters", "archived_dead_letters", "group")
_BY_ID = ("all", "held", "removed")
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "s": decode_state,
    "h": decode_entry,
    "d": msgspec.msgpack.Decoder(Death).decode,
    "w": lambda raw: sorted(_unpack(raw)),
    "feed": decode_feed_entry,
    "queues": decode_queue,
    "keys": decode_idempotency_entry,
    "sources": decode_source_entry,
    "key_expiry": lambda raw: raw.replace(b"\0", _ASIDE),
    **dict.fromkeys(("y", "groups", "info", "audit"), _unpack),
}


def all_keys(server: Server, prefix: str) -> list[Any]:
    """Return the name, without what is common to all, and the value of each."""
    root = f"{{{prefix}:default}}:"
    with closing(server.client()) as client:
        names = [name.decode().removeprefix(root) for name in client.scan_iter(f"{root}*", count=1000)]
        found = {name: _value(client, root + name, _kind_of(name)) for name in names if _kind_of(name) not in _BY_RULES}
    _add_states_of_new_items(found)
    _check_marks(found)
    numbers = _Numbers(found)
    return sorted((numbers.name(name), numbers.value(name, value)) for name, value in found.items())


def _value(client: Redis, name: str, kind: str) -> Any:
    decode = DECODERS.get(kind, lambda raw: raw)
    read: dict[bytes, Callable[[], Any]] = {
        b"string": lambda: decode(client.get(name)),  # type: ignore[arg-type]
        b"list": lambda: list(map(decode, client.lrange(name, 0, -1))),  # type: ignore[arg-type]
        b"set": lambda: sorted(client.smembers(name)),  # type: ignore[arg-type,type-var]
        b"hash": lambda: _fields(client.hgetall(name).items(), decode),  # type: ignore[union-attr]
        b"zset": lambda: [
            (decode(member), score_of(score))
            for member, score in client.zrange(name, 0, -1, withscores=True)  # type: ignore[union-attr,misc]
        ],
    }
    return read[client.type(name)]()  # type: ignore[index]


def _fields(fields: Iterable[tuple[bytes, bytes]], decode: Callable[[bytes], Any]) -> list[tuple[bytes, Any]]:
    kept = [(name.replace(b"\0", _ASIDE), decode(raw)) for name, raw in fields if name not in _LEFT_OUT and raw != b"0"]
    return sorted(kept, key=lambda field: (len(field[0]), _without_salt(field[0])))


def _add_states_of_new_items(found: dict[str, Any]) -> None:
    """The script writes no state of a plain item before it is leased."""
    for name in [name for name in found if _kind_of(name) == "c"]:
        put_at, _, content = decode_content(found[name])
        found[name] = put_at, content
        body = name.partition(":")[2]
        found.setdefault(f"s:{body}", ItemState(content.queue, content.priority, n=int(body), r=put_at))


def _check_marks(found: dict[str, Any]) -> None:
    """An item whose state does not say that it has more keys is removed without a look at them."""
    for name in found:
        if _kind_of(name) in ("h", "d", "w", "y"):
            state = found[f"s:{name.partition(':')[2]}"]
            assert state.k, f"{name} would be left behind: {state}"


class _Numbers:
    """The numbers of items, places in line and deaths in a namespace."""

    def __init__(self, found: dict[str, Any]) -> None:
        states = [value for name, value in found.items() if _kind_of(name) == "s"]
        ids = [score for name, members in found.items() if _kind_of(name) == "all" for _, score in members]
        names = [name.rpartition(":")[2] for name in found if _kind_of(name) in (*_OF_ITEMS, "o")]
        self._items = _places([*ids, *map(int, names)])
        queues = {state.q for state in states}
        self._positions = {queue: _places(state.n for state in states if state.q == queue) for queue in queues}
        self._deaths = _places(state.x for state in states)
        results = [name.partition(":")[2] for name in found if _kind_of(name) == "result"]
        self._results = {id: place for place, id in enumerate(sorted(results, key=lambda id: id[DIGITS:]))}

    def name(self, name: str) -> str:
        kind, _, number = name.partition(":")
        if kind == "result":
            return f"{kind}:{self._results[number]}"
        return f"{kind}:{self._items[int(number)]}" if kind in (*_OF_ITEMS, "o") else name

    def value(self, name: str, value: Any) -> Any:
        match _kind_of(name):
            case "s":
                value.n, value.x = self._positions[value.q][value.n], self._deaths[value.x]
                value.t = None if value.t is None else "token"
                return value
            case "ready" | "leases":
                positions = self._positions[name.split(":")[1]]
                return [
                    (positions[int(member[:DIGITS])], self._items[int(member[DIGITS:])], score)
                    for member, score in value
                ]
            case kind if kind in (*_BY_INSTANT, *_BY_DEATH, *_BY_ID) and name != "removed":
                numbers = self._items if kind in _BY_ID else self._deaths if kind in _BY_DEATH else {}
                return [(self._items[int(member)], numbers.get(score, score)) for member, score in value]
            case "o":
                return self._items[int(value)]
            case "feed":
                entries = [msgspec.structs.replace(entry, number=0) for entry, _ in value]
                return sorted(entries, key=lambda entry: (entry.at, entry.queue, (entry.id or "")[DIGITS:]))
            case "key_expiry" | "source_expiry" | "result_expiry":
                return sorted(value, key=lambda each: (each[1], _without_salt(each[0])))
            case _:
                return value


def _without_salt(name: bytes) -> bytes:
    """Return of a name that ends with an id the number: two namespaces have the same there."""
    return name[-DIGITS:]


def _kind_of(name: str) -> str:
    return name.partition(":")[0]


def _places(numbers: Iterable[int]) -> dict[int, int]:
    return {number: place for place, number in enumerate(sorted(set(numbers)))}
