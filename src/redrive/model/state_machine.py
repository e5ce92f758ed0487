"""The state machine of an item as data: the transitions between statuses by each verb.

The rules of the stores interpret this table. None is the state of an item that does not exist: before it is put, and
after it was removed.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache

from redrive.model.item import WAITING_STATUSES, Status


class Verb(StrEnum):
    """The verbs that change the status of an item."""

    PUT = "put"
    LEASE = "lease"
    COMPLETE = "complete"
    FAIL = "fail"
    RELEASE = "release"
    LOSE = "lose"
    """A sweep reclaims an expired lease."""
    EXPIRE = "expire"
    """The expire deadline passed while the item was not leased."""
    PROMOTE = "promote"
    """The next attempt of a failed item is due."""
    BURY = "bury"
    RETRY = "retry"
    """An operator retries it, in its queue."""
    REDRIVE = "redrive"
    """An operator redrives a dead letter, in its queue or in the queue that it came from."""
    DONE = "done"
    """An operator marks it as completed."""
    DROP = "drop"
    """An operator drops it into the archive, from which it is removed after `keep_dropped`."""
    UNDO = "undo"
    """An operator undoes a drop, or a redrive of an item that was not leased since."""
    MOVE = "move"
    """An operator moves it to another queue."""
    RESCHEDULE = "reschedule"
    """An operator changes the instant from which a pending or failed item may be leased."""
    ARCHIVE = "archive"
    RESTORE = "restore"
    PURGE = "purge"
    """An operator or a rule removes an archived item permanently."""
    FINISH_MOVE = "leave"
    """An item that has arrived in another store is removed from this one."""


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
dead is completed, or dead again. Redrive applies to pending and failed items only if they are dead letters: items with
a death record in a queue that is or was a dead queue.
Restore returns an item to the status from which it was archived, and so does undo of a drop. A drop removes the item
if `keep_dropped` is 0.
With `force`, manual verbs also apply to an active item, whose lease is revoked first. With `force`, drop also removes
an item that is moving, which is the only way if the other store no longer exists.
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
"""The verbs that an operator may use without a lease token."""


REVIVING_VERBS = frozenset({Verb.REDRIVE, Verb.RETRY})
"""The verbs after which a dead item is delivered again."""
VERBS_WITH_TARGET = frozenset({Verb.REDRIVE, Verb.MOVE})
"""The verbs that accept a target queue."""


@cache
def allowed_from(verb: Verb) -> tuple[Status, ...]:
    """Return the statuses that a verb applies to."""
    return tuple(status for status in TRANSITIONS[verb][0] if status is not None)


def check_transition(verb: Verb, before: Status | None, after: Status | None, *, forced: bool = False) -> None:
    """Assert that the table has this transition. `forced`: an operator revokes the lease, or drops a moving item."""
    sources, targets = TRANSITIONS[verb]
    revoked = forced and verb in MANUAL_VERBS and before is Status.ACTIVE
    given_up = forced and verb is Verb.DROP and before is Status.MOVING
    assert before in sources or revoked or given_up, f"{verb} does not apply to {before}"
    assert after in targets, f"{verb} does not lead from {before} to {after}"
