"""The items that one transaction or query has read of a namespace, and the writes of the transaction.

A transaction has the lock of the namespace. It reads on demand, computes all changes in this process, and writes them
by one script. The data that it has read cannot change before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from redrive.clock import Instant
from redrive.errors import InvalidName
from redrive.model.ids import ItemId, ids_with_prefix, parse_id
from redrive.model.item import Status
from redrive.stores.redis.codec import (
    NOTHING_LOADED,
    DerivedWords,
    Loaded,
    as_loaded,
    encode,
    encode_content,
    encode_entry,
    encode_held,
    encode_state,
    has_unread_words,
    lasting_words,
    read_record,
    read_words,
)
from redrive.stores.redis.keys import FORMAT, Keys, body_of, digits, score_of, short
from redrive.stores.redis.redis_client import Part, RedisClient
from redrive.stores.redis.scripts import FIND_PREFIX, READ_COMMANDS, READ_ITEMS, WORKER_LEASES
from redrive.stores.rules.record import Record

_MAX_PARTS = 1000
"""Maximum number of parts of one command: more do not fit on the stack of Lua."""
PAGE = 250
"""Maximum number of items that one script reads."""
_SCANNED = 5000
"""Maximum number of ids that one script compares."""

Range = tuple[str, str, int | str, int | str, int, int]
"""Key, `up` or `down`, lowest score, highest score, offset, limit."""
Found = list[tuple[str, int]]
"""Members of a sorted set and their scores."""


class Session:
    """Items that were read, each once, and commands to run at the end."""

    def __init__(self, client: RedisClient, keys: Keys, *, read_only: bool = False) -> None:
        self.keys = keys
        self.writes: list[tuple[Part, ...]] = []
        self._client = client
        self._read_only = read_only
        self._records: dict[int, Record] = {}
        """Items by body."""
        self._ids: dict[ItemId, Record | None] = {}
        self._loaded: dict[int, Loaded] = {}
        self._removed: set[int] = set()
        self.prefetch_names: dict[str, list[str]] = {"keys": [], "sources": [], "groups": []}
        """Names that will probably be read from the hashes of these kinds. They are read together."""

    # Reading

    def fetch(self, *commands: Sequence[Part]) -> list[Any]:
        """Return the answers of commands that only read, all at one instant."""
        if not commands:
            return []
        answers: list[Any] = self._client.run(READ_COMMANDS, [self.keys.meta], flat(commands))[1:]
        return answers

    def fetch_with_instant(self, *commands: Sequence[Part]) -> tuple[Instant, list[Any]]:
        """Return the instant by the server's clock, and the answers of commands that only read, all at that instant."""
        now, *answers = self._client.run(READ_COMMANDS, [self.keys.meta], flat(commands))
        return Instant(now), answers

    def record(self, id: ItemId) -> Record | None:
        """Return the item that has or had this id."""
        if id not in self._ids:
            self.load([id])
        return self._ids[id]

    def load(self, ids: Iterable[ItemId], *, words: bool = False) -> None:
        """Read the items of these ids that are not yet read."""
        unknown = [id for id in dict.fromkeys(ids) if not self._is_read(id, words)]
        for start in range(0, len(unknown), PAGE):
            some = unknown[start : start + PAGE]
            numbers = [digits(short(parse_id(id)[0])) for id in some]
            found, _ = self._read(numbers, (), words=words)
            for id, body in zip(some, found, strict=True):
                item = None if body is None else self._records.get(body)
                self._ids[id] = item if item is not None and id in item.ids else None

    def _is_read(self, id: ItemId, words: bool) -> bool:
        """Return whether an id is read, with its search words if they are needed. An invalid id has no item."""
        if id not in self._ids:
            try:
                parse_id(id)
            except InvalidName:
                self._ids[id] = None
            else:
                return False
        item = self._ids[id]
        return item is None or not words or not has_unread_words(item)

    def ranges(self, *ranges: Range, words: bool = False) -> list[Found]:
        """Return members and scores in ranges of sorted sets of items, and read these items."""
        return self._read((), ranges, words=words)[1]

    def first_items(self, key: str, limit: int) -> list[Record]:
        """Return up to `limit` items, the first ones in a sorted set that exist."""
        items: list[Record] = []
        for offset in itertools.count(0, limit):
            (found,) = self.ranges((key, "up", "-inf", "+inf", offset, limit))
            items += [item for member, _ in found if (item := self.item_at(member)) is not None]
            if len(items) >= limit or len(found) < limit:
                break
        return items[:limit]

    def ids_with_prefix(self, queue: str, prefix: str, limit: int) -> list[ItemId]:
        """Return up to `limit` ids of items in a queue that start with `prefix`."""
        ids: list[ItemId] = []
        numbers, _ = ids_with_prefix(prefix)
        first: int | str | None = short(numbers.start)
        while first is not None and len(ids) < limit:
            arguments: list[Part] = [self.keys.root, queue, prefix, first, short(numbers.stop - 1), _SCANNED]
            last, found = self._client.run(FIND_PREFIX, [self.keys.meta], arguments)
            bodies = [body.decode() for body in found]
            for start in range(0, len(bodies), PAGE):
                self._read(bodies[start : start + PAGE], ())
            items = (item for body in bodies if (item := self.item_at(body)) is not None)
            ids += [item.id for item in items if item.id.startswith(prefix)]
            first = None if last is None else f"({last.decode()}"
        return ids[:limit]

    def removed_items(self, key: str, limit: int) -> list[Record]:
        """Return up to `limit` items of a deleted queue from `removed:N`."""
        members: Found = []
        while len(members) < limit:
            count = min(PAGE, limit - len(members))
            _, (found,) = self._read((), [(key, "up", "-inf", "+inf", len(members), count)], removed=True)
            members += found
            if len(found) < count:
                break
        return [item for member, _ in members if (item := self.item_at(member)) is not None]

    def item_at(self, member: str) -> Record | None:
        """Return the item of a member that was found; None if this transaction removed it."""
        return self._records.get(int(member[-16:]))

    def worker_leases(self, worker: str, limit: int) -> list[tuple[bytes, bytes, bytes]]:
        """Return body, content and state of items that a worker has leased, in the order of the leases."""
        found: list[tuple[bytes, bytes, bytes]] = self._client.run(
            WORKER_LEASES, [self.keys.meta], [self.keys.root, worker, limit]
        )
        return found

    def _read(
        self, numbers: Sequence[str], ranges: Sequence[Range], *, words: bool = False, removed: bool = False
    ) -> tuple[list[int | None], list[Found]]:
        parts: list[Part] = [self.keys.root, int(words), int(removed), len(numbers), *numbers]
        for one in ranges:
            parts.extend(one)
        found, ranged, bodies, records = self._client.run(READ_ITEMS, [self.keys.meta], parts)
        for body, raw in zip(map(int, bodies), records, strict=True):
            if body not in self._records and body not in self._removed:
                self._keep(body, raw, words)
            elif words and body not in self._removed and has_unread_words(self._records[body]):
                self._records[body].words = read_words(self._records[body], raw)
                if not self._read_only:
                    self._loaded[body] = self._loaded[body]._replace(words=self._records[body].words)
        pairs = [
            [(members[i].decode(), score_of(members[i + 1])) for i in range(0, len(members), 2)] for members in ranged
        ]
        return [None if body is None else int(body) for body in found], pairs

    def _keep(self, body: int, raw: Sequence[Any], words: bool) -> None:
        item = self._records[body] = read_record(body, raw, with_words=words)
        if not self._read_only:
            self._loaded[body] = as_loaded(item)
        for id in item.ids:
            self._ids[id] = item
        self.prefetch_names["sources"] += [item.id] if item.source_id is None else [item.id, item.source_id]
        if item.idempotency_key is not None:
            self.prefetch_names["keys"].append(item.idempotency_key)
        if item.deaths:
            self.prefetch_names["groups"].append(item.deaths[-1].cause.fingerprint)

    # Writing

    def write(self, *command: Part) -> None:
        """Add a command to run at the end."""
        self.writes.append(command)

    def add_id(self, id: ItemId, item: Record) -> None:
        """Give an item this id."""
        body = body_of(item.ids[0])
        self._ids[id] = item
        self._records[body] = item
        if id != item.ids[0]:
            self.write("SET", self.keys.of("o", digits(short(parse_id(id)[0]))), digits(body))

    def remove_id(self, id: ItemId) -> None:
        """Remove an id. With its first id, the item is removed."""
        item = self._ids[id]
        self._ids[id] = None
        assert item is not None
        if id != item.ids[0]:
            self.write("DEL", self.keys.of("o", digits(short(parse_id(id)[0]))))
            return
        body = body_of(id)
        self._removed.add(body)
        del self._records[body]
        if self._loaded.pop(body, None) is not None:
            self.write("DEL", *(self.keys.of(kind, digits(body)) for kind in "cshdwy"))

    def write_records(self) -> None:
        """Write every item that differs from what was read."""
        for body, item in self._records.items():
            self._write_record(digits(body), item, self._loaded.get(body))
            self._loaded[body] = as_loaded(item)

    def _write_record(self, body: str, item: Record, loaded: Loaded | None) -> None:
        if loaded is None:
            self.write("SET", self.keys.of("c", body), encode_content(item))
            loaded = NOTHING_LOADED
        if isinstance(item.words, DerivedWords) and item.history.omitted:
            item.words = lasting_words(item, loaded)
        state = encode_state(item)
        if state != loaded.state:
            self.write("SET", self.keys.of("s", body), state)
            archived = item.status is Status.ARCHIVED and (item.is_dropped or item.death is None)
            has_derived_words = isinstance(item.words, DerivedWords)
            if item.was_dead or archived or has_derived_words or isinstance(encode_held(item.holders), tuple):
                self.write("HSET", self.keys.meta, "format", FORMAT)
        self._write_history(self.keys.of("h", body), item, loaded)
        for death in item.deaths[loaded.deaths :]:
            self.write("RPUSH", self.keys.of("d", body), encode(death))
        if item.words is not loaded.words:
            key = self.keys.of("w", body)
            is_stored = item.words and not isinstance(item.words, DerivedWords)
            self.write("SET", key, encode(item.words)) if is_stored else self.write("DEL", key)
        if item.result is not loaded.result:
            key = self.keys.of("y", body)
            self.write("DEL", key) if item.result is None else self.write("SET", key, encode(item.result))

    def _write_history(self, key: str, item: Record, loaded: Loaded) -> None:
        entries, known = item.history.entries(), len(loaded.entries)
        if entries[:known] == loaded.entries:
            entries = entries[known:]
        else:
            self.write("DEL", key)
        for entry in entries:
            self.write("RPUSH", key, encode_entry(entry))


def flat(commands: Iterable[Sequence[Part]]) -> list[Part]:
    """Return commands in the format of the scripts: each as the number of its parts and the parts."""
    parts: list[Part] = []
    for command in commands:
        assert len(command) <= _MAX_PARTS, f"{command[0]!r} has {len(command)} parts"
        parts.append(len(command))
        parts.extend(command)
    return parts
