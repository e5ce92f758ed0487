"""State shared by the calls of one transaction: its instant, queues, number allocator and pending writes."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum
from typing import Any, ClassVar, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.errors import QueueNotFound
from redrive.model.gate import Gates
from redrive.model.ids import (
    NUMBERS_PER_MICROSECOND,
    PARTITION_BITS,
    SALT_BITS,
    ItemId,
    make_id,
    parse_id,
    result_topic,
)
from redrive.model.item import Status
from redrive.model.queue import Queue
from redrive.stores.relational.low_water_marks import SLACK
from redrive.stores.relational.queue_rows import QueueRow, Queues, encode_values, with_gates, write_queue
from redrive.stores.relational.session import SearchIndex, Session

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
    "redriven_total",
    "archived_total",
    "exhausted_total",
    "captured_total",
)
"""The columns of redrive_count_delta: changes of counts, written per batch and rolled up by maintenance."""
ADD_COUNTS = ", ".join(f"{name} = there.{name} + excluded.{name}" for name in COUNTED_COLUMNS)
"""Assignments for an insert into redrive_count, as `there`, if the queue has a row."""

SALT_STEP = 0x4F1BBCDCBFA5
"""Salts of one batch are this far apart (modulo 2^47), so that the first digits of their ids differ."""
SALT_MASK = (1 << SALT_BITS) - 1

_INSERT_COUNT_DELTA = (
    f"INSERT INTO redrive_count_delta (queue, {', '.join(COUNTED_COLUMNS)}) VALUES (?{', ?' * len(COUNTED_COLUMNS)})"
)
_EARLIER = "SELECT old_item_no, old_id_suffix FROM redrive_former_id WHERE item_no IN carray(?)"
_POSITION = {name: index for index, name in enumerate(COUNTED_COLUMNS)}
_STATUS_POSITION = {status: _POSITION[status.value] for status in Status if status.value in _POSITION}
_random = random.Random()


class SequenceAllocator:
    """Allocates the numbers of ids and queue positions: increasing, and never twice in one database."""

    def __init__(self) -> None:
        self._last = 0

    def raise_to(self, number: int) -> None:
        """Do not allocate numbers up to this one again."""
        self._last = max(self._last, number)

    def next(self, count: int, now: Instant) -> int:
        """Return the first of `count` consecutive numbers."""
        first = max(self._last + 1, now * NUMBERS_PER_MICROSECOND)
        self._last = first + count - 1
        return first


class Stage(IntEnum):
    """The order of writes that are flushed together. An item is changed once between two flushes."""

    DELETE_STATE = 0
    """Delete the state row: first, so that a row with the same key can be inserted."""
    INSERT_STATE = 1
    """Insert the new state row, history and the like."""
    RENUMBER = 2
    """Update rows of a moved item to its new number."""
    DELETE_ITEM = 3
    """Delete rows that are no longer needed."""


_Rows = dict[str, list[tuple[Any, ...]]]
"""The rows of each statement."""


class GroupChange(msgspec.Struct):
    """A group of one queue after the changes of a transaction."""

    count: int = 0
    """The change of the count; the count itself once `grew` is set."""
    first_at: Instant = Instant(0)
    last_at: Instant = Instant(0)
    hours: dict[Instant, int] = {}
    """Change of the count of each hour."""
    grew: bool = False
    """True if it gained a dead letter: then the row is locked. Concurrent transactions may each remove letters."""


class UnindexedLetter(NamedTuple):
    """A new dead letter whose search terms are not written yet."""

    item_no: int
    error_type: str
    text: str


class KnownKey(NamedTuple):
    """An idempotency key that is known, with the item that was put first under it."""

    item_no: int
    id_suffix: int
    digest: bytes
    ends_with_item: bool


LEFT = object()
"""The result of a call that is left to an exclusive transaction."""


class Batch:
    """One transaction."""

    has_lanes: ClassVar[bool] = True
    """True if frequent calls have lanes. Tests set it to False, to compare lanes with the rules."""

    __slots__ = (
        "_ended",
        "_execute",
        "_left",
        "_unwritten",
        "arrivals",
        "below",
        "by_key",
        "by_name",
        "changes",
        "count_deltas",
        "gates_changed",
        "groups",
        "has_left",
        "is_shared",
        "known_keys",
        "namespace",
        "namespace_key",
        "now",
        "numbers",
        "queues",
        "replying",
        "rolled_up",
        "session",
        "sizes",
        "store",
        "table",
        "unindexed",
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
        self._unwritten: dict[Stage, _Rows] = {}
        self._left: _Rows = {}
        self._ended: list[int] = []
        """Numbers of items that ended and may have moved before."""
        self.now = now
        self.queues, self.by_name, self.by_key = queues, queues.by_name, queues.by_key
        self.numbers = numbers
        self.namespace = namespace
        self.namespace_key = queues.namespace_key
        self.store = store
        self.groups: dict[tuple[int, str], GroupChange] = {}
        """Changed groups by queue and fingerprint, written by `dead_letters.write_groups`."""
        self.unindexed: dict[int, UnindexedLetter] = {}
        """New dead letters by number, written by `dead_letters.write_search_terms`."""
        self.count_deltas: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(COUNTED_COLUMNS))
        self.known_keys: dict[tuple[int, str], KnownKey | None] = {}
        """Idempotency keys that were read by queue and key, while puts are executed; None: not known."""
        self.sizes: dict[int, int] = {}
        """Sizes of queues at the start of the transaction, if read."""
        self.arrivals: defaultdict[str, int] = defaultdict(int)
        self.below: dict[tuple[int, str], Instant] = {}
        """Lowest inserted instant below possible marks, by queue and kind: see `relational.low_water_marks`."""
        self.rolled_up: list[int] = []
        """Queues whose count deltas were rolled up."""
        self.replying: set[int] = set()
        """Queues that received their first item which names a queue for replies."""
        self.has_left = False
        """True if calls were left to another transaction. The calls that follow them are then left too."""
        self.is_shared = False
        """True if other transactions of the namespace may run concurrently."""
        self.changes = 0
        """Number of rows submitted for writing, and of changes of items by the rules."""
        self.gates_changed = False
        """True if `set_gates` wrote the gates of a queue."""

    def execute(self, statement: str, values: Any = ()) -> Any:
        """Flush pending writes, then execute a statement."""
        if self._unwritten:
            self.flush()
        return self._execute(statement, values)

    def execute_unflushed(self, statement: str, values: Any = ()) -> Any:
        """Execute a query without a flush: it must not read rows of pending writes."""
        return self._execute(statement, values)

    def request(self, statement: str, values: Any = ()) -> Callable[[], Any]:
        """Flush pending writes, then make a request. Nothing may be written before its rows are read."""
        if self._unwritten:
            self.flush()
        return self.session.request(statement, values)

    def stream(self, statement: str, values: Any = ()) -> Any:
        """Flush pending writes, then return the rows of a query as an iterator."""
        self.flush()
        return self.session.stream(statement, values)

    @property
    def search_index(self) -> SearchIndex:
        """The search index."""
        return self.session.search_index

    @property
    def sequence_is_time_ordered(self) -> bool:
        """True if every allocated number is at or above the instant of its allocation."""
        return self.session.sequence_is_time_ordered

    def write(self, statement: str, values: tuple[Any, ...], stage: Stage = Stage.INSERT_STATE) -> None:
        """Add a row to the pending writes, which are flushed before the next statement is executed.

        Stages are written in order; in each, rows of one statement together, by the first use of the statements.
        """
        self.changes += 1
        self._unwritten.setdefault(stage, {}).setdefault(statement, []).append(values)

    def write_all(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows to the pending writes."""
        self.changes += len(rows)
        self._unwritten.setdefault(Stage.INSERT_STATE, {}).setdefault(statement, []).extend(rows)

    def write_last(self, statement: str, *rows: tuple[Any, ...]) -> None:
        """Write rows at the end of the transaction: nothing in it reads such rows."""
        self._left.setdefault(statement, []).extend(rows)

    def flush(self) -> None:
        """Execute the pending writes."""
        if self._ended:
            self._wake_under_earlier_ids()
        unwritten, self._unwritten = self._unwritten, {}
        for stage in sorted(unwritten):
            for statement, rows in unwritten[stage].items():
                if len(rows) == 1:
                    self._execute(statement, rows[0])
                elif rows:
                    self.session.executemany(statement, rows)

    def queue(self, name: str) -> QueueRow:
        """Return a queue by name. Raises QueueNotFound."""
        row = self.by_name.get(name)
        if row is None:
            raise QueueNotFound(name, self.namespace)
        return row

    def allocate(self, count: int = 1) -> int:
        """Return the first of `count` consecutive numbers."""
        return self.numbers.next(count, self.now)

    def allocate_id(self) -> tuple[int, int, ItemId]:
        """Allocate an id. Returns its number, its suffix and the id."""
        number, id_suffix = self.allocate(), random_salt() << PARTITION_BITS
        return number, id_suffix, make_id(number, id_suffix)

    def wake_awaiting(self, id: ItemId, *, has_past: bool = False) -> None:
        """Wake callers that await the end of an item; one that may have moved, also under its earlier ids.

        These are read before the next flush, for all items together: a flush may move or delete them.
        """
        self.arrivals[result_topic(id)] += 1
        if has_past:
            self._ended.append(parse_id(id)[0])

    def _wake_under_earlier_ids(self) -> None:
        ended, self._ended = self.table(self._ended), []
        for old, id_suffix in self._execute(_EARLIER, (ended,)).fetchall():
            self.arrivals[result_topic(make_id(old, id_suffix))] += 1

    def lower_mark(self, queue: int, kind: str, at: Instant) -> None:
        """Record that an index entry was inserted that may be below its low-water mark."""
        if at < self.now - SLACK:
            self.below[queue, kind] = min(at, self.below.get((queue, kind), at))

    def count_delta(self, queue: int, name: str, change: int = 1) -> None:
        """Change a count of a queue."""
        self.count_deltas[queue][_POSITION[name]] += change

    def count_status(self, queue: int, status: Status, change: int) -> None:
        """Change the count of items with a status."""
        self.count_deltas[queue][_STATUS_POSITION[status]] += change

    def counted_so_far(self, queue: int, name: str) -> int:
        """Return the change of a count in this transaction so far."""
        return self.count_deltas[queue][_POSITION[name]] if queue in self.count_deltas else 0

    def mark_dead_queue(self, row: QueueRow) -> None:
        """Record that this queue has received dead items of another queue."""
        self.write_queues([msgspec.structs.replace(row.queue, is_dead_queue=True)])

    def has_replies(self, row: QueueRow) -> bool:
        """Return whether an item that names a queue for replies ever came to this queue."""
        return row.has_replies or row.key in self.replying

    def mark_replies(self, row: QueueRow) -> None:
        """Record that an item which names a queue for replies came to this queue."""
        if not row.has_replies:
            self.replying.add(row.key)

    def set_gates(self, row: QueueRow, gates: Gates) -> None:
        """Write the gates of a queue. The transaction has its row locked, or runs alone."""
        self.execute("UPDATE redrive_queue SET gates = ? WHERE key = ?", (encode_values(gates), row.key))
        self.gates_changed = True
        self.see_gates(row, gates)

    def see_gates(self, row: QueueRow, gates: Gates) -> None:
        """Replace the gates of the queue for the rest of this transaction."""
        self._replace_queues({**self.by_name, row.queue.name: with_gates(row, gates)})

    def write_marks(self) -> None:
        """Write which queues have replies: last and in order, so that concurrent transactions do not deadlock. For the
        same reason the epoch of changed gates is incremented here.

        The queues of this transaction keep their old epoch: another process may have marked others since they were
        read, and then the next transaction reads all again.
        """
        if not self.replying and not self.gates_changed:
            return
        for key in sorted(self.replying):
            self.execute("UPDATE redrive_queue SET has_replies = 1 WHERE key = ?", (key,))
        self.execute("UPDATE redrive_meta SET epoch = epoch + 1")
        self._replace_queues(
            {
                name: msgspec.structs.replace(row, has_replies=self.has_replies(row))
                for name, row in self.by_name.items()
            }
        )

    def _replace_queues(self, by_name: dict[str, QueueRow]) -> None:
        self.queues = Queues(by_name, self.queues.epoch, self.queues.namespace_key)
        self.by_name, self.by_key = self.queues.by_name, self.queues.by_key

    def write_queues(self, queues: Collection[Queue]) -> None:
        """Write queues that are new or have changed, and replace them for the rest of this transaction."""
        for queue in queues:
            write_queue(self, self.namespace, queue)
        self.reread_queues([queue.name for queue in queues])

    def reread_queues(self, names: Iterable[str]) -> None:
        """Read changed queues again, and increment the epoch so that other processes do too."""
        self.execute("UPDATE redrive_meta SET epoch = epoch + 1")
        self.queues = self.queues.reread(self, self.namespace, names)
        self.by_name, self.by_key = self.queues.by_name, self.queues.by_key

    def write_count_deltas(self) -> None:
        """Write the changes of counts, one row per queue, and all that is pending."""
        rows = [(queue, *counts) for queue, counts in self.count_deltas.items() if any(counts)]
        if self._left or self._unwritten or self._ended or len(rows) != 1:
            self._unwritten.setdefault(Stage.INSERT_STATE, {}).update(self._left)
            self.write_all(_INSERT_COUNT_DELTA, rows)
            self.flush()
        else:
            self._execute(_INSERT_COUNT_DELTA, rows[0])


def random_salt() -> int:
    """Return a random salt. It need not be secret: tokens are."""
    return _random.getrandbits(SALT_BITS)


def reseed_after_fork() -> None:
    """Reseed the salts: a forked child must not repeat those of its parent."""
    _random.seed()
