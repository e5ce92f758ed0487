"""Manual changes: the rules for each verb, and its entry in the history. The same on every store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

import msgspec

from redrive.clock import Instant
from redrive.errors import InvalidInput, ItemActive, WrongStatus
from redrive.model.delivery_end import DEADLY_EVENTS
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Death, HistoryEntry, HistoryEvent, Status
from redrive.model.limits import make_address
from redrive.model.operation import Operation
from redrive.model.state_machine import MANUAL_VERBS, Verb, allowed_from

DEAD_LETTER_VERBS = frozenset({Verb.REDRIVE})
"""Verbs that are for dead letters only."""
_NOT_FORCED = frozenset({Verb.RESTORE, Verb.PURGE, Verb.RESCHEDULE})
"""Verbs that are not for an active item, even if its lease is revoked."""


class ItemSnapshot(msgspec.Struct, frozen=True, gc=False):
    """The current state of an item that the rules read before a manual change."""

    id: ItemId
    status: Status
    is_dead_letter: bool
    """True if it is dead, or is in a dead queue because it died."""
    worker: str | None = None
    """The worker that holds the lease (active)."""
    last: HistoryEntry | None = None
    """The newest entry of its history, for UNDO and plans of RESTORE."""
    queue: str = ""
    deliveries: int = 0
    was_dead: bool = False
    """True if it was leased although it is dead."""
    is_dropped: bool = False
    """True if it is in the archive because it was dropped."""

    @property
    def status_without_lease(self) -> Status:
        """Its status without its lease."""
        return status_without_lease(self.status, was_dead=self.was_dead)


def check_verb(verb: Verb) -> None:
    """Raise unless an operator may use the verb without a lease token."""
    if verb not in MANUAL_VERBS:
        raise InvalidInput(f"{verb} is no manual change; there are {', '.join(sorted(MANUAL_VERBS))}")


def check_manual_change(verb: Verb, item: ItemSnapshot, *, force: bool, undoes: str | None = None) -> None:
    """Raise unless the verb applies to the item in its current state. `force` also accepts an active item.

    `undoes` is the operation that UNDO undoes: an item that another caller changed since does not match.
    """
    if item.status is Status.ACTIVE and not force:
        raise ItemActive(item.id, item.worker)
    if item.status is Status.MOVING and verb is Verb.DROP and force:
        return
    # With its lease revoked, an active item is treated as waiting; only archived items can be restored or purged.
    applies = verb not in _NOT_FORCED if item.status is Status.ACTIVE else item.status in allowed_from(verb)
    if verb in DEAD_LETTER_VERBS:
        applies = applies and item.is_dead_letter
    if verb is Verb.UNDO and not (applies and (was_redriven(item, undoes) or was_dropped(item, undoes))):
        raise WrongStatus(
            verb.value, item.id, item.status.value, ("dropped", "redriven and not leased or changed since")
        )
    if verb is Verb.DROP and item.is_dropped:
        raise WrongStatus(verb.value, item.id, "dropped", _at_rest(verb))
    if not applies:
        raise WrongStatus(verb.value, item.id, item.status.value, _at_rest(verb))


def _at_rest(verb: Verb) -> tuple[Status, ...]:
    """Return the statuses that a verb applies to without force."""
    if verb in DEAD_LETTER_VERBS:
        return (Status.DEAD,)
    return tuple(status for status in allowed_from(verb) if status is not Status.ACTIVE)


def was_redriven(item: ItemSnapshot, operation: str | None = None) -> bool:
    """Return whether the last change of a dead letter is a redrive by an operator, or by this operation."""
    last = item.last
    if last is None or (operation is not None and last.operation != operation):
        return False
    if last.to is not None:  # redriven to this store from another one, which no transaction here can change
        return False
    return last.from_dead_letter and last.delivery == item.deliveries


def was_dropped(item: ItemSnapshot, operation: str | None = None) -> bool:
    """Return whether the last change of an item is a drop by an operator, or by this operation."""
    return item.is_dropped and (operation is None or (item.last is not None and item.last.operation == operation))


def revives(verb: Verb, before: Status) -> bool:
    """Return whether a verb ends the state of a dead letter. One that is retried in its dead queue stays one."""
    return verb is Verb.REDRIVE or (verb is Verb.RETRY and before is Status.DEAD)


def redrive_queue(
    item: ItemSnapshot, died_in: str, to: str | None, *, home: str | None = None, store: str | None = None
) -> str:
    """Return the target of a redrive: the queue that the call names, else the queue of the item's last death.

    An item with status dead stays in its queue: it died there, or was moved or imported there since. `home` is the
    store that it came from as a dead letter, `store` the name of this one.
    """
    if to is not None:
        return to
    if item.status_without_lease is Status.DEAD:
        return item.queue
    if home is not None and home == store:
        raise InvalidInput(
            f"item {item.id} came from a store called '{home}', and this one was opened under the same name; open it "
            f"with name= and that one with stores=, or redrive the item to a queue of this store with to="
        )
    return died_in if home is None else make_address(died_in, home)


def move_queue(item: ItemSnapshot, to: str | None) -> str:
    """Return the target of a move. The item keeps its status, counters, holders and times, and goes to the tail."""
    if to is None:
        raise InvalidInput("move needs the queue to move to; name it with to=")
    if to == item.queue:
        raise InvalidInput(f"item {item.id} is in queue '{to}' already; name another one to move it to")
    return to


def undo_target(last: HistoryEntry) -> tuple[str, Status]:
    """Return the queue and the status of an item after an undo, from the history entry of its redrive."""
    return last.queue, Status.DEAD if last.from_status is Status.DEAD else Status.PENDING


def counters_after_undo(counters: Counters, back: Status, death: Death) -> Counters:
    """Return the counters after the undo of a redrive: those of the death if it is dead again, else zero attempts."""
    at_death = death.counters if back is Status.DEAD else Counters()
    return Counters(
        deliveries=counters.deliveries,
        attempts=at_death.attempts,
        failures=at_death.failures,
        losses=at_death.losses,
        redrives=max(0, counters.redrives - 1),
    )


def status_without_lease(status: Status, *, was_dead: bool) -> Status:
    """Return the status of an item without its lease, for archiving and for the history."""
    if status is not Status.ACTIVE:
        return status
    return Status.DEAD if was_dead else Status.PENDING


def counts_for_max_size(item: ItemSnapshot, queue: str) -> bool:
    """Return whether an item that becomes pending in a queue adds to the size that max_size limits."""
    return item.status is Status.DEAD or item.queue != queue


def stays_dead_letter(verb: Verb, item: ItemSnapshot, *, to_dead_queue: bool = False) -> bool:
    """Return whether an item is still a dead letter: retried in its dead queue, or moved as a dead letter.

    An item that is moved from a dead queue to a queue that is not one becomes normal work there.
    """
    if verb is Verb.MOVE:
        return item.is_dead_letter and (item.status_without_lease is Status.DEAD or to_dead_queue)
    return verb is Verb.RETRY and item.status_without_lease is not Status.DEAD and item.is_dead_letter


def death_text(death: Death, history: Iterable[HistoryEntry]) -> str:
    """Return the text of a death: the text of the failure, else the note, else the title of the cause."""
    outcomes = [entry for entry in history if is_outcome_of_death(death, entry)]
    # A dead item may be leased and fail again at the same instant.
    of_delivery = [entry for entry in outcomes if entry.delivery == death.counters.deliveries]
    said = None
    for entry in (of_delivery or outcomes)[-1:]:
        said = entry.failure.text if entry.failure else entry.note
    return said or death.cause.title


def is_outcome_of_death(death: Death, entry: HistoryEntry) -> bool:
    """Return whether an entry of the history may record this death. Of several, the last one does."""
    return entry.at == death.at and entry.queue == death.queue and entry.event in DEADLY_EVENTS


class ManualAction(msgspec.Struct, frozen=True):
    """A manual change: one verb, for one item or many."""

    verb: Verb
    actor: str
    note: str | None = None
    to: str | None = None
    force: bool = False
    operation: str | None = None
    """The operation that it is part of."""
    undoes: str | None = None
    """The operation that it undoes (UNDO)."""

    @classmethod
    def of(cls, operation: Operation) -> Self:
        """Return the change that an operation makes to each of its items."""
        return cls(
            operation.verb,
            operation.actor,
            operation.note,
            operation.to,
            operation=operation.id,
            undoes=operation.where.operation,
        )

    def history_entry(
        self, now: Instant, event: HistoryEvent, queue: str, delivery: int, before: Status, *, to: str | None = None
    ) -> HistoryEntry:
        """Return the history entry for an item that was in `queue` with status `before`. `to` is in another store."""
        return HistoryEntry(
            now,
            event,
            queue,
            delivery,
            actor=self.actor,
            note=self.note,
            operation=self.operation,
            from_status=before,
            from_dead_letter=revives(self.verb, before),
            to=to,
        )
