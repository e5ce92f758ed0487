"""The life of an item as data: which verb takes an item from which status to which.

The rules of memory and Redis interpret this table; the SQL stores are tested against it. None stands for an item that
does not exist: before it is put, and after it was removed.
"""

from __future__ import annotations

from enum import StrEnum

from redrive.model.item import WORK, Status


class Verb(StrEnum):
    """Everything that changes the status of an item."""

    PUT = "put"
    LEASE = "lease"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    LOSE = "lose"
    """The lease ran out and a sweep took it."""
    EXPIRE = "expire"
    """The expire deadline passed while nobody worked on it."""
    DUE = "due"
    """The next attempt of a failed item has come due."""
    BURY = "bury"
    RETRY = "retry"
    """By hand: try it again, where it is."""
    REDRIVE = "redrive"
    """By hand: bring a dead letter back to work, where it is or where it came from."""
    DONE = "done"
    """By hand: take it as completed."""
    DROP = "drop"
    """By hand: remove it for good."""
    UNDO = "undo"
    """By hand: take a redrive back that nobody has worked on since; the item is dead again, as it was."""
    MOVE = "move"
    """By hand: to another queue."""
    ARCHIVE = "archive"
    RESTORE = "restore"
    PURGE = "purge"
    """By hand or by a rule: remove an archived item for good."""
    LEAVE = "leave"
    """It has arrived in another store, and is removed from this one."""


_GONE = None
_RESTING = (Status.PENDING, Status.FAILED, Status.DEAD, Status.ARCHIVED)

TRANSITIONS: dict[Verb, tuple[tuple[Status | None, ...], tuple[Status | None, ...]]] = {
    Verb.PUT: ((_GONE,), (Status.PENDING, Status.FAILED, Status.DEAD, Status.MOVING)),
    Verb.LEASE: ((Status.PENDING,), (Status.ACTIVE,)),
    Verb.COMPLETE: ((Status.ACTIVE,), (Status.COMPLETED, _GONE)),
    Verb.FAIL: ((Status.ACTIVE, *WORK), (Status.FAILED, Status.DEAD, Status.PENDING, Status.MOVING, _GONE)),
    Verb.RELEASE: ((Status.ACTIVE,), (Status.PENDING, Status.DEAD, Status.MOVING, _GONE)),
    Verb.LOSE: ((Status.ACTIVE,), (Status.PENDING, Status.DEAD, Status.MOVING, _GONE)),
    Verb.EXPIRE: (WORK, (Status.DEAD, Status.PENDING, Status.MOVING, _GONE)),
    Verb.DUE: ((Status.FAILED,), (Status.PENDING,)),
    Verb.BURY: ((Status.ACTIVE, *WORK), (Status.DEAD, Status.PENDING, Status.MOVING, _GONE)),
    Verb.RETRY: ((Status.DEAD, Status.FAILED), (Status.PENDING,)),
    Verb.REDRIVE: ((Status.DEAD, *WORK), (Status.PENDING, Status.MOVING)),
    Verb.DONE: (_RESTING, (Status.COMPLETED, _GONE)),
    Verb.DROP: ((*_RESTING, Status.COMPLETED), (_GONE,)),
    Verb.UNDO: ((Status.PENDING,), (Status.DEAD, Status.PENDING)),
    Verb.MOVE: ((Status.DEAD, *WORK), (Status.DEAD, Status.MOVING, *WORK)),
    Verb.ARCHIVE: ((Status.DEAD, *WORK), (Status.ARCHIVED,)),
    Verb.RESTORE: ((Status.ARCHIVED,), (Status.DEAD, Status.PENDING, Status.FAILED)),
    Verb.PURGE: ((Status.ARCHIVED,), (_GONE,)),
    Verb.LEAVE: ((Status.MOVING,), (_GONE,)),
}
"""verb → (statuses it applies to, statuses it leads to).

A dead item that moves to its dead queue is *pending* there. Redrive and archive apply to pending and failed items
only where those are dead letters: items with a death record in a queue that is or was a dead queue.
With `force`, the verbs by hand also apply to an active item, whose lease is revoked first; and drop to one that is
moving, for which nothing else is left where the other store is gone.
"""

BY_HAND = frozenset(
    {
        Verb.FAIL,
        Verb.BURY,
        Verb.RETRY,
        Verb.REDRIVE,
        Verb.UNDO,
        Verb.MOVE,
        Verb.DONE,
        Verb.DROP,
        Verb.ARCHIVE,
        Verb.RESTORE,
        Verb.PURGE,
    }
)
"""Verbs a person may use without a token."""


def allowed_from(verb: Verb) -> tuple[Status, ...]:
    """The statuses a verb applies to."""
    return tuple(status for status in TRANSITIONS[verb][0] if status is not None)
