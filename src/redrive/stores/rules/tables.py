"""The tables of a namespace: feed, groups, operations, registrations, kept results."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import takewhile

from redrive.clock import Instant
from redrive.contract.admin_calls import Registration
from redrive.contract.queries import FeedPage, ReadFeed, matches_feed_query
from redrive.model.feed import FeedEntry
from redrive.model.filter import MAX_EXAMINED
from redrive.model.group import Group, hour_of
from redrive.model.ids import ItemId
from redrive.model.item import KeptResult
from redrive.model.operation import Operation
from redrive.stores.rules.indexes import Index
from redrive.stores.rules.record import DeadLetterKey, Record


class Feed:
    """The feed of a namespace."""

    def __init__(self) -> None:
        self._entries: list[FeedEntry] = []

    def add(self, entry: FeedEntry) -> None:
        """Append an entry; its number is larger than every other."""
        self._entries.append(entry)

    def forget(self, until: int, limit: int) -> int:
        """Remove at most `limit` entries of that instant or earlier. Returns how many."""
        count = sum(1 for _ in takewhile(lambda entry: entry.at <= until, self._entries[:limit]))
        del self._entries[:count]
        return count

    def read(self, query: ReadFeed, ids: Set[ItemId] | None) -> FeedPage:
        """Return a page. `ids` are all those of the item that the query names."""
        after = 0 if query.after is None else query.after
        start = bisect_right(self._entries, after, key=lambda entry: entry.number)
        end = len(self._entries)
        if query.before is not None:
            end = bisect_left(self._entries, query.before, key=lambda entry: entry.number)
        between = self._entries[start:end]
        backwards = query.before is not None and query.after is None
        if backwards:
            between.reverse()
        found: list[FeedEntry] = []
        looked = 0
        for entry in between[:MAX_EXAMINED]:
            if len(found) == query.limit:
                break
            looked += 1
            if matches_feed_query(query, ids, entry):
                found.append(entry)
        last = max((entry.number for entry in between[:looked]), default=after)
        return FeedPage(tuple(reversed(found) if backwards else found), last, looked < len(between))


@dataclass(slots=True)
class _Members:
    """The dead letters of one cause in one queue."""

    first_at: Instant
    last_at: Instant
    items: dict[int, Record] = field(default_factory=dict)
    """Items by death number."""


class Groups:
    """The dead letters of a namespace by queue and cause."""

    def __init__(self) -> None:
        self._members: defaultdict[str, dict[str, _Members]] = defaultdict(dict)

    def join(self, letter: DeadLetterKey, item: Record) -> None:
        """Add an item that became a dead letter."""
        at = letter.died_at
        members = self._members[letter.queue].setdefault(letter.fingerprint, _Members(at, at))
        members.first_at = min(members.first_at, at)
        members.last_at = max(members.last_at, at)
        members.items[letter.number] = item

    def leave(self, letter: DeadLetterKey) -> None:
        """Remove an item that is no longer a dead letter."""
        members = self._members[letter.queue][letter.fingerprint]
        del members.items[letter.number]
        if not members.items:
            del self._members[letter.queue][letter.fingerprint]

    def count(self, queues: Iterable[str], fingerprint: str | None) -> int:
        """Return the number of dead letters of some queues, of one cause or of all."""
        return sum(
            len(members.items)
            for queue in queues
            for cause, members in self._members[queue].items()
            if fingerprint is None or cause == fingerprint
        )

    def of(self, queues: Iterable[str], limit: int) -> tuple[Group, ...]:
        """Return the groups of some queues, largest first, then newest, then by fingerprint."""
        found: defaultdict[str, dict[str, _Members]] = defaultdict(dict)
        for queue in queues:
            for fingerprint, members in self._members[queue].items():
                found[fingerprint][queue] = members
        groups = [_group(fingerprint, by_queue) for fingerprint, by_queue in found.items()]
        groups.sort(key=lambda group: (-group.count, -group.last_at, group.fingerprint))
        return tuple(groups[:limit])


def _group(fingerprint: str, by_queue: dict[str, _Members]) -> Group:
    items = {number: item for members in by_queue.values() for number, item in members.items.items()}
    hours = Counter(hour_of(item.deaths[-1].at) for item in items.values())
    sizes = sorted((-len(members.items), queue) for queue, members in by_queue.items())
    newest = items[max(items)]
    cause = newest.deaths[-1].cause
    return Group(
        fingerprint=fingerprint,
        title=cause.group_title,
        error_type=cause.error_type,
        error_class=cause.error_class,
        count=len(items),
        first_at=min(members.first_at for members in by_queue.values()),
        last_at=max(members.last_at for members in by_queue.values()),
        queues={queue: -size for size, queue in sizes},
        hours={hour: hours[hour] for hour in sorted(hours)},
        sample=newest.id,
    )


class OperationTable:
    """Operations by id, in the order in which they were started."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._changed: dict[str, dict[ItemId, None]] = {}

    def get(self, id: str) -> Operation | None:
        """Return the operation of that id."""
        return self._operations.get(id)

    def save(self, operation: Operation) -> None:
        """Save its current state."""
        self._operations[operation.id] = operation

    def newest(self) -> Iterator[Operation]:
        """Return all operations, newest first."""
        return reversed(self._operations.values())

    def at_work(self) -> Iterator[Operation]:
        """Return active operations, newest first."""
        return (each for each in self.newest() if each.is_active)

    def forget(self, until: int, limit: int) -> int:
        """Remove at most `limit` operations that ended at that instant or earlier. Returns how many."""
        over = [each.id for each in self._operations.values() if each.ended and each.updated_at <= until][:limit]
        for id in over:
            del self._operations[id]
            self._changed.pop(id, None)
        return len(over)

    def next_at(self) -> Instant | None:
        """Return the earliest instant at which a step may run."""
        return min((each.next_at for each in self._operations.values() if each.is_running), default=None)

    def remember(self, id: str, item: ItemId) -> None:
        """Record that an operation changed the item that had this id then."""
        self._changed.setdefault(id, {})[item] = None

    def changed(self, id: str, item: Record) -> bool:
        """Return whether an operation changed this item, under any of its ids."""
        changed = self._changed.get(id, {})
        return any(each in changed for each in item.ids)


class RegistrationTable:
    """Registrations by kind and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Registration] = {}

    def get(self, kind: str, name: str) -> Registration | None:
        """Return the registration of that name."""
        return self._known.get((kind, name))

    def of(self, kind: str) -> Iterable[Registration]:
        """Return all registrations of a kind, in no order."""
        return [each for each in self._known.values() if each.kind == kind]

    def save(self, registration: Registration) -> None:
        """Save a registration, replacing the previous one."""
        self._known[registration.kind, registration.name] = registration

    def remove(self, kind: str, name: str) -> None:
        """Remove a registration that exists."""
        del self._known[kind, name]

    def forget(self, now: Instant, limit: int) -> int:
        """Remove at most `limit` expired registrations. Returns how many."""
        over = [key for key, each in self._known.items() if not each.is_alive(now)][:limit]
        for key in over:
            del self._known[key]
        return len(over)


class ResultTable:
    """Kept results by every id of their item."""

    def __init__(self) -> None:
        self._known: dict[ItemId, tuple[KeptResult, Instant]] = {}
        self._until: Index[ItemId] = Index()

    def get(self, id: ItemId, now: Instant) -> KeptResult | None:
        """Return the result, until it expires."""
        result, until = self._known.get(id, (None, now))
        return result if until > now else None

    def keep(self, ids: Sequence[ItemId], result: KeptResult, until: Instant) -> None:
        """Keep a result under these ids."""
        for id in ids:
            self._known[id] = (result, until)
            self._until.add(id, (until,))

    def forget(self, now: Instant, limit: int) -> int:
        """Remove at most `limit` expired results. Returns how many."""
        over = self._until.until(now, limit)
        for id in over:
            self._until.discard(id)
            del self._known[id]
        return len(over)
