"""The queues of the rules: settings and counts are read first, indexes on demand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from itertools import islice

import msgspec

from redrive.clock import Instant
from redrive.model.item import Status
from redrive.model.queue import WITH_ITEM, Queue, QueueStats
from redrive.stores.redis.codec import encode
from redrive.stores.redis.indexes import InstantIndex, NamesByInstant, Ready, TailIndex
from redrive.stores.redis.keys import FORMAT, RANKS, Keys, score_of
from redrive.stores.redis.redis_client import Part
from redrive.stores.redis.tables import (
    Hash,
    decode_idempotency_entry,
    decode_source_entry,
    encode_idempotency_entry,
    encode_source_entry,
)
from redrive.stores.redis.unit_of_work import Session
from redrive.stores.rules.damage import read_value, substitute_queue, without_damage
from redrive.stores.rules.queue_state import QueueState

_TOTALS = (
    *("dead_letters", "put_total", "completed_total", "failed_total", "dead_total"),
    *("redriven_total", "archived_total", "exhausted_total", "captured_total"),
)
_INDEXES = ("waiting", "expiring", "leases", "completed", "dead", "archived", "dropped")
_OTHERS = (
    *("all", "dead_letters", "archived_dead_letters", "groups", "counts"),
    *("keys", "key_expiry", "sources", "source_expiry"),
)

decode_queue = msgspec.msgpack.Decoder(Queue).decode


def decode_queues(raw: Iterable[bytes]) -> dict[str, Queue]:
    """Return the queues of a namespace from the fields and values of their hash."""
    fields = iter(raw)
    stored = ((name.decode(), value) for name, value in zip(fields, fields, strict=True))
    return {
        name: read_value(partial(_decode_named, name), value, substitute_queue(name), tuple) for name, value in stored
    }


def _decode_named(name: str, raw: bytes) -> Queue:
    queue = decode_queue(raw)
    if queue.name != name:
        raise ValueError(f"the value of queue {name!r} has another name")
    return queue


def counts_of(raw: Iterable[bytes]) -> dict[str, int]:
    """Return the counts of a queue from the fields and values of its hash."""
    fields = iter(raw)
    return {name.decode(): int(value) for name, value in zip(fields, fields, strict=True)}


def info_of(queue: Queue) -> bytes:
    """Return the settings that scripts need. The names are short because scripts decode them in every run."""
    settings = queue.settings
    allowances = [gate.leases_left for gate in queue.gates if gate.leases_left is not None]
    return encode(
        {
            "v": queue.version,
            "p": queue.paused,
            "g": max((gate.until for gate in queue.gates), default=None),  # instant at which all are open
            "a": min(allowances, default=None),  # remaining leases
            "t": settings.lease_timeout,
            "m": settings.max_size,
            "b": settings.max_payload_size,  # bytes
            "e": settings.expire_timeout,
            "i": 0 if settings.idempotency_timeout == WITH_ITEM else settings.idempotency_timeout,
            "k": settings.keep_completed,
            "f": {str(kind): True for kind in settings.feed},
        }
    )


class RedisQueue(QueueState):
    """One queue."""

    def __init__(self, session: Session, value: Queue, counts: Mapping[str, int], *, is_new: bool = False) -> None:
        super().__init__(value)
        self._session = session
        self._value = None if is_new else value
        self._counts = counts
        for status in Status:
            self.counts[status] = counts.get(status, 0)
        for name in _TOTALS:
            setattr(self, name, counts.get(name, 0))
        of = session.keys.of
        self.ready = Ready(session, *ready_keys(session.keys, value.name))
        for name in _INDEXES:
            setattr(self, name, (TailIndex if name == "leases" else InstantIndex)(session, of(name, value.name)))
        self.keys = Hash(session, of("keys", value.name), encode_idempotency_entry, decode_idempotency_entry, "keys")
        self.keys_until = NamesByInstant(session, of("key_expiry", value.name))
        self.sources = Hash(session, of("sources", value.name), encode_source_entry, decode_source_entry, "sources")
        self.sources_until = NamesByInstant(session, of("source_expiry", value.name))  # type: ignore[assignment]

    def oldest_ready_at(self, at: Instant) -> Instant | None:
        return oldest_of(self._session.fetch(*head_commands(self._session.keys, self.name, at)))

    def write(self) -> bool:
        """Add writes for all changes. Return whether the queue itself changed."""
        counts = {str(status): self.counts[status] for status in Status}
        counts |= {name: getattr(self, name) for name in _TOTALS}
        changed = [(name, value) for name, value in counts.items() if value != self._counts.get(name, 0)]
        if changed:
            pairs = [part for pair in changed for part in pair]
            self._session.write("HSET", self._session.keys.of("counts", self.name), *pairs)
            self._counts = counts
        if self.value == self._value:
            return False
        self._value = self.value
        stored = without_damage(self.value)
        self._session.write("HSET", self._session.keys.of("queues"), self.name, encode(stored))
        self._session.write("HSET", self._session.keys.of("info"), self.name, info_of(stored))
        if self.value.gates or self.value.breakers:
            self._session.write("HSET", self._session.keys.meta, "format", FORMAT)
        return True


class Queues(MutableMapping[str, QueueState]):
    """The queues of a namespace: their values are known, their counts are read on demand."""

    def __init__(self, session: Session, values: Mapping[str, Queue]) -> None:
        self._session = session
        self.current_values = dict(values)
        self._open: dict[str, RedisQueue] = {}
        self._deleted = False

    def load(self, names: Iterable[str]) -> None:
        """Read the counts of several queues together."""
        some = [name for name in dict.fromkeys(names) if name in self.current_values and name not in self._open]
        commands = [("HGETALL", self._session.keys.of("counts", name)) for name in some]
        for name, raw in zip(some, self._session.fetch(*commands), strict=True):
            self._open[name] = RedisQueue(self._session, self.current_values[name], counts_of(raw))

    def create(self, value: Queue) -> None:
        """Add a new queue."""
        self._open[value.name] = RedisQueue(self._session, value, {}, is_new=True)
        self.current_values[value.name] = value

    def write(self) -> bool:
        """Add writes for all changes. Return whether any queue changed."""
        return any([queue.write() for queue in self._open.values()]) or self._deleted

    def present(self) -> dict[str, Queue]:
        """Return every queue in its current state."""
        return self.current_values | {name: queue.value for name, queue in self._open.items()}

    def __getitem__(self, name: str) -> QueueState:
        if name not in self.current_values:
            raise KeyError(name)
        self.load((name,))
        return self._open[name]

    def __setitem__(self, name: str, queue: QueueState) -> None:
        self.create(queue.value)

    def __delitem__(self, name: str) -> None:
        """Remove a queue with its indexes and hashes. Its items are removed before."""
        del self.current_values[name]
        del self._open[name]
        self._deleted = True
        keys = self._session.keys
        self._session.write("HDEL", keys.of("queues"), name)
        self._session.write("HDEL", keys.of("info"), name)
        self._session.write("UNLINK", *(keys.of(kind, name) for kind in (*_INDEXES, *_OTHERS)), *ready_keys(keys, name))

    def __iter__(self) -> Iterator[str]:
        self.load(self.current_values)
        return iter(tuple(self.current_values))

    def __len__(self) -> int:
        return len(self.current_values)


def read_stats(session: Session, values: Mapping[str, Queue], names: Sequence[str], at: Instant) -> list[QueueStats]:
    """Return the counts of several queues by one round trip."""
    heads = len(RANKS) + 1
    commands: list[tuple[Part, ...]] = []
    for name in names:
        commands += [("HGETALL", session.keys.of("counts", name)), *head_commands(session.keys, name, at)]
    answers = iter(session.fetch(*commands))
    return [
        RedisQueue(session, values[name], counts_of(next(answers))).stats_with(oldest_of(islice(answers, heads)), at)
        for name in names
    ]


def head_commands(keys: Keys, queue: str, at: Instant) -> list[tuple[Part, ...]]:
    """Return the commands that read the head of each priority, and the first item that is due."""
    heads: list[tuple[Part, ...]] = [("ZRANGE", key, 0, 0, "WITHSCORES") for key in ready_keys(keys, queue)]
    return [*heads, ("ZRANGEBYSCORE", keys.of("waiting", queue), "-inf", at, "WITHSCORES", "LIMIT", 0, 1)]


def oldest_of(heads: Iterable[Sequence[bytes]]) -> Instant | None:
    """Return the ready time of the oldest leasable item, from the answers to these commands."""
    return min((Instant(score_of(head[1])) for head in heads if head), default=None)


def ready_keys(keys: Keys, queue: str) -> list[str]:
    """Return the sorted sets of leasable items of a queue, highest priority first."""
    return [keys.of("ready", queue, rank) for rank in reversed(RANKS)]
