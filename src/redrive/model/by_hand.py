"""Who may change what by hand: the rules of the verbs that need no token, the same on every store."""

from __future__ import annotations

import msgspec

from redrive.errors import InvalidInput, ItemActive, WrongStatus
from redrive.model.ids import ItemId
from redrive.model.item import Status
from redrive.model.transitions import BY_HAND, Verb, allowed_from

FOR_DEAD_LETTERS = frozenset({Verb.REDRIVE, Verb.ARCHIVE})
"""Verbs that are for dead letters only."""


class Standing(msgspec.Struct, frozen=True, gc=False):
    """All that the rules look at: an item as it stands when a person wants to change it."""

    id: ItemId
    status: Status
    is_dead_letter: bool
    """It is dead, or lies in a dead queue because it died."""
    worker: str | None = None
    """Who holds the lease (active)."""


def check_verb(verb: Verb) -> None:
    """Raise unless a person may use the verb without a token."""
    if verb not in BY_HAND:
        raise InvalidInput(f"{verb} cannot be done by hand; there are {', '.join(sorted(BY_HAND))}")


def check_change(verb: Verb, item: Standing, *, force: bool) -> None:
    """Raise unless the verb applies to the item as it stands. `force` revokes the lease of one that is active."""
    if item.status is Status.ACTIVE and not force:
        raise ItemActive(item.id, item.worker)
    at_rest = tuple(status for status in allowed_from(verb) if status is not Status.ACTIVE)
    # Without its lease an active item is work like any other; only what was archived can be restored.
    applies = verb is not Verb.RESTORE if item.status is Status.ACTIVE else item.status in at_rest
    if verb in FOR_DEAD_LETTERS:
        applies, at_rest = applies and item.is_dead_letter, (Status.DEAD,)
    if not applies:
        raise WrongStatus(verb.value, item.id, item.status.value, at_rest)


def redrive_queue(died_in: str, to: str | None) -> str:
    """Where a redrive takes an item: to the queue that the call names, else to the one of its last death."""
    return died_in if to is None else to


def stays_dead_letter(verb: Verb, item: Standing) -> bool:
    """Whether an item that goes back to work is still a dead letter: retried in the dead queue that it lies in."""
    return verb is Verb.RETRY and item.status is not Status.DEAD and item.is_dead_letter
