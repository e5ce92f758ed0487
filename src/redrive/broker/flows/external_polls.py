"""External queues: the record of their listings, and requests to list one now. Both are registrations."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from redrive.broker.flow import Flow, commit_call, run_query
from redrive.broker.flows import queues
from redrive.contract.admin_calls import Register, Registration, VersionConflict
from redrive.contract.queries import ListRegistrations
from redrive.errors import Forbidden
from redrive.model.duration import DAY
from redrive.model.limits import check_name
from redrive.model.poll_info import PollInfo

POLL = "poll"
"""The kind of registrations of listings, by queue."""
REQUEST = "poll_request"
"""The kind of registrations of requests to list a queue now, by queue."""
PUT_AGAIN = "put_again"
"""The kind of registrations of objects that were put again after their item was removed, by QUEUE/DIGEST of the key."""
POLL_TIMEOUT = 30 * DAY
REQUEST_TIMEOUT = DAY
MAX_ROUNDS = 20
"""Maximum number of attempts of a change that conflicts with other processes."""
_decode = msgspec.json.Decoder(PollInfo).decode


def external_queues() -> Flow[dict[str, PollInfo]]:
    """Return all external queues with their listings, as far as the caller may see them."""
    try:
        found: tuple[Registration, ...] = yield from run_query(ListRegistrations(POLL))
        listed = {each.name: _read(each) for each in found}
        managements = yield from queues.list_managed()
    except Forbidden:
        return {}
    return {name: listed.get(name, PollInfo()) for name, each in managements.items() if each.is_external}


def external_queue(queue: str) -> Flow[PollInfo | None]:
    """Return the listings of an external queue. None for any other queue, or if the caller may not see it."""
    try:
        management = yield from queues.managed_settings_of(queue)
        if management is None or not management.is_external:
            return None
        return (yield from poll_of(queue)) or PollInfo()
    except Forbidden:
        return None


def poll_of(queue: str) -> Flow[PollInfo | None]:
    """Return the listings of one queue. None if it was not listed within POLL_TIMEOUT."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(POLL, queue))
    return _read(found[0]) if found else None


def record(queue: str, change: Callable[[PollInfo], PollInfo]) -> Flow[None]:
    """Record one more listing. Safe with concurrent processes."""
    for _ in range(MAX_ROUNDS):
        found: tuple[Registration, ...] = yield from run_query(ListRegistrations(POLL, queue))
        before, version = (_read(found[0]), found[0].version) if found else (PollInfo(), 0)
        value = msgspec.json.encode(change(before))
        written: Registration | VersionConflict = yield from commit_call(
            Register(POLL, queue, value, POLL_TIMEOUT, version)
        )
        if isinstance(written, Registration):
            return


def request(queue: str) -> Flow[None]:
    """Ask every process that lists the queue to do so now."""
    yield from commit_call(Register(REQUEST, check_name("queue", queue), b"", REQUEST_TIMEOUT))


def requested(queue: str) -> Flow[tuple[Registration, ...]]:
    """Return the last request to list a queue. If it differs from the one seen before, it is new."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(REQUEST, queue))
    return found


def put_again(queue: str) -> Flow[dict[str, str]]:
    """Return the objects of a queue that were put again: the removed item by the digest of the key."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(PUT_AGAIN))
    start = f"{queue}/"
    own = [each for each in found if each.name.startswith(start)]
    return {each.name.removeprefix(start): each.value.decode(errors="replace") for each in own}


def remember_put_again(queue: str, digest: str, removed: str, timeout: int) -> Flow[None]:
    """Record that an object is put again because this item of it was removed."""
    yield from commit_call(Register(PUT_AGAIN, f"{queue}/{digest}", removed.encode(), timeout))


def _read(registration: Registration) -> PollInfo:
    try:
        return _decode(registration.value)
    except ValueError:  # also for texts that are not UTF-8
        return PollInfo()
