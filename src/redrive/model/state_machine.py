"""The life of an item as data: which verb takes an item from which status to which.

The rules of the stores interpret this table. None stands for an item that
does not exist: before it is put, and after it was removed.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from redrive.model.item import WAITING_STATUSES, Status


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
    PROMOTE = "promote"
    """The next attempt of a failed item has come due."""
    BURY = "bury"
    RETRY = "retry"
    """By hand: try it again, where it is."""
    REDRIVE = "redrive"
    """By hand: bring a dead letter back to work, where it is or where it came from."""
    DONE = "done"
    """By hand: take it as completed."""
    DROP = "drop"
    """By hand: into the archive, from where it is removed after `keep_dropped`."""
    UNDO = "undo"
    """By hand: undo a redrive of an item that was not leased since, or a drop."""
    MOVE = "move"
    """By hand: to another queue."""
    RESCHEDULE = "reschedule"
    """An operator changes from when an item that waits may be leased."""
    ARCHIVE = "archive"
    RESTORE = "restore"
    PURGE = "purge"
    """By hand or by a rule: remove an archived item for good."""
    FINISH_MOVE = "leave"
    """It has arrived in another store, and is removed from this one."""


_REMOVED = None
_UNLEASED = (Status.PENDING, Status.FAILED, Status.DEAD, Status.ARCHIVED)

TRANSITIONS: dict[Verb, tuple[tuple[Status | None, ...], tuple[Status | None, ...]]] = {
    Verb.PUT: ((_REMOVED,), (Status.PENDING, Status.FAILED, Status.DEAD, Status.MOVING)),
    Verb.LEASE: ((Status.PENDING, Status.FAILED, Status.DEAD), (Status.ACTIVE,)),
    Verb.COMPLETE: ((Status.ACTIVE,), (Status.COMPLETED, _REMOVED)),
    Verb.FAIL: (
        (Status.ACTIVE, *WAITING_STATUSES),
        (Status.FAILED, Status.DEAD, Status.PENDING, Status.MOVING, _REMOVED),
    ),
    Verb.RELEASE: ((Status.ACTIVE,), (Status.PENDING, Status.DEAD, Status.MOVING, _REMOVED)),
    Verb.LOSE: ((Status.ACTIVE,), (Status.PENDING, Status.DEAD, Status.MOVING, _REMOVED)),
    Verb.EXPIRE: (WAITING_STATUSES, (Status.DEAD, Status.PENDING, Status.MOVING, _REMOVED)),
    Verb.PROMOTE: ((Status.FAILED,), (Status.PENDING,)),
    Verb.BURY: ((Status.ACTIVE, *WAITING_STATUSES), (Status.DEAD, Status.PENDING, Status.MOVING, _REMOVED)),
    Verb.RETRY: ((Status.DEAD, Status.FAILED), (Status.PENDING,)),
    Verb.REDRIVE: ((Status.DEAD, *WAITING_STATUSES), (Status.PENDING, Status.MOVING)),
    Verb.DONE: (_UNLEASED, (Status.COMPLETED, _REMOVED)),
    Verb.DROP: ((*_UNLEASED, Status.COMPLETED), (Status.ARCHIVED, _REMOVED)),
    Verb.UNDO: ((Status.PENDING, Status.ARCHIVED), (Status.DEAD, Status.COMPLETED, *WAITING_STATUSES)),
    Verb.MOVE: ((Status.DEAD, *WAITING_STATUSES), (Status.DEAD, Status.MOVING, *WAITING_STATUSES)),
    Verb.RESCHEDULE: (WAITING_STATUSES, WAITING_STATUSES),
    Verb.ARCHIVE: ((Status.DEAD, Status.COMPLETED, *WAITING_STATUSES), (Status.ARCHIVED,)),
    Verb.RESTORE: ((Status.ARCHIVED,), (Status.DEAD, Status.COMPLETED, *WAITING_STATUSES)),
    Verb.PURGE: ((Status.ARCHIVED,), (_REMOVED,)),
    Verb.FINISH_MOVE: ((Status.MOVING,), (_REMOVED,)),
}
"""verb → (statuses it applies to, statuses it leads to).

A dead item that moves to its dead queue is *pending* there. Failed and dead items are leased by id only; one that was
dead is completed, or dead again. Redrive applies to pending and failed items
only where those are dead letters: items with a death record in a queue that is or was a dead queue.
Restore leads back to the status that the item was archived from, and so does undo of a drop. A drop removes the item
where `keep_dropped` is 0.
With `force`, the verbs by hand also apply to an active item, whose lease is revoked first; and drop to one that is
moving, which it removes: nothing else is left where the other store is gone.
"""

MANUAL_VERBS = frozenset(
    {
        Verb.FAIL,
        Verb.BURY,
        Verb.RETRY,
        Verb.REDRIVE,
        Verb.UNDO,
        Verb.MOVE,
        Verb.RESCHEDULE,
        Verb.DONE,
        Verb.DROP,
        Verb.ARCHIVE,
        Verb.RESTORE,
        Verb.PURGE,
    }
)
"""Verbs a person may use without a token."""


REVIVING_VERBS = frozenset({Verb.REDRIVE, Verb.RETRY})
"""Verbs after which a dead item is worked on again."""
VERBS_WITH_TARGET = frozenset({Verb.REDRIVE, Verb.MOVE})
"""Verbs that can take an item to a queue that is named."""


@cache
def allowed_from(verb: Verb) -> tuple[Status, ...]:
    """The statuses a verb applies to."""
    return tuple(status for status in TRANSITIONS[verb][0] if status is not None)


def check_transition(verb: Verb, before: Status | None, after: Status | None, *, forced: bool = False) -> None:
    """Assert that the table of the model has this change. `forced`: a person revokes the lease of an active item."""
    sources, targets = TRANSITIONS[verb]
    revoked = forced and verb in MANUAL_VERBS and before is Status.ACTIVE
    given_up = forced and verb is Verb.DROP and before is Status.MOVING
    assert before in sources or revoked or given_up, f"{verb} does not apply to {before}"
    assert after in targets, f"{verb} does not lead from {before} to {after}"
