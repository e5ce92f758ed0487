"""What the calls of one transaction share: its instant, the queues, the numbers drawn, and the counts to be written."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.errors import QueueNotFound
from redrive.model.feed import SUCCESS_KINDS, FeedKind
from redrive.model.ids import NUMBERS_PER_MICROSECOND, PARTITION_BITS, SALT_BITS, ItemId, make_id
from redrive.model.item import Status
from redrive.model.queue import Queue, QueueSettings
from redrive.stores.relational.low_water_marks import SLACK
from redrive.stores.relational.session import Executor, Session, Words

COUNTED_COLUMNS = (
    "pending",
    "failed",
    "active",
    "completed",
    "dead",
    "archived",
    "dead_letters",
    "put_total",
    "completed_total",
    "failed_total",
    "dead_total",
    "moving",
)
"""The columns of the tally: changes of counts, written with the batch and rolled up by the maintenance."""

SALT_STEP = 0x4F1BBCDCBFA5
"""Salts of one batch are this far apart (modulo 2^47), so that the first digits of their ids differ."""
SALT_MASK = (1 << SALT_BITS) - 1

_TALLY = f"INSERT INTO redrive_tally (queue, {', '.join(COUNTED_COLUMNS)}) VALUES (?{', ?' * len(COUNTED_COLUMNS)})"
_POSITION = {name: index for index, name in enumerate(COUNTED_COLUMNS)}
_STATUS_POSITION = {status: _POSITION[status.value] for status in Status if status.value in _POSITION}
_QUEUES = """
    SELECT key, name, settings, version, paused, created_at, is_dead_queue, source_queues FROM redrive_queue
    WHERE namespace = ?"""
_QUEUE = f"{_QUEUES} AND name = ?"
_decode_settings = msgspec.json.Decoder(QueueSettings).decode
_random = random.Random()


class QueueRow(msgspec.Struct, frozen=True):
    """A queue and its key in the file."""

    key: int
    queue: Queue
    settings: QueueSettings
    plain_put_max_bytes: int
    """Plain items of at most so many bytes need no check of their own; -1 where max_size is to be kept."""
    feed_kinds: frozenset[FeedKind]
    """What is kept in the feed."""
    records_success: bool
    """What goes well is kept too, or some of it: there is more to do than usual."""


def queue_rows(executor: Executor, namespace: str, name: str | None = None) -> list[QueueRow]:
    """The queues of a namespace; only the one of that name if it is given."""
    return [
        _queue_row(
            key,
            Queue(
                found,
                _decode_settings(settings),
                version,
                bool(paused),
                created_at,
                bool(is_dead_queue),
                () if source_queues is None else tuple(msgspec.json.decode(source_queues)),
            ),
        )
        for key, found, settings, version, paused, created_at, is_dead_queue, source_queues in executor.execute(
            _QUEUE if name is not None else _QUEUES, (namespace,) if name is None else (namespace, name)
        )
    ]


def _queue_row(key: int, queue: Queue) -> QueueRow:
    settings = queue.settings
    joins_below = settings.max_payload_size if settings.max_size is None else -1
    told = frozenset(settings.feed)
    return QueueRow(key, queue, settings, joins_below, told, not told.isdisjoint(SUCCESS_KINDS))


def namespace_key(executor: Executor, namespace: str) -> int | None:
    """The number that stands for a namespace in this file. None before anybody wrote to it."""
    key: int | None = executor.execute("SELECT key FROM redrive_namespace WHERE name = ?", (namespace,)).get
    return key


class Queues:
    """The queues of a namespace as one transaction sees them. Never changed; `reread` gives another one."""

    __slots__ = ("by_key", "by_name", "epoch", "namespace_key", "plain")

    def __init__(self, by_name: dict[str, QueueRow], epoch: int, namespace_key: int) -> None:
        self.by_name = by_name
        self.namespace_key = namespace_key
        self.by_key = {row.key: row for row in by_name.values()}
        self.plain = [row.key for row in by_name.values() if not (row.settings.keep_completed or row.records_success)]
        """The keys of those in which a completed item is removed, and nobody is told."""
        self.epoch = epoch
        """Grows with every change of any queue in the file."""

    @classmethod
    def read(cls, executor: Executor, namespace: str) -> Queues:
        """All queues. Within a transaction that writes: the first one of a namespace gives it its key."""
        key = namespace_key(executor, namespace)
        if key is None:
            key = executor.execute("INSERT INTO redrive_namespace (name) VALUES (?) RETURNING key", (namespace,)).get
        return cls({row.queue.name: row for row in queue_rows(executor, namespace)}, epoch_of(executor), key)

    def reread(self, executor: Executor, namespace: str, names: Iterable[str]) -> Queues:
        """The same, with these queues as they are now."""
        by_name = dict(self.by_name)
        for name in names:
            by_name.pop(name, None)
            by_name.update({row.queue.name: row for row in queue_rows(executor, namespace, name)})
        return Queues(by_name, epoch_of(executor), self.namespace_key)


NO_QUEUES = Queues({}, -1, 0)


def epoch_of(executor: Executor) -> int:
    """The epoch of the file."""
    epoch: int = executor.execute("SELECT epoch FROM redrive_meta").get
    return epoch


class SequenceAllocator:
    """Draws the numbers of ids and the places at the tail: growing, and never twice in one file."""

    def __init__(self) -> None:
        self._last = 0

    def raise_to(self, number: int) -> None:
        """Numbers up to this one are taken."""
        self._last = max(self._last, number)

    def next(self, count: int, now: Instant) -> int:
        """The first of `count` numbers in a row."""
        first = max(self._last + 1, now * NUMBERS_PER_MICROSECOND)
        self._last = first + count - 1
        return first


class Stage(IntEnum):
    """When a row is written of those that are written together. An item is changed once in that time."""

    DELETE_STATE = 0
    """It is taken from its place: first, so that it can be laid in the same place again."""
    INSERT_STATE = 1
    """It is laid in another, and something is written about it."""
    RENUMBER = 2
    """What was written about it, until just now, follows it to its new number."""
    DELETE_ITEM = 3
    """What is no longer needed is removed."""


_Rows = dict[tuple[Stage, str], list[tuple[Any, ...]]]
"""The rows of each statement."""


class GroupChange(msgspec.Struct):
    """A group of one queue, as a transaction leaves it."""

    count: int
    first_at: Instant
    last_at: Instant
    hours: dict[Instant, int] = {}
    """How many more, or fewer, died in each hour."""
    grew: bool = False
    """A letter came to it: then nobody else changes it meanwhile. Letters may leave it in several transactions."""


class UnindexedLetter(NamedTuple):
    """What a dead letter can be found by, beside its payload."""

    n: int
    error_type: str
    text: str


class Batch:
    """One transaction."""

    __slots__ = (
        "_execute",
        "_left",
        "_unwritten",
        "arrivals",
        "below",
        "by_key",
        "by_name",
        "groups",
        "known_keys",
        "namespace",
        "namespace_key",
        "now",
        "numbers",
        "queues",
        "rolled_up",
        "session",
        "sizes",
        "store",
        "table",
        "tallies",
        "unworded",
    )

    def __init__(
        self,
        session: Session,
        now: Instant,
        queues: Queues,
        numbers: SequenceAllocator,
        namespace: str,
        store: str,
    ) -> None:
        self.session = session
        self.table = session.table
        self._execute: Callable[..., Any] = session.execute
        self._unwritten: _Rows = {}
        self._left: _Rows = {}
        self.now = now
        self.queues = queues
        self.by_name = queues.by_name
        self.by_key = queues.by_key
        self.numbers = numbers
        self.namespace = namespace
        self.namespace_key = queues.namespace_key
        self.store = store
        self.groups: dict[tuple[int, str], GroupChange] = {}
        """Those that changed, by queue and fingerprint. Written once, by `groups.write`."""
        self.unworded: dict[int, UnindexedLetter] = {}
        """New letters whose words are to be written, by number. Written once, by `letters.write_search_terms`."""
        self.tallies: defaultdict[int, list[int]] = defaultdict(_zeros)
        self.known_keys: dict[tuple[int, str], tuple[int, int, bytes] | None] = {}
        """What idempotency keys of a queue stand for, where somebody looked: number, tail and digest of the first."""
        self.sizes: dict[int, int] = {}
        """How many items queues held when the transaction began, where somebody asked."""
        self.arrivals: defaultdict[str, int] = defaultdict(int)
        self.below: dict[tuple[int, str], Instant] = {}
        """What was laid below where marks may be, by queue and kind: see `relational.low_water_marks`."""
        self.rolled_up: list[int] = []
        """Queues whose tallies were added to their counts."""

    def execute(self, statement: str, values: Any = ()) -> Any:
        """Execute a statement, after everything that was left to be written."""
        if self._unwritten:
            self.flush()
        return self._execute(statement, values)

    def look(self, statement: str, values: Any = ()) -> Any:
        """Execute a query about rows that nothing left to be written can concern."""
        return self._execute(statement, values)

    def walk(self, statement: str, values: Any = ()) -> Any:
        """The rows of a query, fetched as they are asked for, after everything that was left to be written."""
        self.flush()
        return self.session.walk(statement, values)

    @property
    def words(self) -> Words:
        """The index of words."""
        return self.session.words

    @property
    def sequence_is_time_ordered(self) -> bool:
        """Whether nobody draws a number below the instant he draws it at."""
        return self.session.sequence_is_time_ordered

    def write(self, statement: str, values: tuple[Any, ...], stage: Stage = Stage.INSERT_STATE) -> None:
        """Write a row now or together with others of its kind, in any case before anything else is executed.

        The stages come in their order. Within one, the rows of a statement come together, where its first one stood.
        """
        self._unwritten.setdefault((stage, statement), []).append(values)

    def leave(self, statement: str, values: tuple[Any, ...]) -> None:
        """Write a row at the end, together with all others of its kind: nothing in the transaction looks at it."""
        self._left.setdefault((Stage.INSERT_STATE, statement), []).append(values)

    def flush(self) -> None:
        """Write what was left to be written."""
        unwritten, self._unwritten = self._unwritten, {}
        for (_, statement), rows in sorted(unwritten.items(), key=lambda entry: entry[0][0]):
            if len(rows) == 1:
                self._execute(statement, rows[0])
            else:
                self.session.executemany(statement, rows)

    def queue(self, name: str) -> QueueRow:
        """A queue by name. Raises QueueNotFound."""
        row = self.by_name.get(name)
        if row is None:
            raise QueueNotFound(name, self.namespace)
        return row

    def draw(self, count: int = 1) -> int:
        """The first of `count` numbers in a row."""
        return self.numbers.next(count, self.now)

    def allocate_id(self) -> tuple[int, int, ItemId]:
        """A new id: its number, its tail, and itself."""
        number, tail = self.draw(), draw_salt() << PARTITION_BITS
        return number, tail, make_id(number, tail)

    def laid(self, queue: int, kind: str, at: Instant) -> None:
        """An entry was laid in an index that is read from its mark on."""
        if at < self.now - SLACK:
            self.below[queue, kind] = min(at, self.below.get((queue, kind), at))

    def count_delta(self, queue: int, name: str, change: int = 1) -> None:
        """Count something in a queue."""
        self.tallies[queue][_POSITION[name]] += change

    def tally_status(self, queue: int, status: Status, change: int) -> None:
        """Count items that came to a status, or left it."""
        self.tallies[queue][_STATUS_POSITION[status]] += change

    def tallied(self, queue: int, name: str) -> int:
        """What this transaction has counted so far."""
        return self.tallies[queue][_POSITION[name]] if queue in self.tallies else 0

    def mark_dead_queue(self, row: QueueRow) -> None:
        """Remember that the dead of another queue came to this one."""
        self.execute("UPDATE redrive_queue SET is_dead_queue = 1 WHERE key = ?", (row.key,))
        self.reread_queues((row.queue.name,))

    def reread_queues(self, names: Iterable[str]) -> None:
        """These queues were changed: see them as they are now, and let others know."""
        self.execute("UPDATE redrive_meta SET epoch = epoch + 1")
        self.queues = self.queues.reread(self, self.namespace, names)
        self.by_name, self.by_key = self.queues.by_name, self.queues.by_key

    def write_count_deltas(self) -> None:
        """Write the counts, one row for each queue that changed."""
        for queue, counts in self.tallies.items():
            if any(counts):
                self.write(_TALLY, (queue, *counts))
        self._unwritten.update(self._left)
        self.flush()


def draw_salt() -> int:
    """A salt that hardly anybody else draws. It need not be secret: tokens are."""
    return _random.getrandbits(SALT_BITS)


def retry_on_collision() -> None:
    """Begin another row of salts: a forked child must not draw those of its parent."""
    _random.seed()


def _zeros() -> list[int]:
    return [0] * len(COUNTED_COLUMNS)
