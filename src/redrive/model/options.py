"""The options of calls, each declared once with its name, type, bounds and meaning.

Each key is a keyword of every method that takes `**options: Unpack[…]`; editors and type checkers read it from there.
`help`, commands, JSON fields and reference pages read it through `declaration`. The settings of a queue are in
`queue_options`. None means not given; `Status | str` takes a member or its value.
"""

# No `from __future__ import annotations`: `declaration` reads types, not texts.
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, TypeAlias, TypedDict

from msgspec import Meta

from redrive.clock import Clock
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.duration import DurationInput
from redrive.model.item import Status
from redrive.model.limits import MAX_COUNT, MAX_PRIORITY, MIN_PRIORITY
from redrive.model.redact import RedactOption
from redrive.model.retry_policy import DelayFunction, RetryInput

MAX_CANARIES = 100
"""The maximum number of canaries, because each one is polled until it has ended."""
MAX_RATE = 1_000_000

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Priority: TypeAlias = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
Rate: TypeAlias = Annotated[float, Meta(gt=0, le=MAX_RATE)]
CanaryCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_CANARIES)]
Ratio: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
PositiveDuration: TypeAlias = Annotated[DurationInput, Meta(gt=0)]
SinceInput: TypeAlias = datetime | DurationInput
"""An instant, or a duration before now."""


class ItemImportance(TypedDict, total=False):
    """The priority of an item, and the time within which it must be completed."""

    priority: Priority
    """From 0 to 9; larger is leased first; 5 unless given."""
    expire_timeout: PositiveDuration | None
    """The time from the put until the item expires, instead of the queue's."""


class TaskItemDefaults(ItemImportance, total=False):
    """Options that a task sets for all its items and that a put sets for one item."""

    max_attempts: Count | None
    """The maximum number of deliveries, instead of the queue's; 0: unlimited."""
    max_losses: Count | None
    """The maximum number of expired leases, instead of the queue's; 0: unlimited."""
    retry: RetryInput | None
    """A retry policy, as for `create_queue`. It replaces the queue's policy as a whole."""


class MessageOptions(ItemImportance, total=False):
    """The options of an item that is a message."""

    delay: DurationInput
    """The time from now until the item may be leased; 0 unless given."""
    enqueue_at: datetime | None
    """The instant, with a time zone, from which the item may be leased, instead of a delay."""
    expire_at: datetime | None
    """The instant, with a time zone, at which the item expires, instead of `expire_timeout`. An instant in the past
    makes it a dead letter. After a redrive, the queue's `expire_timeout` applies."""
    headers: Mapping[str, str] | None
    """Names and text values that are stored and delivered with the item."""
    idempotency_key: str | None
    """A second put with this key stores nothing and returns the id of the first item, within `idempotency_timeout`."""


class TaskItemOptions(TaskItemDefaults, MessageOptions, total=False):
    """The options of an item that is a call of a task."""

    held_by: str | None
    """Hold the item under this name: it is not leased before `unhold` with the same name."""


INSTANTS = {"enqueue_at": "delay", "expire_at": "expire_timeout"}
"""The options that are an instant, each with the duration option that it replaces."""


class ItemOptions(TaskItemOptions, total=False):
    """The options of an item that is put."""

    content_type: str | None
    """The content type of a payload of bytes, which is stored unchanged."""


class QueueConditions(TypedDict, total=False):
    """The conditions that select items of a queue: an item must meet all of them."""

    status: Status | str | None
    """The status of the items; dead unless given: every dead letter, also in a dead queue. `any` excludes archived
    items unless `archived` or `dropped` is true, or `ids`, `id_prefix` or `operation` is given."""
    origin_queue: str | None
    """The queue to which the items were first put."""
    reason: DeadReason | str | None
    """The reason of the death."""
    error_type: str | None
    """The type of the error: the full name, the package and the class, or the class alone."""
    error_class: ErrorClass | str | None
    """The class of the error."""
    fingerprint: str | None
    """The fingerprint of the group, which is one cause."""
    words: str | None
    """Words that are all in the error or payload; `wor*` is a prefix. Only dead letters are indexed. A server requires
    the permission to see payloads."""
    since: SinceInput | None
    """Died at this instant or later, or within this duration before now. In other statuses, the instant of the put
    counts; for archived items, that of the death or completion, else that of archiving."""
    until: SinceInput | None
    """As `since`, but before this instant."""
    min_attempts: Count | None
    """The minimum number of attempts; for dead letters, at the last death."""
    min_redrives: Count | None
    """The minimum number of redrives; 1 selects dead letters that died again after a redrive."""
    max_redrives: Count | None
    """The maximum number of redrives."""
    headers: Mapping[str, str] | None
    """Headers that the items have, all with these values. A server requires the permission to see payloads."""
    held: bool | None
    """true: only items that are held; false: only items that are not held."""
    held_by: str | None
    """One of the names that hold the items."""
    operation: str | None
    """The id of an operation that changed the items."""
    ids: Sequence[str] | None
    """The ids of the items, up to 10,000. An id from before a move selects the same item."""
    id_prefix: str | None
    """The first digits of the id; 8 digits identify an item."""
    archived: bool | None
    """true: archived items too, if the status is `any`."""
    dropped: bool | None
    """true: only archived items that were dropped; false: only items that were not dropped."""


class PlaceCondition(TypedDict, total=False):
    """The condition on the queue."""

    queue: str | None
    """The queue in which the items are now."""


class Conditions(PlaceCondition, QueueConditions, total=False):
    """The conditions that select items: an item must meet all of them."""


class PlanOptions(TypedDict, total=False):
    """The options of an operation that its plan depends on too."""

    to: str | None
    """The target queue (redrive, move). Without it, a redrive moves items of a dead queue back to where they died."""
    limit: PositiveCount | None
    """The maximum number of items to change, the oldest first; all that match unless given."""


class OperationOptions(PlanOptions, total=False):
    """The options of an operation."""

    rate: Rate | None
    """The maximum number of items per second; unlimited unless given."""
    canary: CanaryCount
    """The number of items to redrive or retry first; the rest follows after these have completed. 0 unless given."""
    canary_success_ratio: Ratio
    """The share of the canaries that must complete, more than 0; 1 unless given."""
    confirm: Count | None
    """The number of items that match, as confirmation of a purge, which is final."""
    note: str | None
    """The reason for the change, for the history and the audit."""
    actor: str | None
    """The name of the operator, for the audit; the actor of the broker unless given."""
    paused: bool
    """true: make no step before `resume_operation`; false unless given."""


class QueueOperationOptions(OperationOptions, QueueConditions, total=False):
    """The options of an operation, and the items of a queue that it changes."""


class StartOptions(OperationOptions, Conditions, total=False):
    """The options of an operation, and the items that it changes."""


class QueuePlanConditions(PlanOptions, QueueConditions, total=False):
    """The options of a plan, and the items of a queue that it is for."""


class PlanConditions(PlanOptions, Conditions, total=False):
    """The options of a plan, and the items that it is for."""


class BrokerOptions(TypedDict, total=False):
    """The options of a broker in any namespace."""

    store_name: str | None
    """The name of this store in `name@store` and in death records; the kind of store unless given."""
    stores: Mapping[str, str] | None
    """Other stores by name, each with its URL. Dead queues may be there, and items move there and back. Each is opened
    on first use, in the same namespace. Requires `store_name`."""
    actor: str | None
    """The name in audit rows, unless a call names another; user@host unless given."""
    backoffs: Mapping[str, DelayFunction] | None
    """Delay functions that queues and items name in `retry`: from the number of failures so far to seconds."""
    durability: str
    """`full` unless given, or `relaxed`: a power cut may lose the last calls, in exchange for speed."""
    create_if_missing: bool
    """True to create a file that does not exist; True unless given. False raises `StoreUnavailable` for a wrong path
    instead of creating an empty store."""
    maintenance: bool
    """True to run a thread of this broker that reclaims expired leases and handles expiry, retention, operations and
    moves to other stores; True unless given. Ignored for `http://…`, because the server does it."""
    redact: RedactOption
    """A table of rules, for all queues, for what to hide in output in addition to detected secrets. A function
    (kind, value) → value replaces all rules; False hides nothing."""
    clock: Clock | None
    """Another source of time, for tests; the system's unless given."""


class NamespaceOptions(TypedDict, total=False):
    """The namespace of a broker, and its credentials."""

    namespace: str
    """The namespace, which isolates its queues from those of other namespaces; `default` unless given."""
    token: str | None
    """The token by which a server knows the program; for `http://` and `https://` only, and not for other stores."""


class ConnectOptions(NamespaceOptions, BrokerOptions, total=False):
    """The options of a broker, with its namespace."""
