"""The queues of a namespace in one transaction: rows, keys and epoch."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from redrive.clock import Instant
from redrive.model.breaker import Breaker
from redrive.model.feed import SUCCESS_KINDS, FeedKind
from redrive.model.gate import Gates
from redrive.model.queue import Queue, QueueSettings
from redrive.stores.relational.session import Executor
from redrive.stores.rules.damage import UNREADABLE, substitute_queue, without_damage

_QUEUES = """
    SELECT key, name, settings, version, paused, created_at, is_dead_queue, source_queues, has_replies, gates,
        breakers
    FROM redrive_queue
    WHERE namespace = ?"""
_QUEUE = f"{_QUEUES} AND name = ?"
_NAMES = "SELECT key, name FROM redrive_queue WHERE namespace = ?"
_NAMED = f"{_NAMES} AND key IN carray(?)"
_NAME, *_CHANGEABLE = Queue.__struct_fields__  # the columns are named like the fields
# On PostgreSQL, a transaction of a program locks the key and the name of a queue that it puts to: they are not written.
_WRITE = f"""
    INSERT INTO redrive_queue (namespace, {_NAME}, {", ".join(_CHANGEABLE)}) VALUES (?, ?{", ?" * len(_CHANGEABLE)})
    ON CONFLICT (namespace, name) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _CHANGEABLE)}"""
_decode_settings = msgspec.json.Decoder(QueueSettings).decode
_decode_breakers = msgspec.json.Decoder(tuple[Breaker, ...]).decode
_decode_names = msgspec.json.Decoder(tuple[str, ...]).decode
decode_gates = msgspec.json.Decoder(Gates).decode


class QueueRow(msgspec.Struct, frozen=True):
    """A queue and its key in the database."""

    key: int
    queue: Queue
    settings: QueueSettings
    plain_put_max_bytes: int
    """Plain items up to this size need no further check; -1 if the queue has a max_size."""
    feed_kinds: frozenset[FeedKind]
    """Kinds of events recorded in the feed."""
    records_success: bool
    """True if the feed records successes too, so that completing needs more writes."""
    has_replies: bool
    """True if an item that names a queue for replies ever came here."""


def queue_rows(executor: Executor, namespace: str, name: str | None = None) -> list[QueueRow]:
    """Return the queues of a namespace, or only the named one."""
    rows = executor.execute(_QUEUES, (namespace,)) if name is None else executor.execute(_QUEUE, (namespace, name))
    return [_queue_row(*row) for row in rows]


def queue_names(executor: Executor, namespace: str, keys: Collection[int] | None = None) -> dict[int, str]:
    """Return the names of all queues, or of those with these keys. Settings are not decoded, as there may be many."""
    if keys is None:
        return dict(executor.execute(_NAMES, (namespace,)))
    return dict(executor.execute(_NAMED, (namespace, executor.table(keys))))


def _queue_row(
    key: int,
    name: str,
    raw_settings: str,
    version: int,
    paused: int,
    created_at: Instant,
    is_dead_queue: int,
    source_queues: str | None,
    has_replies: int,
    gates: str | None,
    breakers: str | None,
) -> QueueRow:
    try:
        queue = Queue(
            name,
            _decode_settings(raw_settings),
            version,
            bool(paused),
            created_at,
            bool(is_dead_queue),
            () if source_queues is None else _decode_names(source_queues),
            () if gates is None else decode_gates(gates),
            () if breakers is None else _decode_breakers(breakers),
        )
    except UNREADABLE:
        queue = substitute_queue(name, version, bool(paused), created_at, bool(is_dead_queue))
    settings = queue.settings
    plain_put_max_bytes = settings.max_payload_size if settings.max_size is None else -1
    kinds = frozenset(settings.feed)
    records_success = not kinds.isdisjoint(SUCCESS_KINDS)
    return QueueRow(key, queue, settings, plain_put_max_bytes, kinds, records_success, bool(has_replies))


def with_gates(row: QueueRow, gates: Gates) -> QueueRow:
    """Return the row with other gates."""
    return msgspec.structs.replace(row, queue=msgspec.structs.replace(row.queue, gates=gates))


def write_queue(executor: Executor, namespace: str, queue: Queue) -> None:
    """Write the row of a queue that is new, or has changed. The transaction runs alone."""
    queue = without_damage(queue)
    settings = msgspec.json.encode(queue.settings).decode()
    flags = (int(queue.paused), queue.created_at, int(queue.is_dead_queue))
    lists = (encode_values(queue.source_queues), encode_values(queue.gates), encode_values(queue.breakers))
    executor.execute(_WRITE, (namespace, queue.name, settings, queue.version, *flags, *lists))


def encode_values(values: Gates | tuple[Breaker, ...] | tuple[str, ...]) -> str | None:
    """Return gates, breakers or names as their column has them: NULL for none."""
    return msgspec.json.encode(values).decode() if values else None


def namespace_key(executor: Executor, namespace: str) -> int | None:
    """Return the key of a namespace, or None before the first write to it."""
    key: int | None = executor.execute("SELECT key FROM redrive_namespace WHERE name = ?", (namespace,)).get
    return key


class Queues:
    """The queues of a namespace in one transaction. Immutable; `reread` returns another one."""

    __slots__ = ("by_key", "by_name", "epoch", "names", "namespace_key", "plain")

    def __init__(self, by_name: dict[str, QueueRow], epoch: int, namespace_key: int) -> None:
        self.by_name = by_name
        self.namespace_key = namespace_key
        self.by_key = {row.key: row for row in by_name.values()}
        self.names = {row.key: name for name, row in by_name.items()}
        self.plain = [row.key for row in by_name.values() if not (row.settings.keep_completed or row.records_success)]
        """Keys of queues in which completing deletes the item and records nothing."""
        self.epoch = epoch
        """Incremented by every change of any queue in the database."""

    @classmethod
    def read(cls, executor: Executor, namespace: str) -> Queues:
        """Read all queues in a write transaction. The first one of a namespace allocates its key."""
        key = namespace_key(executor, namespace)
        if key is None:
            key = executor.execute("INSERT INTO redrive_namespace (name) VALUES (?) RETURNING key", (namespace,)).get
        epoch = epoch_of(executor)  # before the rows: a change in between is then seen by the next transaction
        return cls({row.queue.name: row for row in queue_rows(executor, namespace)}, epoch, key)

    def reread(self, executor: Executor, namespace: str, names: Iterable[str]) -> Queues:
        """Return a copy in which these queues are read again."""
        by_name = dict(self.by_name)
        for name in names:
            by_name.pop(name, None)
            by_name.update({row.queue.name: row for row in queue_rows(executor, namespace, name)})
        return Queues(by_name, epoch_of(executor), self.namespace_key)


NO_QUEUES = Queues({}, -1, 0)


def epoch_of(executor: Executor) -> int:
    """Return the current epoch of the database."""
    epoch: int = executor.execute("SELECT epoch FROM redrive_meta").get
    return epoch
