"""Requirements of calls: rights in a scope, or checks against the store. Pure values."""

from __future__ import annotations

from enum import Enum

import msgspec

from redrive.auth.principal import Permission
from redrive.model.ids import ItemId, Token
from redrive.model.judge import Verdict
from redrive.model.state_machine import Verb


class QueueScope(Enum):
    """The scope of a requirement that names no queue."""

    ALL = "everywhere"
    """Every queue of the namespace."""
    ANY = "somewhere"
    """Some queue. The result is then limited to queues that the caller may use."""


class QueueRef(msgspec.Struct, frozen=True):
    """A queue of this store, or of another store that its address names."""

    name: str


class ItemRef(msgspec.Struct, frozen=True):
    """The queue that an item is in; to read its result, the queue that it was put to is enough.

    With `verb`, also the queue that this verb moves the item to by its history.
    """

    id: ItemId
    verb: Verb | None = None


class SourceQueueRef(msgspec.Struct, frozen=True):
    """All queues that dead letters of this queue may be redriven to."""

    queue: str


class DeadQueueRef(msgspec.Struct, frozen=True):
    """The queue `to`, unless it is a dead queue of `queue` already."""

    queue: str
    to: str


class LeaseRef(msgspec.Struct, frozen=True):
    """The queue of the item that this lease token belongs to."""

    token: Token


class OperationRef(msgspec.Struct, frozen=True):
    """The queue of an operation. With `drives` the call advances it, which needs the same rights as to start it."""

    id: str
    drives: bool = False


PermissionScope = QueueScope | QueueRef | ItemRef | SourceQueueRef | DeadQueueRef | LeaseRef | OperationRef


class RequiredPermission(msgspec.Struct, frozen=True):
    """One of these rights in a scope."""

    rights: tuple[Permission, ...]
    place: PermissionScope


class VerdictCheck(msgspec.Struct, frozen=True):
    """A check of a submitted verdict: a dead letter may go where its queue says, or where the caller may put it."""

    place: PermissionScope
    verdict: Verdict
    version: int
    closes_gate: bool = False


class EarlyLossCheck(msgspec.Struct, frozen=True):
    """A check of a loss reported before the lease expired: it needs the access token that leased, or `operate`."""

    token: Token


class OverdueAccess(msgspec.Struct, frozen=True):
    """Access to overdue leases and the tokens of their holders: for `manage` only. For others they are settled."""

    queue: str | None


Requirement = RequiredPermission | VerdictCheck | EarlyLossCheck | OverdueAccess
