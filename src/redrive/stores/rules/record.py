"""The item of the rules, and the values that queries and calls return for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.contract.queries import Overdue
from redrive.model.arrival import Move, MoveRoute
from redrive.model.death import DeadReason
from redrive.model.filter import FilterSubject
from redrive.model.holder import Holders, holder_names, lasting_holders
from redrive.model.ids import ItemId, Token, parse_id
from redrive.model.item import (
    NO_OVERRIDES,
    OPEN_STATUSES,
    WAITING_STATUSES,
    Counters,
    Death,
    HistoryEntry,
    HistoryEvent,
    Item,
    Lease,
    Overrides,
    Result,
    Settled,
    Status,
)
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.model.manual_change import ItemSnapshot, death_text, status_without_lease
from redrive.model.search_terms import search_terms_of

_INTO_THE_ARCHIVE = (HistoryEvent.ARCHIVED, HistoryEvent.DROPPED)


@dataclass(slots=True)
class LeaseState:
    """The lease on an active item."""

    token: Token
    worker: str | None
    leased_at: Instant
    deadline: Instant
    dead_reason: DeadReason | None = None
    """Reason of the death of an item that was leased although it is dead."""


class History:
    """The first and the last entries in full; those in between are only counted."""

    __slots__ = ("_first", "_last", "_omitted")

    def __init__(self, entries: Iterable[HistoryEntry] = (), omitted: int = 0) -> None:
        self._first: list[HistoryEntry] = []
        self._last: deque[HistoryEntry] = deque(maxlen=HISTORY_LAST)
        self._omitted = omitted
        for entry in entries:
            self.add(entry)

    def add(self, entry: HistoryEntry) -> None:
        """Append an entry."""
        if len(self._first) < HISTORY_FIRST:
            self._first.append(entry)
            return
        self._omitted += len(self._last) == HISTORY_LAST
        self._last.append(entry)

    def entries(self) -> tuple[HistoryEntry, ...]:
        """Return the kept entries, oldest first."""
        return (*self._first, *self._last)

    @property
    def omitted(self) -> int:
        """The number of entries that are only counted."""
        return self._omitted

    def last(self) -> HistoryEntry | None:
        """Return the newest entry."""
        entries = self.entries()
        return entries[-1] if entries else None

    def copy(self) -> History:
        """Return a copy for another item."""
        return History(self.entries(), self.omitted)


class DeadLetterKey(NamedTuple):
    """The position of a dead letter: its queue, cause, death number and time of death."""

    queue: str
    fingerprint: str
    number: int
    died_at: Instant


@dataclass(slots=True, eq=False)
class Record:
    """The current state of an item. Only `State` changes its status, queue and id, so that the indexes stay
    consistent."""

    ids: list[ItemId]
    """Every id it has had, the current one last."""
    queue: str
    status: Status
    payload: bytes
    content_type: str
    headers: Mapping[str, str]
    priority: int
    put_at: Instant
    seq: int
    """Position among items of the same priority and ready_at."""
    ready_at: Instant
    """Earliest time of a lease. Kept while it is leased or archived, so that it can return to its old position."""
    expire_timeout: int | None
    """The timeout of the put; None uses that of its current queue."""
    expire_deadline: Instant | None
    holders: Holders = ()
    idempotency_key: str | None = None
    overrides: Overrides = NO_OVERRIDES
    source_id: ItemId | None = None
    origin_id: ItemId | None = None
    origin_queue: str | None = None
    counters: Counters = field(default_factory=Counters)
    grant: LeaseState | None = None
    first_leased_at: Instant | None = None
    completed_at: Instant | None = None
    result: Result | None = None
    archived_from: Status | None = None
    """The status before it was archived, which a restore sets again (archived)."""
    history: History = field(default_factory=History)
    deaths: list[Death] = field(default_factory=list)
    is_in_dead_queue: bool = False
    """True if it is in a dead queue because it died, and was not redriven from there."""
    death_number: int = 0
    """Allocated at its last death, or when it was archived as no dead letter: its position among such items."""
    words: frozenset[str] = frozenset()
    """Search terms of a dead letter or an archived one."""
    home_store: str | None = None
    """The store that it came from as a dead letter, and to which a redrive returns it."""
    route: MoveRoute | None = None
    """Destination and reason of the move (moving)."""
    damage: str | None = None
    """The place of a stored value that cannot be read, for which the record has a substitute."""
    has_unknown_status: bool = False
    """True if that is the state or the content. It then meets every condition except those of the index."""

    @property
    def id(self) -> ItemId:
        """The current id."""
        return self.ids[-1]

    @property
    def worker(self) -> str | None:
        """The worker that holds the lease."""
        return None if self.grant is None else self.grant.worker

    @property
    def was_dead(self) -> bool:
        """True if it was leased although it is dead."""
        return self.grant is not None and self.grant.dead_reason is not None

    @property
    def status_without_lease(self) -> Status:
        """The status, or the one after its lease is revoked."""
        return status_without_lease(self.status, was_dead=self.was_dead)

    @property
    def is_found_by_holder(self) -> bool:
        """True if Unhold finds it. Holders of an item that is moving go with it."""
        return bool(self.holders) and self.status is not Status.MOVING

    @property
    def is_dead_letter(self) -> bool:
        """True if it is dead, or in a dead queue or moving to one because it died. Completed and archived items do not
        count."""
        if self.status is Status.DEAD or self.was_dead:
            return True
        return self.is_in_dead_queue and (self.status in OPEN_STATUSES or self.status is Status.MOVING)

    @property
    def is_dropped(self) -> bool:
        """True if it is archived because it was dropped."""
        last = self.history.last() if self.status is Status.ARCHIVED else None
        return last is not None and last.event is HistoryEvent.DROPPED

    @property
    def death(self) -> Death | None:
        """Its last death, while it is a dead letter or archived as one."""
        archived = self.status is Status.ARCHIVED and (
            self.archived_from is Status.DEAD or (self.is_in_dead_queue and self.archived_from in WAITING_STATUSES)
        )
        return self.deaths[-1] if self.is_dead_letter or archived else None

    @property
    def retained_from(self) -> Instant:
        """The instant from which retention counts (archived)."""
        last = self.history.last()
        return last.at if last is not None and self.is_dropped else self.ended_or_archived_at

    @property
    def ended_or_archived_at(self) -> Instant:
        """The time of death or completion, else of archiving according to the history (archived)."""
        if (death := self.death) is not None:
            return death.at
        if self.archived_from is Status.COMPLETED and self.completed_at is not None:
            return self.completed_at
        last = self.history.last()
        if last is None or last.event in _INTO_THE_ARCHIVE:
            return self.put_at if last is None else last.at
        archivals = (entry.at for entry in reversed(self.history.entries()) if entry.event in _INTO_THE_ARCHIVE)
        return next(archivals, last.at)  # failures may have been added since

    @property
    def number(self) -> int:
        """The number in its id: its position among all items."""
        return parse_id(self.id)[0]

    @property
    def dead_letter_key(self) -> DeadLetterKey | None:
        """The position as a dead letter, or None."""
        if not self.is_dead_letter:
            return None
        death = self.deaths[-1]
        return DeadLetterKey(self.queue, death.cause.fingerprint, self.death_number, death.at)

    def snapshot(self, *, with_last: bool = False) -> ItemSnapshot:
        """Return the values that the rules of manual changes need; `with_last` with the newest history entry."""
        return ItemSnapshot(
            self.id,
            self.status,
            self.is_dead_letter,
            self.worker,
            self.history.last() if with_last else None,
            self.queue,
            self.counters.deliveries,
            self.was_dead,
            self.is_dropped,
        )

    @property
    def filter_subject(self) -> FilterSubject:
        """The values that a filter needs. A dead letter that was redriven since counts as an ordinary item."""
        death, counters = self.death, self.counters
        if death is not None:
            counters = msgspec.structs.replace(death.counters, redrives=counters.redrives)
        return FilterSubject(
            id=self.id,
            status=self.status,
            is_dead_letter=self.is_dead_letter,
            queue=self.queue,
            origin_queue=self.origin_queue or self.queue,
            at=self.ended_or_archived_at
            if self.status is Status.ARCHIVED
            else self.put_at
            if death is None
            else death.at,
            counters=counters,
            held_by=holder_names(self.holders),
            reason=None if death is None else death.reason,
            cause=None if death is None else death.cause,
            headers=self.headers,
            is_dropped=self.is_dropped,
        )

    @property
    def lies_in_dead_queue(self) -> bool:
        """True if it is a dead letter whose own status is not dead."""
        return self.is_dead_letter and self.status_without_lease is not Status.DEAD

    def words_of_death(self) -> frozenset[str]:
        """Return its search terms as a dead letter: words of its last death and of its payload."""
        death = self.deaths[-1]
        text = death_text(death, self.history.entries())
        return search_terms_of(death.cause.error_type, text, self.payload, self.content_type)

    def expired(self, now: Instant) -> bool:
        """Return whether its expire deadline has passed."""
        return self.expire_deadline is not None and self.expire_deadline <= now

    def to_item(self) -> Item:
        """Return the item that `get` returns. Fields that do not apply to its status are omitted."""
        death = self.death if self.status in (Status.DEAD, Status.ARCHIVED) or self.was_dead else None
        before = self.archived_from if death is None else Status.DEAD
        return Item(
            id=self.id,
            queue=self.queue,
            status=self.status,
            payload=self.payload,
            content_type=self.content_type,
            headers=dict(self.headers),
            priority=self.priority,
            put_at=self.put_at,
            counters=self.counters,
            ready_at=self.ready_at if self.status in WAITING_STATUSES else None,
            expire_deadline=self.expire_deadline,
            held_by=holder_names(self.holders),
            lasting_holders=holder_names(lasting_holders(self.holders)),
            worker=self.worker,
            lease_deadline=None if self.grant is None else self.grant.deadline,
            first_leased_at=self.first_leased_at,
            dead_reason=None if death is None else death.reason,
            ended_at=self.completed_at if death is None or self.was_dead else death.at,
            result=self.result,
            idempotency_key=self.idempotency_key,
            overrides=self.overrides,
            source_id=self.source_id,
            origin_id=self.origin_id,
            origin_queue=self.origin_queue,
            earlier_ids=tuple(self.ids[:-1]),
            history=self.history.entries(),
            history_omitted=self.history.omitted,
            deaths=tuple(self.deaths),
            moving_to=None if self.route is None else self.route.to,
            moving_since=None if self.route is None else self.route.since,
            home_store=self.home_store if self.lies_in_dead_queue else None,
            archived_from=before if self.status is Status.ARCHIVED else None,
            damage=self.damage,
        )

    def to_move(self) -> Move:
        """Return the move for another store (moving)."""
        assert self.route is not None
        return Move(self.to_item(), self.route, self.is_dead_letter, self.ready_at, self.expire_timeout)

    def to_lease(self) -> Lease:
        """Return the lease for its worker."""
        assert self.grant is not None
        assert self.first_leased_at is not None
        return Lease(
            id=self.id,
            token=self.grant.token,
            queue=self.queue,
            payload=self.payload,
            content_type=self.content_type,
            headers=dict(self.headers),
            priority=self.priority,
            put_at=self.put_at,
            deliveries=self.counters.deliveries,
            attempts=self.counters.attempts,
            failures=self.counters.failures,
            losses=self.counters.losses,
            redrives=self.counters.redrives,
            leased_at=self.grant.leased_at,
            deadline=self.grant.deadline,
            first_leased_at=self.first_leased_at,
            expire_deadline=self.expire_deadline,
            overrides=self.overrides,
            worker=self.grant.worker,
            dead_reason=self.grant.dead_reason,
        )

    def to_overdue(self, now: Instant) -> Overdue:
        """Return the entry for the sweep of overdue items."""
        return Overdue(
            id=self.id,
            queue=self.queue,
            counters=self.counters,
            overrides=self.overrides,
            token=None if self.grant is None else self.grant.token,
            expired=self.expired(now),
            worker=self.worker,
            dead_reason=None if self.grant is None else self.grant.dead_reason,
        )

    def to_settled(
        self,
        *,
        removed: bool = False,
        moved: bool = False,
        reason: DeadReason | None = None,
        undo_until: Instant | None = None,
    ) -> Settled:
        """Return its state after a change."""
        return Settled(
            id=self.id,
            queue=self.queue,
            status=None if removed else self.status,
            counters=self.counters,
            ready_at=self.ready_at if self.status in WAITING_STATUSES and not removed else None,
            dead_reason=reason,
            source_id=self.source_id if moved else None,
            undo_until=undo_until,
        )
