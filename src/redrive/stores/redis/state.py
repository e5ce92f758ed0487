"""The state that the rules of `redrive.stores.rules` work on, read from Redis on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence

from redrive.contract.queries import AuditEntry
from redrive.model.filter import MAX_EXAMINED, Filter, Order
from redrive.model.holder import holder_names
from redrive.model.ids import ItemId
from redrive.model.item import Status
from redrive.model.limits import make_address
from redrive.model.queue import Queue, QueueSettings
from redrive.stores.redis.codec import DerivedWords, encode
from redrive.stores.redis.groups import RedisGroups
from redrive.stores.redis.indexes import DeadLetterIndexes, walk
from redrive.stores.redis.keys import body_of, digits, long, short
from redrive.stores.redis.queue_state import Queues
from redrive.stores.redis.tables import Hash, RedisFeed, RedisOperations, RedisRegistrations, RedisResults
from redrive.stores.redis.unit_of_work import PAGE, Session
from redrive.stores.rules.find import named
from redrive.stores.rules.queue_state import QueueState
from redrive.stores.rules.record import Record
from redrive.stores.rules.state import State

_KEYS_PER_COMMAND = 500
"""Keys that one command deletes."""


class Items(MutableMapping[ItemId, Record]):
    """Items by every id that they have or had."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def __getitem__(self, id: ItemId) -> Record:
        item = self._session.record(id)
        if item is None:
            raise KeyError(id)
        return item

    def __setitem__(self, id: ItemId, item: Record) -> None:
        self._session.add_id(id, item)

    def __delitem__(self, id: ItemId) -> None:
        self._session.remove_id(id)

    def __iter__(self) -> Iterator[ItemId]:
        raise NotImplementedError("a namespace is not walked by id")

    def __len__(self) -> int:
        raise NotImplementedError("a namespace is not counted by id")


class RedisState(State):
    """The queues and items of one namespace in one transaction or one query."""

    queues: Queues
    by_number: DeadLetterIndexes
    letters: DeadLetterIndexes
    archived: DeadLetterIndexes
    operations: RedisOperations

    def __init__(
        self, session: Session, namespace: str, store: str, queues: Mapping[str, Queue], last: int = 0, version: int = 0
    ) -> None:
        super().__init__(
            namespace,
            store,
            queues=Queues(session, queues),
            items=Items(session),
            by_number=DeadLetterIndexes(session, "all"),
            letters=DeadLetterIndexes(session, "dead_letters"),
            archived=DeadLetterIndexes(session, "archived_dead_letters"),
            groups=RedisGroups(session),
            feed=RedisFeed(session),
            operations=RedisOperations(session),
            registrations=RedisRegistrations(session),
            results=RedisResults(session),
            last_version=version,
        )
        self._session = session
        self._move_counts: Hash[str, int] = Hash(
            session, session.keys.of("move_targets"), lambda count: str(count).encode(), int
        )
        """Counts of items that are moving, by queue in another store."""
        self._newly_held: list[Record] = []
        """Items that this transaction held. Some may have been released since."""
        self._last = last
        self._version = version

    # Reading

    def settings(self) -> dict[str, QueueSettings]:
        return {name: queue.settings for name, queue in self.queues.present().items()}

    def prefetch(self, queue: str, kind: str, names: Sequence[str]) -> None:
        """Read the entries of these names in a hash of a queue, and the items that they name."""
        if names and queue in self.queues.current_values:
            table = getattr(self.queues[queue], kind)
            table.load(names)
            self._session.load(known.id for name in names if (known := table.get(name)) is not None)

    def load_keys(self, queue: QueueState, keys: Sequence[str]) -> None:
        if keys:
            queue.keys.load(keys)  # type: ignore[attr-defined]
            known = (queue.keys[key] for key in keys)
            self._session.load(each.id for each in known if each.ends_with_item)

    def held_ids(self, held_by: str, limit: int) -> list[ItemId]:
        stored = self._session.first_items(self._held_key(held_by), limit)
        items = {item.id: item for item in (*stored, *self._newly_held)}
        found = (item for item in items.values() if item.is_found_by_holder)
        return [item.id for item in found if held_by in holder_names(item.holders)][:limit]

    def walk(self, where: Filter, order: Order, after: int | None) -> Iterator[tuple[int, Record]]:
        words = where.words is not None
        if where.ids is not None:
            found = self._named(where.ids, where, order, after)
        elif where.held_by is not None and len(held := self.held_ids(where.held_by, MAX_EXAMINED + 1)) <= MAX_EXAMINED:
            found = self._named(held, where, order, after)
        elif where.id_prefix is not None and len(ids := self._ids_with_prefix(where, where.id_prefix)) <= MAX_EXAMINED:
            found = self._named(ids, where, order, after)
        elif where.status is Status.DEAD and where.fingerprint is not None:
            keys = [self._session.keys.of("group", queue, where.fingerprint) for queue in self._queues_of(where)]
            found = walk(self._session, keys, order, after, words=words)
        else:
            found = self._index_for(where).walk(self._queues_of(where), order, after, words=words)
        return found if where.operation is None else self._changed_by(where.operation, found)

    def _ids_with_prefix(self, where: Filter, prefix: str) -> list[ItemId]:
        """Return ids that start with `prefix`; at most one more than a call examines."""
        ids: list[ItemId] = []
        for queue in self._queues_of(where):
            ids += self._session.ids_with_prefix(queue, prefix, MAX_EXAMINED + 1 - len(ids))
        return ids

    def _queues_of(self, where: Filter) -> tuple[str, ...]:
        return tuple(self.queues.current_values) if where.queue is None else (where.queue,)

    def _index_for(self, where: Filter) -> DeadLetterIndexes:
        if not where.is_for_dead_letters:
            return self.by_number
        return self.letters if where.status is Status.DEAD else self.archived

    def _named(
        self, ids: Sequence[ItemId], where: Filter, order: Order, after: int | None
    ) -> Iterator[tuple[int, Record]]:
        self._session.load(ids, words=where.words is not None)
        return named(self, ids, where, order, after)

    def _changed_by(self, operation: str, found: Iterator[tuple[int, Record]]) -> Iterator[tuple[int, Record]]:
        page: list[tuple[int, Record]] = []
        for each in found:
            page.append(each)
            if len(page) == PAGE:
                yield from self._changed_among(operation, page)
                page = []
        yield from self._changed_among(operation, page)

    def _changed_among(self, operation: str, page: list[tuple[int, Record]]) -> list[tuple[int, Record]]:
        changed = self.operations.changed_among(operation, [item for _, item in page])
        return [each for each, was_changed in zip(page, changed, strict=True) if was_changed]

    def destinations(self) -> list[str]:
        (raw,) = self._session.fetch(("HKEYS", self._session.keys.of("move_targets")))
        return sorted(map(bytes.decode, raw))

    def moving_ids(self, to: str, limit: int) -> list[ItemId]:
        return [item.id for item in self._session.first_items(self._session.keys.of("moving", to), limit)]

    def open_move_ids(self, queue: str, store: str, after: str, limit: int) -> list[ItemId]:
        lowest = f"({after}" if after else "-"
        (raw,) = self._session.fetch(
            ("ZRANGEBYLEX", self._open_moves_key(queue, store), lowest, "+", "LIMIT", 0, limit)
        )
        return [ItemId(id.decode()) for id in raw]

    # Writing

    def open_move(self, queue: str, store: str, source_id: ItemId) -> None:
        self._session.write("ZADD", self._open_moves_key(queue, store), 0, source_id)
        self._session.write("SADD", self._session.keys.of("open_move_stores", queue), store)

    def close_move(self, queue: str, store: str, source_id: ItemId) -> None:
        self._session.write("ZREM", self._open_moves_key(queue, store), source_id)

    def forget_open_moves(self, queue: str) -> None:
        key = self._session.keys.of("open_move_stores", queue)
        (stores,) = self._session.fetch(("SMEMBERS", key))
        self._session.write("UNLINK", key, *(self._open_moves_key(queue, store.decode()) for store in stores))

    def remove_all(self, queue: str) -> None:
        """Remove all items by a few commands, for any number of items: the index of the queue is renamed, so its items
        are no longer found. `ApplyRetention` frees their memory."""
        keys = self._session.keys
        (causes,) = self._session.fetch(("HKEYS", keys.of("groups", queue)))
        for start in range(0, len(causes), _KEYS_PER_COMMAND):
            some = (keys.of("group", queue, cause.decode()) for cause in causes[start : start + _KEYS_PER_COMMAND])
            self._session.write("UNLINK", *some)
        if self.queues[queue].counts.total():
            number = digits(short(self.draw_number()))
            self._session.write("RENAME", keys.of("all", queue), keys.of("removed", number))
            self._session.write("RPUSH", keys.of("removed"), number)

    def sweep_removed(self, limit: int) -> int:
        (lists,) = self._session.fetch(("LRANGE", self._session.keys.of("removed"), 0, -1))
        left = limit
        for number in lists:
            if left:
                left -= self._sweep(number.decode(), left)
        return limit - left

    def _sweep(self, number: str, limit: int) -> int:
        """Remove up to `limit` items of a deleted queue, and the rest of its keys after the last. Return how many."""
        keys = self._session.keys
        items = self._session.removed_items(keys.of("removed", number), limit)
        for item in items:
            self._session.write("ZREM", keys.of("removed", number), digits(body_of(item.ids[0])))
            if item.is_found_by_holder:
                self._unfile_held(item)
            if item.route is not None:
                self._unfile_moving(item)
            for id in item.ids:
                self._session.remove_id(id)
        if len(items) < limit:
            self._session.write("LREM", keys.of("removed"), 1, number)
            self._session.write("UNLINK", keys.of("removed", number))
        return len(items)

    def index_words(self, item: Record) -> None:
        """Index the words. Those of an item that is dead in place are not stored: the fast path writes its deaths
        too."""
        super().index_words(item)
        if item.status is Status.DEAD:
            item.words = DerivedWords(item.words)

    def draw_number(self) -> int:
        self._last = max(self._last + 1, self.now)
        return long(self._last)

    def write_audit(
        self, actor: str, verb: str, queue: str | None, ids: tuple[ItemId, ...], count: int, note: str | None = None
    ) -> None:
        entry = AuditEntry(0, self.now, actor, verb, queue, ids, count, note)
        self._session.write("RPUSH", self._session.keys.of("audit"), encode(entry))

    def arrived(self) -> dict[str, int]:
        """Return how many items became leasable, by queue; 0 if there is only a new time to wait for. Also the result
        topics of items that ended."""
        arrived = {
            name: self.arrivals[name]
            for name in self.arrivals.keys() | self.retimed
            if name in self.queues.current_values and not self.queues[name].value.paused
        }
        return {**arrived, **dict.fromkeys(self.ended, 1)}

    def flush(self) -> int:
        """Add writes for all changes. Return the last number allocated."""
        self._session.write_records()
        meta = self._session.keys.meta
        if self.queues.write():
            # An allocated number is unique, even if a replica took over before it had received the last ones.
            self._session.write("HSET", meta, "epoch", short(self.draw_number()))
        if self.last_version != self._version:
            self._session.write("HSET", meta, "version", self.last_version)
        return self._last

    def _file_held(self, item: Record) -> None:
        self._newly_held.append(item)
        for name, _ in item.holders:
            self._session.write("ZADD", self._held_key(name), short(item.number), digits(body_of(item.ids[0])))

    def _unfile_held(self, item: Record) -> None:
        for name, _ in item.holders:
            self._session.write("ZREM", self._held_key(name), digits(body_of(item.ids[0])))

    def _file_moving(self, item: Record) -> None:
        assert item.route is not None
        to, body = item.route.to, digits(body_of(item.ids[0]))
        # By a new number: several items may leave at one instant.
        self._session.write("ZADD", self._session.keys.of("moving", to), short(self.draw_number()), body)
        self._move_counts[to] = self._move_counts.get(to, 0) + 1

    def _unfile_moving(self, item: Record) -> None:
        assert item.route is not None
        to, body = item.route.to, digits(body_of(item.ids[0]))
        self._session.write("ZREM", self._session.keys.of("moving", to), body)
        self._move_counts[to] -= 1
        if not self._move_counts[to]:
            del self._move_counts[to]

    def _open_moves_key(self, queue: str, store: str) -> str:
        return self._session.keys.of("open_moves", make_address(queue, store))

    def _reindex_times(self, queue: QueueState, item: Record) -> None:
        """Wake waiters without a check whether the item is due first: a wake-up too many is harmless."""
        self.retimed.add(queue.name)

    def _held_key(self, held_by: str) -> str:
        return self._session.keys.of("held", held_by)
