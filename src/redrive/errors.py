"""The errors that Redrive raises.

    RedriveError
    ├── InvalidInput             the call itself is wrong; nothing was changed
    │   ├── InvalidName          a queue, namespace, actor or header name
    │   ├── InvalidSetting       a queue setting or an item override
    │   ├── InvalidDuration      a delay, a timeout or an instant
    │   ├── InvalidPayload       a value that cannot be stored and read back exactly
    │   ├── PayloadTooLarge      payload or headers over their limit
    │   ├── RequestTooLarge      a request over a limit of the server
    │   ├── InvalidArguments     arguments that the function of a task does not accept
    │   └── InvalidConfig        a redrive.toml that cannot be used
    │       └── UntrustedFile    one that another user can change, or with an address that was not confirmed
    ├── NotFound
    │   ├── QueueNotFound
    │   ├── ItemNotFound
    │   ├── OperationNotFound
    │   └── BreakerNotOpen
    ├── Refused                  the call is well formed, but not now or not on this
    │   ├── QueueExists
    │   ├── QueueInUse           the queue is the dead queue of other queues
    │   ├── ConfirmationMismatch purge or delete named another number of items
    │   ├── ItemActive           a worker has a lease on the item
    │   ├── ItemMoving           the item is moving to another store
    │   ├── ItemHeld             the item is held
    │   ├── WrongStatus          the item is not in a status the verb applies to
    │   ├── IdempotencyConflict  the key was used with another payload
    │   ├── QueueFull            max_size reached
    │   ├── QueuePaused          the queue gives no leases
    │   ├── QueueGated           the queue gives no leases until its gates open
    │   ├── LeaseLost            the fencing token is outdated or invalid
    │   ├── WrongQueue           the leased item is in another queue than the call names
    │   └── OperationEnded       the operation has ended
    ├── ResultUnavailable        a task has no result, or not yet
    │   ├── TaskFailed           its item is dead
    │   ├── ResultNotKept        it is completed, and the result was not kept
    │   └── ResultTimeout        it is not completed yet
    ├── StoreError               the store cannot serve the call
    │   ├── StoreUnavailable     it cannot be opened or reached
    │   │   └── StoreBusy        another process holds its write lock
    │   ├── StoreReadOnly
    │   ├── DiskFull
    │   ├── NotAStore            the file is not a store
    │   ├── SchemaTooNew         written by a newer Redrive
    │   ├── SchemaTooOld         written by a Redrive from before the first release
    │   ├── EngineUnsupported    the engine has a known flaw, or lacks a feature
    │   └── StoreFailed          the engine returned an unexpected error
    │       └── StoreDamaged     a stored value cannot be read
    ├── AccessError              a server denies the call
    │   ├── Unauthorized         no token, or one that is unknown, expired or revoked
    │   └── Forbidden            the token lacks the permission
    ├── OutcomeUnknown           the connection broke while the call was being committed
    ├── Overloaded               more calls are waiting than the committer accepts
    └── Closed                   the broker was closed

A refusal changed nothing. `code` is stable and identifies the error in other languages; `retryable` is true if the
same call can succeed later without any change by a user.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple


class RedriveError(Exception):
    """The base class of all errors that Redrive raises on purpose."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False


# The call itself is wrong.


class InvalidInput(RedriveError):
    """The call is invalid for every store in every state."""

    code = "invalid_input"


class InvalidName(InvalidInput):
    """A name that is empty, too long, or has characters that names cannot have."""

    code = "invalid_name"

    def __init__(self, what: str, name: object, problem: str) -> None:
        self.what, self.name, self.problem = what, name, problem
        super().__init__(f"{what} {_show(name)} {problem}")


class InvalidSetting(InvalidInput):
    """A setting that is unknown, of the wrong type, out of range, or in conflict with another."""

    code = "invalid_setting"

    def __init__(self, setting: str, problem: str) -> None:
        self.setting, self.problem = setting, problem
        super().__init__(f"{setting} {problem}")


class InvalidDuration(InvalidInput):
    """A text or number that is not a duration, or an instant outside the range that can be stored."""

    code = "invalid_duration"

    def __init__(self, what: str, value: object, problem: str) -> None:
        self.what, self.value, self.problem = what, value, problem
        super().__init__(f"{what} {_show(value)} {problem}")


class InvalidPayload(InvalidInput):
    """A value that cannot be stored and read back exactly. `path` is its place, as in `$.users[3].name`."""

    code = "invalid_payload"

    def __init__(self, path: str, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"payload at {path} {problem}")


class PayloadTooLarge(InvalidInput):
    """Payload or headers over their limit."""

    code = "payload_too_large"

    def __init__(self, what: str, size: int, limit: int, setting: str | None) -> None:
        self.what, self.size, self.limit, self.setting = what, size, limit, setting
        raising = "" if setting is None else f", or raise {setting}"
        super().__init__(
            f"{what}: {size:,} bytes and the limit is {limit:,}; store large data elsewhere and put a reference "
            f"to it{raising}"
        )


class RequestTooLarge(InvalidInput):
    """A request over a limit of the server."""

    code = "request_too_large"

    def __init__(self, what: str, limit: int) -> None:
        self.what, self.limit = what, limit
        super().__init__(f"{what} is over the limit of {limit:,}; send less in one request")


class InvalidArguments(InvalidInput):
    """Arguments that the function of a task does not accept, or a parameter that cannot be passed."""

    code = "invalid_arguments"

    def __init__(self, task: str, problem: str) -> None:
        self.task, self.problem = task, problem
        super().__init__(f"task {_show(task)}: {problem}")


class Problem(NamedTuple):
    """One problem of a config file."""

    line: int
    key: str
    problem: str
    """The description, with what was expected."""


class InvalidConfig(InvalidInput):
    """A redrive.toml that cannot be used. `problems` has all its problems; the other fields describe the first one.

    Nothing of the file was applied.
    """

    code = "invalid_config"

    def __init__(self, file: str, problems: tuple[Problem, ...]) -> None:
        self.file, self.problems = file, problems
        self.line, self.key, self.problem = problems[0]
        super().__init__("\n".join(f"{file}:{line}: {key}{': ' if key else ''}{what}" for line, key, what in problems))


class UntrustedFile(InvalidConfig):
    """A redrive.toml that another user can change, or that would send a secret to an address that was not confirmed.

    Nothing of the file was applied, and nothing was sent.
    """

    code = "untrusted_file"


# The call names something that does not exist.


class NotFound(RedriveError):
    """The call names something that does not exist."""

    code = "not_found"


class QueueNotFound(NotFound):
    """No queue of that name in this namespace."""

    code = "queue_not_found"

    def __init__(self, queue: str, namespace: str = "default") -> None:
        self.queue, self.namespace = queue, namespace
        where = "" if namespace == "default" else f" in namespace {_show(namespace)}"
        super().__init__(
            f"queue {_show(queue)} does not exist{where}; create it first, or correct the name; the list of queues "
            f"has all there are"
        )


class ItemNotFound(NotFound):
    """No item of that id: it was completed, removed, or never put in this namespace."""

    code = "item_not_found"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"item {_show(id)} does not exist: it was completed, removed, or never put in this namespace of this store"
        )


class OperationNotFound(NotFound):
    """No operation of that id in this namespace."""

    code = "operation_not_found"

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"operation {_show(id)} does not exist; the list of operations has those that are kept")


class BreakerNotOpen(NotFound):
    """The breaker is closed already, or never was open."""

    code = "breaker_not_open"

    def __init__(self, queue: str, kind: str) -> None:
        self.queue, self.kind = queue, kind
        super().__init__(
            f"breaker {_show(kind)} of queue {_show(queue)} is not open; the list of breakers has those that are"
        )


# The call is well formed, but not now or not on this.


class Refused(RedriveError):
    """The state of the queue or item does not allow the call. Nothing was changed."""

    code = "refused"


class QueueExists(Refused):
    """A queue of that name exists with other settings."""

    code = "queue_exists"

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(f"queue {_show(queue)} exists already with other settings; update it, or choose another name")


class QueueInUse(Refused):
    """The queue is the dead queue of other queues."""

    code = "queue_in_use"

    def __init__(self, queue: str, source_queues: tuple[str, ...]) -> None:
        self.queue, self.source_queues = queue, source_queues
        super().__init__(
            f"queue {_show(queue)} is the dead_queue of {', '.join(source_queues)}; give those another dead_queue first"
        )


class ConfirmationMismatch(Refused):
    """The confirmed number of items differs from the actual number."""

    code = "confirm_mismatch"

    def __init__(self, what: str, confirmed: int | None, actual: int) -> None:
        self.what, self.confirmed, self.actual = what, confirmed, actual
        meant = "nothing was confirmed" if confirmed is None else f"confirm={confirmed} was given"
        items = "1 item" if actual == 1 else f"{actual:,} items"
        super().__init__(
            f"{what} would remove {items} permanently and {meant}; pass confirm={actual} if that is what you mean"
        )


class ItemActive(Refused):
    """A worker has a lease on the item."""

    code = "item_active"
    retryable = True

    def __init__(self, id: str, worker: str | None) -> None:
        self.id, self.worker = id, worker
        held = f"worker {_show(worker)}" if worker else "a worker"
        super().__init__(
            f"item {id} is being worked on by {held}; wait for it, or revoke the lease by a call that takes "
            f"force, such as retry"
        )


class ItemMoving(Refused):
    """The item is moving to another store, which may have its copy already."""

    code = "item_moving"
    retryable = True

    def __init__(self, id: str, to: str) -> None:
        self.id, self.to = id, to
        super().__init__(
            f"item {id} is moving to {to} and takes no failure any more; put the failure again once the item has "
            f"arrived there, or under another idempotency key; the list of moves says what keeps an item"
        )


class ItemHeld(Refused):
    """The item is held, and cannot be leased until it is released by `unhold`."""

    code = "item_held"

    def __init__(self, id: str, held_by: Sequence[str]) -> None:
        self.id, self.held_by = id, tuple(held_by)
        names = [_show(name) for name in self.held_by]
        holders = " and ".join(names)
        super().__init__(f"item {id} is held by {holders}; to let it go, unhold it from {holders}")


_NEXT_STEP = {
    "archived": "; restore it first",
    "dropped": "; it is in the archive already, and can be restored or purged",
    "moving": "; it can be changed in the other store once it has arrived",
}
_NEXT_STEP_OF_VERB = {("lease", "dead"): "; lease it with include_dead, or redrive it"}


class WrongStatus(Refused):
    """The verb does not apply to an item in that status."""

    code = "wrong_status"

    def __init__(self, verb: str, id: str, status: str, allowed: tuple[str, ...]) -> None:
        self.verb, self.id, self.status, self.allowed = verb, id, status, allowed
        super().__init__(
            f"cannot {verb} item {id}: it is {status}, and {verb} is for items that are {_either(allowed)}"
            f"{_next_step(verb, status)}"
        )


class IdempotencyConflict(Refused):
    """The idempotency key was used for another payload and has not expired."""

    code = "idempotency_conflict"

    def __init__(self, queue: str, key: str, id: str) -> None:
        self.queue, self.key, self.id = queue, key, id
        super().__init__(
            f"idempotency key {_show(key)} was used in queue {_show(queue)} for item {id} with another payload; "
            f"use a key that changes with the payload"
        )


class QueueFull(Refused):
    """The queue holds max_size items that are pending, failed or active."""

    code = "queue_full"
    retryable = True

    def __init__(self, queue: str, size: int, max_size: int, adding: int = 1) -> None:
        self.queue, self.size, self.max_size, self.adding = queue, size, max_size, adding
        super().__init__(
            f"queue {_show(queue)} is full: {size:,} of max_size {max_size:,}, {adding:,} more refused; "
            f"retry later, add workers, or raise max_size"
        )


class QueuePaused(Refused):
    """The queue is paused, and gives no leases."""

    code = "queue_paused"

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(f"queue {_show(queue)} is paused and gives no leases; resume it first")


class QueueGated(Refused):
    """A gate of the queue is closed, or its allowance is used up. `until` is the instant at which it opens, in
    microseconds; None: only after a change of the gate."""

    code = "queue_gated"
    retryable = True

    def __init__(self, queue: str, until: int | None, reason: str) -> None:
        self.queue, self.until, self.reason = queue, until, reason
        end = (
            "for now"
            if until is None
            else f"until {datetime.fromtimestamp(until // 1_000_000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        )
        super().__init__(f"queue {_show(queue)} gives no leases {end} ({reason}); lease the item again after that")


_WITHOUT_LEASE = {
    None: "no queue that you may change has it now: it was completed, dropped or removed, or it was never there",
    "completed": "it is completed now",
    "dead": "it is dead now, and is done again only if it is redriven",
    "archived": "it is archived now, and is done again only if it is restored",
    "moving": "it is moving to another store now, where the work may be done again",
}


class LeaseLost(Refused):
    """The token holds no lease. `status` is the current status of the item; None if the caller can change none."""

    code = "lease_lost"

    def __init__(self, id: str, status: str | None) -> None:
        self.id, self.status = id, status
        now = _WITHOUT_LEASE.get(status) or f"it is {status} now, and the work may be done again"
        super().__init__(f"the lease on item {id} is lost: {now}; drop this outcome")


class WrongQueue(Refused):
    """The leased item is in another queue than the call names."""

    code = "wrong_queue"

    def __init__(self, id: str, queue: str, named: str) -> None:
        self.id, self.queue, self.named = id, queue, named
        super().__init__(
            f"item {id} is in queue {_show(queue)} and the call names queue {_show(named)}; name the queue that it was "
            f"leased from"
        )


class OperationEnded(Refused):
    """The operation has ended, and cannot be paused, resumed or cancelled any more."""

    code = "operation_ended"

    def __init__(self, id: str, status: str) -> None:
        self.id, self.status = id, status
        super().__init__(f"operation {id} is {status} and cannot be changed any more; start another one")


# A task has no result, or not yet.


class ResultUnavailable(RedriveError):
    """The result of a task cannot be returned."""

    code = "result_unavailable"


class TaskFailed(ResultUnavailable):
    """The item of the task is dead. `failure` is the last failure; None if none was reported."""

    code = "task_failed"

    def __init__(self, task: str, id: str, reason: str, title: str, failure: Any = None) -> None:
        self.task, self.id, self.reason, self.title, self.failure = task, id, reason, title, failure
        super().__init__(f"task {_show(task)} is dead ({reason}): {title}; redrive item {id} once the cause is gone")


class ResultNotKept(ResultUnavailable):
    """The task is completed, or its item was removed, and the result was not kept or has expired."""

    code = "result_not_kept"

    def __init__(self, task: str, id: str) -> None:
        self.task, self.id = task, id
        super().__init__(
            f"task {_show(task)} has no result for item {id}: it was completed or removed, and nothing was kept, or no "
            f"longer; declare the task with keep_result='10m', or put it with options(keep_result=…)"
        )


class ResultTimeout(ResultUnavailable):
    """The task is not completed yet. It continues, and its result can be requested again."""

    code = "result_timeout"
    retryable = True

    def __init__(self, task: str, id: str, timeout: int) -> None:
        self.task, self.id, self.timeout = task, id, timeout
        super().__init__(
            f"task {_show(task)} was not done with item {id} within {timeout / 1_000_000:g} s; ask again, or see "
            f"whether a worker runs"
        )


# The store cannot serve the call.


class StoreError(RedriveError):
    """The store cannot serve the call. Nothing was changed."""

    code = "store_error"


class StoreUnavailable(StoreError):
    """The store cannot be opened or reached."""

    code = "store_unavailable"
    retryable = True

    def __init__(self, store: str, problem: str) -> None:
        self.store, self.problem = store, problem
        super().__init__(f"store {store} is not available: {problem}")


class StoreBusy(StoreUnavailable):
    """Another process holds the write lock. `pid` and `command` are None if the system does not report them."""

    code = "store_busy"

    def __init__(
        self, store: str, seconds: float, pid: int | None = None, command: str | None = None, stopped: bool = False
    ) -> None:
        self.seconds, self.pid, self.command, self.stopped = seconds, pid, command, stopped
        if pid is None:
            holder, todo = "another process holds it", f"lsof {store}-lock may name it; end it"
        else:
            holder = f"process {pid} holds it" if command is None else f"process {pid} ({_show(command)}) holds it"
            todo = f"retry, or end process {pid}"
        if stopped:
            holder, todo = f"{holder} and is stopped", f"continue it with kill -CONT {pid}, or end it"
        super().__init__(
            store, f"its write lock was not free within {seconds:g} s: {holder}. Nothing was changed; {todo}"
        )


class StoreReadOnly(StoreError):
    """The file, its folder, or the server does not accept writes."""

    code = "store_read_only"

    def __init__(self, store: str, problem: str = "make the file and its folder writable for this user") -> None:
        self.store = store
        super().__init__(f"store {store} is read-only; {problem}")


class DiskFull(StoreError):
    """No space is left. The call was rolled back."""

    code = "disk_full"
    retryable = True

    def __init__(self, store: str) -> None:
        self.store = store
        super().__init__(f"no space left for store {store}; nothing was changed. Free space and retry")


class NotAStore(StoreError):
    """The file is not a store or is damaged, or the URL is not that of a Redrive server."""

    code = "not_a_store"

    def __init__(
        self, store: str, problem: str = "it is not a Redrive database", remedy: str = "Name another file"
    ) -> None:
        self.store, self.problem, self.remedy = store, problem, remedy
        super().__init__(f"{store} cannot be used: {problem}; it was not touched. {remedy}")


class SchemaTooNew(StoreError):
    """The store was written by a newer Redrive."""

    code = "schema_too_new"

    def __init__(self, store: str, found: int, known: int) -> None:
        self.store, self.found, self.known = store, found, known
        super().__init__(
            f"store {store} has schema {found} and this Redrive knows up to {known}; it was not touched. "
            f"Upgrade Redrive"
        )


class SchemaTooOld(StoreError):
    """The store was written by a development version of Redrive, from before the first release."""

    code = "schema_too_old"

    def __init__(self, store: str, found: int, first: int) -> None:
        self.store, self.found, self.first = store, found, first
        super().__init__(
            f"store {store} has schema {found}, from before the first release; this Redrive reads {first} and later. "
            f"It was not touched. Use a new store; to keep what is in it, export it with the version that wrote it"
        )


class EngineUnsupported(StoreError):
    """The engine is too old or lacks what the store needs."""

    code = "engine_unsupported"

    def __init__(self, engine: str, found: str, problem: str) -> None:
        self.engine, self.found, self.problem = engine, found, problem
        super().__init__(f"{engine} {found} cannot be used: {problem}")


class StoreFailed(StoreError):
    """The engine returned an unexpected error. The call was rolled back."""

    code = "store_failed"

    def __init__(self, store: str, problem: str) -> None:
        self.store, self.problem = store, problem
        super().__init__(f"store {store} failed: {problem}; nothing was changed")


class StoreDamaged(StoreFailed):
    """A stored value cannot be read, and what needs it was not changed. `place` is the table, or the kind of the key,
    and the id of the item or the name of the queue."""

    code = "store_damaged"

    def __init__(self, store: str, place: str) -> None:
        self.place = place
        super().__init__(store, f"a stored value is damaged: {place}; restore a backup of it, or drop the item")


# A server denies the call.


class AccessError(RedriveError):
    """A server denies the call. Nothing was changed."""

    code = "access_error"


class Unauthorized(AccessError):
    """The request had no token, or one that is unknown, expired or revoked."""

    code = "unauthorized"

    def __init__(self, problem: str) -> None:
        self.problem = problem
        super().__init__(f"{problem}; an admin makes a token with: redrive token create")


class Forbidden(AccessError):
    """The token lacks the permission: its roles, its namespaces or its queues do not cover the call."""

    code = "forbidden"

    def __init__(self, permission: str, namespace: str, queue: str | None = None) -> None:
        self.permission, self.namespace, self.queue = permission, namespace, queue
        where = "every queue" if queue is None else f"queue {_show(queue)}"
        super().__init__(
            f"this token does not have the permission {permission} in {where} of namespace {_show(namespace)}; "
            f"ask for one that does"
        )


class OutcomeUnknown(RedriveError):
    """The connection broke while the call was being committed: it happened, or it did not.

    Read the item back, or repeat a put under the same idempotency key.
    """

    code = "outcome_unknown"

    def __init__(self, store: str, problem: str) -> None:
        self.store, self.problem = store, problem
        super().__init__(
            f"store {store} broke off while committing ({problem}): the call happened or it did not; read it back, "
            f"or repeat it under the same idempotency key"
        )


class Overloaded(RedriveError):
    """More calls are waiting to be committed than the committer accepts. This one was not accepted."""

    code = "overloaded"
    retryable = True

    def __init__(self, waiting: int) -> None:
        self.waiting = waiting
        super().__init__(
            f"{waiting:,} calls are waiting to be committed; this one was not accepted. Slow down and retry"
        )


class Closed(RedriveError):
    """The broker was closed before the call."""

    code = "closed"

    def __init__(self) -> None:
        super().__init__("the broker is closed; open it again")


_SHOWN_CHARS = 80


def short_repr(value: object, chars: int) -> str:
    """Return the start of the `ascii` text of a value, for an error text; the name of its type if `ascii` raises."""
    try:
        return ascii(value)[:chars]
    except Exception:
        return f"something of the type {type(value).__name__}"


def _show(value: object) -> str:
    """Return a value as an error text shows it: quoted, short, printable."""
    text = f"'{value}'" if type(value) is str else short_repr(value, _SHOWN_CHARS + 1)
    if not text.isprintable():
        text = short_repr(value, _SHOWN_CHARS + 1)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _next_step(verb: str, status: str) -> str:
    """Return the advice for an item in that status, for the end of an error text."""
    return "" if verb == "undo" else _NEXT_STEP_OF_VERB.get((verb, status), _NEXT_STEP.get(status, ""))


def _either(words: tuple[str, ...]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
