"""What one transaction, or one query, has read of a namespace, and what it is going to write.

A transaction that has the turn reads as it goes, works everything out in this process, and writes it by one script.
Nothing that it read can change meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from redrive.clock import Instant
from redrive.errors import InvalidName
from redrive.model.ids import ItemId, parse_id
from redrive.stores.redis.codec import (
    NOT_READ,
    NOTHING_LOADED,
    Loaded,
    as_loaded,
    encode,
    encode_content,
    encode_entry,
    encode_state,
    read_record,
    read_words,
)
from redrive.stores.redis.keys import Keys, body_of, digits, score_of, short
from redrive.stores.redis.redis_client import Part, RedisClient
from redrive.stores.redis.scripts import READ_COMMANDS, READ_ITEMS, WORKER_LEASES
from redrive.stores.rules.record import Record

_MOST_PARTS = 1000
"""Of one command: more do not go onto the stack of Lua."""
_LOAD = 250
"""Items that one script reads."""

Range = tuple[str, str, int | str, int | str, int, int]
"""Key, `up` or `down`, lowest score, highest score, how many to pass over, how many."""
Found = list[tuple[str, int]]
"""Members of a sorted set and their scores."""


class Session:
    """Items that were read, each once, and commands that are to be run."""

    def __init__(self, connection: RedisClient, keys: Keys) -> None:
        self.keys = keys
        self.writes: list[tuple[Part, ...]] = []
        self._connection = connection
        self._records: dict[int, Record] = {}
        """By body."""
        self._ids: dict[ItemId, Record | None] = {}
        self._loaded: dict[int, Loaded] = {}
        self._gone: set[int] = set()
        self.ahead: dict[str, list[str]] = {"keys": [], "sources": [], "groups": []}
        """What is likely to be asked for in the tables of these kinds: read together, and not one by one."""

    # Reading

    def look(self, *commands: Sequence[Part]) -> list[Any]:
        """The answers of commands that only read, all at one instant."""
        if not commands:
            return []
        answers: list[Any] = self._connection.run(READ_COMMANDS, [self.keys.meta], flat(commands))[1:]
        return answers

    def look_at(self, *commands: Sequence[Part]) -> tuple[Instant, list[Any]]:
        """The same, and the instant, by the server's clock."""
        now, *answers = self._connection.run(READ_COMMANDS, [self.keys.meta], flat(commands))
        return Instant(now), answers

    def record(self, id: ItemId) -> Record | None:
        """The item that has or had this id."""
        if id not in self._ids:
            self.load([id])
        return self._ids[id]

    def load(self, ids: Iterable[ItemId], *, words: bool = False) -> None:
        """Read the items of these ids, as far as they are not known yet."""
        unknown = [id for id in dict.fromkeys(ids) if id not in self._ids and self._is_id(id)]
        for start in range(0, len(unknown), _LOAD):
            some = unknown[start : start + _LOAD]
            numbers = [digits(short(parse_id(id)[0])) for id in some]
            found, _ = self._read(numbers, (), words=words)
            for id, body in zip(some, found, strict=True):
                item = None if body is None else self._records.get(body)
                self._ids[id] = item if item is not None and id in item.ids else None

    def _is_id(self, id: ItemId) -> bool:
        """What is no id, no item has."""
        try:
            parse_id(id)
        except InvalidName:
            self._ids[id] = None
        return id not in self._ids

    def ranges(self, *ranges: Range, words: bool = False) -> list[Found]:
        """What stands in ranges of sorted sets whose members are items. These are read, too."""
        return self._read((), ranges, words=words)[1]

    def first(self, key: str, limit: int) -> list[Record]:
        """The first items in a sorted set that are there, up to so many. They are read, too."""
        items: list[Record] = []
        for passed in itertools.count(0, limit):
            (found,) = self.ranges((key, "up", "-inf", "+inf", passed, limit))
            items += [item for member, _ in found if (item := self.at(member)) is not None]
            if len(items) >= limit or len(found) < limit:
                break
        return items[:limit]

    def removed(self, key: str, limit: int) -> list[Record]:
        """Some items of a deleted queue, whose list this is."""
        members: Found = []
        while len(members) < limit:
            most = min(_LOAD, limit - len(members))
            _, (found,) = self._read((), [(key, "up", "-inf", "+inf", len(members), most)], removed=True)
            members += found
            if len(found) < most:
                break
        return [item for member, _ in members if (item := self.at(member)) is not None]

    def at(self, member: str) -> Record | None:
        """The item of a member that was found. None where it was removed in this transaction."""
        return self._records.get(int(member[-16:]))

    def held(self, worker: str, limit: int) -> list[tuple[bytes, bytes, bytes]]:
        """The items that a worker holds, those leased first first: body, content and stand of each."""
        found: list[tuple[bytes, bytes, bytes]] = self._connection.run(
            WORKER_LEASES, [self.keys.meta], [self.keys.root, worker, limit]
        )
        return found

    def _read(
        self, numbers: Sequence[str], ranges: Sequence[Range], *, words: bool = False, removed: bool = False
    ) -> tuple[list[int | None], list[Found]]:
        parts: list[Part] = [self.keys.root, int(words), int(removed), len(numbers), *numbers]
        for one in ranges:
            parts.extend(one)
        found, ranged, bodies, records = self._connection.run(READ_ITEMS, [self.keys.meta], parts)
        for body, raw in zip(map(int, bodies), records, strict=True):
            if body not in self._records and body not in self._gone:
                self._keep(body, raw, words)
            elif words and body in self._loaded and self._records[body].words is NOT_READ:
                self._records[body].words = read_words(raw)
                self._loaded[body] = self._loaded[body]._replace(words=self._records[body].words)
        pairs = [
            [(members[i].decode(), score_of(members[i + 1])) for i in range(0, len(members), 2)] for members in ranged
        ]
        return [None if body is None else int(body) for body in found], pairs

    def _keep(self, body: int, raw: Sequence[Any], words: bool) -> None:
        item, self._loaded[body] = read_record(body, raw, with_words=words)
        self._records[body] = item
        for id in item.ids:
            self._ids[id] = item
        self.ahead["sources"] += [item.id] if item.source_id is None else [item.id, item.source_id]
        if item.idempotency_key is not None:
            self.ahead["keys"].append(item.idempotency_key)
        if item.deaths:
            self.ahead["groups"].append(item.deaths[-1].cause.fingerprint)

    # Writing

    def write(self, *command: Part) -> None:
        """Run this command at the end."""
        self.writes.append(command)

    def name(self, id: ItemId, item: Record) -> None:
        """An item has this id from now on."""
        body = body_of(item.ids[0])
        self._ids[id] = item
        self._records[body] = item
        if id != item.ids[0]:
            self.write("SET", self.keys.of("o", digits(short(parse_id(id)[0]))), digits(body))

    def forget(self, id: ItemId) -> None:
        """Nobody has this id any more."""
        item = self._ids[id]
        self._ids[id] = None
        assert item is not None
        if id != item.ids[0]:
            self.write("DEL", self.keys.of("o", digits(short(parse_id(id)[0]))))
            return
        body = body_of(id)
        self._gone.add(body)
        del self._records[body]
        if self._loaded.pop(body, None) is not None:
            self.write("DEL", *(self.keys.of(kind, digits(body)) for kind in "cshdwy"))

    def write_records(self) -> None:
        """Write down every item that is not as it was read."""
        for body, item in self._records.items():
            self._write_record(digits(body), item, self._loaded.get(body))
            self._loaded[body] = as_loaded(item)

    def _write_record(self, body: str, item: Record, loaded: Loaded | None) -> None:
        if loaded is None:
            self.write("SET", self.keys.of("c", body), encode_content(item))
            loaded = NOTHING_LOADED
        stand = encode_state(item)
        if stand != loaded.stand:
            self.write("SET", self.keys.of("s", body), stand)
        self._write_history(self.keys.of("h", body), item, loaded)
        for death in item.deaths[loaded.deaths :]:
            self.write("RPUSH", self.keys.of("d", body), encode(death))
        if item.words is not loaded.words:
            key = self.keys.of("w", body)
            self.write("SET", key, encode(item.words)) if item.words else self.write("DEL", key)
        if item.result is not loaded.result and item.result is not None:
            self.write("SET", self.keys.of("y", body), encode(item.result))

    def _write_history(self, key: str, item: Record, loaded: Loaded) -> None:
        entries, known = item.history.entries(), len(loaded.entries)
        if entries[:known] == loaded.entries:
            entries = entries[known:]
        else:
            self.write("DEL", key)
        for entry in entries:
            self.write("RPUSH", key, encode_entry(entry))


def flat(commands: Iterable[Sequence[Part]]) -> list[Part]:
    """Commands as a script takes them: how many parts each has, then the parts."""
    parts: list[Part] = []
    for command in commands:
        assert len(command) <= _MOST_PARTS, f"{command[0]!r} has {len(command)} parts"
        parts.append(len(command))
        parts.extend(command)
    return parts
