"""Registrations: small values by kind and name, and the workers among them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Flow, commit_call, run_query
from redrive.broker.validation import check_integer, check_positive
from redrive.contract.admin_calls import AuditNote, Register, Registration, Unregister, VersionConflict
from redrive.contract.item_calls import Put
from redrive.contract.queries import ListRegistrations
from redrive.errors import InvalidInput
from redrive.model.duration import SECOND, DurationInput
from redrive.model.ids import MAX_NUMBER
from redrive.model.limits import MAX_REGISTRATION_BYTES, check_label, check_name
from redrive.model.worker_info import WorkerInfo

if TYPE_CHECKING:
    from redrive.broker.core import Core

WORKER_KIND = "worker"
"""The kind of registrations of workers."""
CLAIMED = "taken"
"""The kind of registrations of objects that a worker has claimed from an external queue, by QUEUE/DIGEST."""
MANUAL_RETRIES = "manual_retries"
"""The kind of registrations that count the manual retries of captured tasks, by queue."""
SUSPECTS_KIND = "suspects"
"""The kind of registrations of workers whose turn it is to run the suspects of a queue, by queue."""
CAPTURE_KIND = "capture"
"""The kind of registrations of settings that a config file has for capture queues, by queue."""
DISCLOSURE_KIND = "disclosure"
"""The kind of registrations whose audit rows name who saw values that redaction hides, by queue."""
ALL_QUEUES = "*"
"""The name of a disclosure that is not of one queue."""
SHOWN, EXPORTED = "reveal", "export"
"""The verbs of disclosures in the audit."""
TIMEOUT = 30 * SECOND
"""A worker without a heartbeat for this long counts as gone."""
_decode = msgspec.json.Decoder(WorkerInfo).decode


def register(
    kind: str,
    name: str,
    value: bytes,
    *,
    timeout: DurationInput | None = None,
    version: int | None = None,
    puts: tuple[Put, ...] = (),
) -> Flow[Registration | VersionConflict]:
    """Write a small value under a kind and a name, as `Register` of the contract says."""
    if not isinstance(value, bytes):
        raise InvalidInput(f"what is registered is bytes, not {type(value).__name__}")
    if len(value) > MAX_REGISTRATION_BYTES:
        raise InvalidInput(f"what is registered has {len(value):,} bytes and the limit is {MAX_REGISTRATION_BYTES:,}")
    if version is not None:
        check_integer("version", version, 0, MAX_NUMBER)
    limit = None if timeout is None else check_positive("timeout", timeout)
    call = Register(check_name("kind", kind), check_label("name", name), value, limit, version, puts)
    written: Registration | VersionConflict = yield from commit_call(call)
    return written


def disclose(core: Core, verb: str, queue: str | None, what: str) -> Flow[None]:
    """Write an audit row before an actor gets values that redaction hides."""
    where = "all queues" if queue is None else f"queue '{queue}'"
    note = AuditNote(core.actor(None), verb, f"{what} of {where}")
    yield from commit_call(Register(DISCLOSURE_KIND, queue or ALL_QUEUES, b"", audit=note))


def unregister(kind: str, name: str) -> Flow[bool]:
    """Remove a registration. Returns whether it existed."""
    removed: bool = yield from commit_call(Unregister(check_name("kind", kind), check_label("name", name)))
    return removed


def list_registrations(kind: str, name: str | None = None) -> Flow[tuple[Registration, ...]]:
    """Return registrations of a kind, by name."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(kind, name))
    return found


def register_worker(info: WorkerInfo) -> Flow[None]:
    """Register a worker as alive for TIMEOUT. Its handlers are omitted if the value would be too large."""
    value = msgspec.json.encode(info)
    if len(value) > MAX_REGISTRATION_BYTES:
        value = msgspec.json.encode(msgspec.structs.replace(info, handlers=None))
    yield from commit_call(Register(WORKER_KIND, check_label("worker", info.name), value, TIMEOUT))


def unregister_worker(name: str) -> Flow[bool]:
    """Remove the registration of a worker. Returns whether it existed."""
    return (yield from unregister(WORKER_KIND, name))


def workers() -> Flow[tuple[WorkerInfo, ...]]:
    """Return the live workers, by name. Registrations that cannot be read, such as of another release, are skipped."""
    found = yield from list_registrations(WORKER_KIND)
    return tuple(info for each in found if (info := _read(each)) is not None)


def _read(registration: Registration) -> WorkerInfo | None:
    try:
        info = _decode(registration.value)
    except ValueError:  # also for texts that are not UTF-8
        return None
    return msgspec.structs.replace(info, name=registration.name, seen_at=registration.at)
