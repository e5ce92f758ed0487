"""What a call may need: a right somewhere, or something that only the store knows. Pure values."""

from __future__ import annotations

from enum import Enum

import msgspec

from redrive.auth.principal import Permission
from redrive.model.ids import ItemId, Token
from redrive.model.judge import Verdict
from redrive.model.state_machine import Verb


class QueueScope(Enum):
    """Where, if no queue is named."""

    ALL = "everywhere"
    """In every queue of the namespace."""
    ANY = "somewhere"
    """In any queue. What comes of it is only what is in queues of theirs."""


class QueueRef(msgspec.Struct, frozen=True):
    """In this queue; in another store, where that is named."""

    name: str


class ItemRef(msgspec.Struct, frozen=True):
    """In the queue that this item is in; to await it, also in the one that it was put to.

    With `verb`, also in the one that this verb takes it to, as its past says.
    """

    id: ItemId
    verb: Verb | None = None


class SourceQueueRef(msgspec.Struct, frozen=True):
    """In all queues that dead letters of this one may go back to."""

    queue: str


class DeadQueueRef(msgspec.Struct, frozen=True):
    """In the queue `to`, unless the dead of `queue` go there already."""

    queue: str
    to: str


class LeaseRef(msgspec.Struct, frozen=True):
    """In the queue of the item that this token holds."""

    token: Token


class OperationRef(msgspec.Struct, frozen=True):
    """In the queue that this operation is about. With `drives` it makes steps, which takes what starting it does."""

    id: str
    drives: bool = False


PermissionScope = QueueScope | QueueRef | ItemRef | SourceQueueRef | DeadQueueRef | LeaseRef | OperationRef


class RequiredPermission(msgspec.Struct, frozen=True):
    """One of these rights, there."""

    rights: tuple[Permission, ...]
    place: PermissionScope


class VerdictCheck(msgspec.Struct, frozen=True):
    """A verdict that the caller brings: an item dies to where its queue says, or where the caller may bring it."""

    place: PermissionScope
    verdict: Verdict
    version: int
    closes_gate: bool = False


class EarlyLossCheck(msgspec.Struct, frozen=True):
    """A loss that is reported before the lease ran out: it takes the token that leased, or the right to change."""

    token: Token


class OverdueAccess(msgspec.Struct, frozen=True):
    """What is overdue in a queue is for who may manage it, with the tokens of others. For all others it is settled."""

    queue: str | None


Requirement = RequiredPermission | VerdictCheck | EarlyLossCheck | OverdueAccess
