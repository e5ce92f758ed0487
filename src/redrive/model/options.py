"""The options of calls, each declared once: its name, its type and bounds, and what it means.

A key is a keyword of every method that takes `**options: Unpack[…]`, and editors and type checkers know it from there.
`help`, commands, JSON fields and reference pages have it from `declaration`. The settings of a queue are in
`queue_options`. None means not given; `Status | str` takes one of these words.
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
"""How many items may be tried first: each of them is read again and again until it has ended."""
MAX_RATE = 1_000_000

Count: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
PositiveCount: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Priority: TypeAlias = Annotated[int, Meta(ge=MIN_PRIORITY, le=MAX_PRIORITY)]
Rate: TypeAlias = Annotated[float, Meta(gt=0, le=MAX_RATE)]
CanaryCount: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_CANARIES)]
Ratio: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
PositiveDuration: TypeAlias = Annotated[DurationInput, Meta(gt=0)]
SinceInput: TypeAlias = datetime | DurationInput
"""An instant, or how long ago."""


class ItemImportance(TypedDict, total=False):
    """How much an item matters, and for how long."""

    priority: Priority
    """0 to 9, larger first; 5 unless given."""
    expire_timeout: PositiveDuration | None
    """From the put until it is no longer worth doing, instead of the queue's."""


class TaskItemDefaults(ItemImportance, total=False):
    """What a task says of all its items, and a put of one."""

    max_attempts: Count | None
    """Deliveries that it gets, instead of the queue's; 0: unlimited."""
    max_losses: Count | None
    """Leases of it that may run out, instead of the queue's; 0: unlimited."""
    retry: RetryInput | None
    """A retry policy as `create_queue` takes it, which replaces the queue's as a whole."""


class MessageOptions(ItemImportance, total=False):
    """What is said of an item that is a message."""

    delay: DurationInput
    """From now until it may be leased; 0 unless given."""
    enqueue_at: datetime | None
    """From when it may be leased, instead of a delay: an instant with a time zone."""
    expire_at: datetime | None
    """When it is no longer worth doing, instead of `expire_timeout`: an instant with a time zone. One that has passed
    makes it a dead letter. After a redrive, the queue's `expire_timeout` counts."""
    headers: Mapping[str, str] | None
    """Names and texts that travel with it."""
    idempotency_key: str | None
    """The same key again puts nothing, and gives the id of the first, for the queue's idempotency_timeout."""


class TaskItemOptions(TaskItemDefaults, MessageOptions, total=False):
    """What is said of an item that is a call of a task."""

    held_by: str | None
    """Keep it from being leased until `unhold` with this name."""


INSTANTS = {"enqueue_at": "delay", "expire_at": "expire_timeout"}
"""Options that are an instant, and the duration that each takes the place of."""


class ItemOptions(TaskItemOptions, total=False):
    """What is said of an item that is put."""

    content_type: str | None
    """Of bytes, which are stored unchanged."""


class QueueConditions(TypedDict, total=False):
    """Which items of a queue are meant: those that meet every condition."""

    status: Status | str | None
    """Their status; dead unless given, which means every dead letter, also in a dead queue. `any`: in any status but
    archived, and archived ones too where `ids`, `id_prefix` or `operation` name them or `archived` asks for them."""
    origin_queue: str | None
    """Where they were put first."""
    reason: DeadReason | str | None
    """Why they died."""
    error_type: str | None
    """The type of their error: the full name, the package and the class, or the class alone."""
    error_class: ErrorClass | str | None
    """The class of their error."""
    fingerprint: str | None
    """Of the group with this fingerprint: one cause."""
    words: str | None
    """All these words are in their error or payload; `wor*` is a prefix. Only dead letters have words. On a server it
    needs the right to see payloads."""
    since: SinceInput | None
    """Died at this instant or later, or at most this long ago; in other statuses: were put then. Of archived items,
    what retention counts from: their death or completion, else the instant at which they were archived."""
    until: SinceInput | None
    """The same, before this instant."""
    min_attempts: Count | None
    """At least this many attempts, for dead letters those at their last death."""
    min_redrives: Count | None
    """Redriven at least this often: 1 means that they died again."""
    max_redrives: Count | None
    """Redriven at most this often."""
    headers: Mapping[str, str] | None
    """Have all of these headers with these values. On a server it needs the right to see payloads."""
    held: bool | None
    """true: only items that are held; false: none of them."""
    held_by: str | None
    """This name is among those that hold them."""
    operation: str | None
    """Were changed by this operation."""
    ids: Sequence[str] | None
    """Are among these, up to 10,000. An earlier id stands for the item that had it."""
    id_prefix: str | None
    """Their id starts with these digits: 8 of them identify an item."""
    archived: bool | None
    """true: archived items too, where no status is asked for."""
    dropped: bool | None
    """true: only archived items that were dropped; false: none of them."""


class PlaceCondition(TypedDict, total=False):
    """In which queue items are meant."""

    queue: str | None
    """Where they are now."""


class Conditions(PlaceCondition, QueueConditions, total=False):
    """Which items are meant: those that meet every condition."""


class PlanOptions(TypedDict, total=False):
    """What an operation does, and so what a plan of it depends on."""

    to: str | None
    """The queue that items go to (redrive, move); without it, each to where it died, or is."""
    limit: PositiveCount | None
    """Change at most this many, those that it meets first, the oldest; all that match unless given."""


class OperationOptions(PlanOptions, total=False):
    """How an operation runs."""

    rate: Rate | None
    """Most items per second; unlimited unless given."""
    canary: CanaryCount
    """Redrive this many first; the rest follows once these have completed. 0 unless given."""
    canary_success_ratio: Ratio
    """The share of the canaries that must complete, more than 0; 1 unless given."""
    confirm: Count | None
    """For purge, which is final: the number of items that you mean."""
    note: str | None
    """Why, for the history and the audit."""
    actor: str | None
    """Who does it, for the audit; the actor of the broker unless given."""
    paused: bool
    """Make no step before `resume_operation`; false unless given."""


class QueueOperationOptions(OperationOptions, QueueConditions, total=False):
    """How an operation runs, and which items of a queue it changes."""


class StartOptions(OperationOptions, Conditions, total=False):
    """How an operation runs, and which items it changes."""


class QueuePlanConditions(PlanOptions, QueueConditions, total=False):
    """What is planned, and for which items of a queue."""


class PlanConditions(PlanOptions, Conditions, total=False):
    """What is planned, and for which items."""


class BrokerOptions(TypedDict, total=False):
    """How a broker is opened, in any namespace."""

    store_name: str | None
    """What other stores call this one, in `name@store`, and what death records say; the kind of store unless given."""
    stores: Mapping[str, str] | None
    """Other stores by name, each with its URL: dead queues may be there, and items move there and back. They are opened
    when they are needed, in the same namespace. Needs `store_name`."""
    actor: str | None
    """The name in audit rows, unless a call names another; user@host unless given."""
    backoffs: Mapping[str, DelayFunction] | None
    """Delay functions that queues and items may name in `retry`: failures so far to seconds."""
    durability: str
    """`full` unless given, or `relaxed`: a power cut may lose the last calls, in exchange for speed."""
    create_if_missing: bool
    """Whether a file that does not exist is created; True unless given. False makes a mistaken path a
    `StoreUnavailable`, not an empty store."""
    maintenance: bool
    """Whether a thread of this broker takes back leases that ran out and sees to expiry, retention, operations and
    moves to other stores; True unless given. On `http://…` never, since the server does it."""
    redact: RedactOption
    """What is hidden in all that is shown, beside what is detected as a secret: a table of rules for all queues. A
    function (kind, value) → value replaces all rules; False hides nothing."""
    clock: Clock | None
    """Another source of time, for tests; the system's unless given."""


class NamespaceOptions(TypedDict, total=False):
    """Where a broker runs, and as whom."""

    namespace: str
    """Queues of different namespaces never see each other; `default` unless given."""
    token: str | None
    """What a server knows the program by; for `http://` and `https://` only, and not for other stores."""


class ConnectOptions(NamespaceOptions, BrokerOptions, total=False):
    """How a broker is opened, and in which namespace."""
