"""Queues: create, update, get, list, delete, pause, resume, stats; settings that a config file manages; dead queues in
other stores.

Managed settings are registered in the store, so every process refuses other changes. A remote dead queue is linked
before the queue gets the setting, and unlinked after the setting is removed. So a dead queue knows every queue that
uses it. After a crash it may also know one that no longer uses it: `drop_stale_links`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from redrive.broker.flow import CommitCalls, Flow, OnStore, ReadQuery, commit_call, raise_if_refused, run_query
from redrive.broker.flows.registrations import CAPTURE_KIND
from redrive.broker.flows.stale_settings import judge_until_current
from redrive.broker.validation import check_texts
from redrive.contract.admin_calls import (
    CreateQueue,
    DeleteQueue,
    Register,
    Registration,
    SetPaused,
    SetSourceQueue,
    Unhold,
    Unregister,
    UpdateQueue,
)
from redrive.contract.base import MAINTENANCE_BATCH
from redrive.contract.item_calls import StaleSettings
from redrive.contract.queries import GetQueue, GetStats, ListQueues, ListRegistrations, ListStats
from redrive.errors import (
    Forbidden,
    InvalidInput,
    InvalidSetting,
    QueueExists,
    QueueNotFound,
    RedriveError,
    short_repr,
)
from redrive.model.dead_queue import DEAD_QUEUE, remote_dead_queues
from redrive.model.limits import check_name, make_address, split_address
from redrive.model.queue import Queue, QueueSettings, QueueStats
from redrive.model.queue_options import parse_settings

if TYPE_CHECKING:
    from redrive.broker.core import Core

MANAGED_KIND = "managed"
"""The kind of registrations of queues that a config file manages."""


class ManagedSettings(msgspec.Struct, frozen=True):
    """The management of a queue by a config file."""

    file: str
    """The path of the file, on the machine where it was applied."""
    settings: tuple[str, ...] = ()
    """The settings that the file sets. Any process may change the others."""
    is_external: bool = False
    """True if the items of the queue come from a command that lists them."""


def managed_settings_of(queue: str) -> Flow[ManagedSettings | None]:
    """Read the management of a queue; None if no file manages it."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(MANAGED_KIND, queue))
    return read_managed(found[0]) if found else None


def list_managed() -> Flow[dict[str, ManagedSettings]]:
    """Return all queues that a file manages, by name."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(MANAGED_KIND))
    return {each.name: read for each in found if (read := read_managed(each)) is not None}


def manage(queue: str, management: ManagedSettings, version: int | None = None) -> Register:
    """Return the call by which a file takes over a queue, if its management has this version."""
    return Register(MANAGED_KIND, queue, msgspec.json.encode(management), version=version)


def stop_managing(queue: str) -> Unregister:
    """Return the call that ends the management of a queue."""
    return Unregister(MANAGED_KIND, queue)


def release_queue(queue: str) -> Flow[bool]:
    """End the management of a queue by a file that is gone. Returns whether the queue was managed.

    The capture settings that the file registered are removed too: no other program could change them.
    """
    name = check_name("queue", queue)
    results = yield CommitCalls((stop_managing(name), Unregister(CAPTURE_KIND, name)))
    for result in results:
        raise_if_refused(result)
    return any(results)


def check_update(queue: str, management: ManagedSettings | None, before: QueueSettings, after: QueueSettings) -> None:
    """Raise if a change affects a setting that a file manages."""
    if management is None:
        return
    for name in management.settings:
        if getattr(before, name, None) != getattr(after, name, None):
            raise InvalidSetting(name, f"of queue '{queue}' {_refusal(queue, management, 'change it there')}")


def check_delete(queue: str, management: ManagedSettings | None) -> None:
    """Raise if a file manages the queue."""
    if management is not None:
        raise InvalidSetting("queue", f"'{queue}' {_refusal(queue, management, 'remove it there first')}")


def without_settings(
    settings: QueueSettings, names: Iterable[str], defaults: QueueSettings | None = None
) -> QueueSettings:
    """Return the settings with those of these names reset to their defaults."""
    defaults = defaults or QueueSettings()
    return msgspec.structs.replace(settings, **{name: getattr(defaults, name) for name in names})


def _refusal(queue: str, management: ManagedSettings, what: str) -> str:
    return (
        f"is managed by {management.file}: {what}. If that file no longer exists, free the queue with: redrive config "
        f"release {queue}"
    )


def read_managed(registration: Registration) -> ManagedSettings | None:
    """Decode a registration; None if this release cannot read it."""
    try:
        return msgspec.json.decode(registration.value, type=ManagedSettings)
    except ValueError:  # also for texts that are not UTF-8
        return None


def normalize_dead_queue(core: Core, settings: QueueSettings) -> QueueSettings:
    """Return settings in which dead queues of this store are named without it. Raises if another store is unknown."""
    dead_queue = settings.dead_queue
    try:
        if isinstance(dead_queue, dict):
            table = {key: core.address(DEAD_QUEUE, name) for key, name in dead_queue.items()}
            return msgspec.structs.replace(settings, dead_queue=table)
        if dead_queue is not None:
            return msgspec.structs.replace(settings, dead_queue=core.address(DEAD_QUEUE, dead_queue))
    except InvalidInput as error:
        raise InvalidSetting(DEAD_QUEUE, f"cannot be used: {error}") from None
    return settings


def link_dead_queue(core: Core, name: str, settings: QueueSettings) -> Flow[None]:
    """Register this queue as a user of its dead queues in other stores. Raises if one of them cannot be used."""
    for address in remote_dead_queues(settings):
        try:
            raise_if_refused((yield _set_used(core, name, address, used=True))[0])
        except QueueNotFound:
            raise InvalidSetting(DEAD_QUEUE, f"'{address}' does not exist; create it first") from None
        except InvalidSetting:
            raise InvalidSetting(DEAD_QUEUE, f"'{address}' cannot have its own dead_queue") from None


def unlink_dead_queue(core: Core, name: str, addresses: Iterable[str]) -> Flow[None]:
    """Unregister this queue as a user of those dead queues that its current settings do not name."""
    addresses = set(addresses)
    if not addresses:
        return
    try:
        queue: Queue = yield from run_query(GetQueue(name))
    except QueueNotFound:
        pass
    else:
        addresses -= set(remote_dead_queues(queue.settings))
    for address in sorted(addresses):
        try:
            yield _set_used(core, name, address, used=False)
        except RedriveError:
            continue  # checked again before a deletion of the dead queue: `drop_stale_links`


def drop_stale_links(core: Core, queue: Queue) -> Flow[None]:
    """Unregister users of a dead queue that no longer use it, as far as this program knows their stores."""
    here = make_address(queue.name, core.store.name)
    for user in queue.source_queues:
        name, store = split_address(user)
        if store is None or not core.stores.is_known(store):
            continue
        try:
            found: Queue = yield OnStore(store, ReadQuery(GetQueue(name)))
        except QueueNotFound:
            pass
        except RedriveError:
            continue
        else:
            if here in found.settings.dead_queues():
                continue
        yield from commit_call(SetSourceQueue(queue.name, user, used=False))


def _set_used(core: Core, name: str, address: str, *, used: bool) -> OnStore:
    queue, store = split_address(address)
    assert store is not None
    return OnStore(store, CommitCalls([SetSourceQueue(queue, make_address(name, core.store.name), used)]))


def create(core: Core, name: str, settings: Mapping[str, Any]) -> Flow[Queue]:
    """Create a queue with unchecked settings. A dead queue in another store is linked first."""
    name = check_name("queue", name)
    wanted = normalize_dead_queue(core, parse_settings(settings))
    yield from link_dead_queue(core, name, wanted)
    try:
        queue: Queue = yield from commit_call(CreateQueue(name, wanted))
    except RedriveError:
        yield from unlink_dead_queue(core, name, remote_dead_queues(wanted))
        raise
    return queue


def ensure(core: Core, name: str, settings: Mapping[str, Any]) -> Flow[None]:
    """Create a queue if it does not exist. One that exists keeps its settings.

    Raises QueueNotFound if the caller may not create it.
    """
    try:
        yield from core.queue(name)
    except QueueNotFound as missing:
        try:
            core.cache_queue((yield from create(core, name, settings)))
        except QueueExists:  # another process was faster
            yield from get(core, name)
        except Forbidden:
            raise missing from None


def update(core: Core, name: str, changes: Mapping[str, Any], actor: str | None) -> Flow[Queue]:
    """Apply the changes to the newest settings; retry while another process changes them concurrently.

    A change of a setting that a file manages is refused.
    """
    name = check_name("queue", name)
    yield from get(core, name)
    management = yield from managed_settings_of(name)

    def update_once() -> Flow[Queue | StaleSettings]:
        queue = yield from core.queue(name)
        settings = normalize_dead_queue(core, parse_settings(changes, base=queue.settings))
        check_update(name, management, queue.settings, settings)
        named = {*remote_dead_queues(queue.settings), *remote_dead_queues(settings)}
        yield from link_dead_queue(core, name, settings)
        try:
            call = UpdateQueue(queue.name, settings, queue.version, core.actor(actor))
            result: Queue | StaleSettings = yield from commit_call(call)
        except RedriveError:
            yield from unlink_dead_queue(core, name, named)
            raise
        if not isinstance(result, StaleSettings):
            yield from unlink_dead_queue(core, name, named)
        return result

    return core.cache_queue((yield from judge_until_current(core, update_once)))


def get(core: Core, name: str) -> Flow[Queue]:
    """Read a queue, and cache its settings."""
    queue: Queue = yield from run_query(GetQueue(check_name("queue", name)))
    core.cache_queue(queue)
    return queue


def list_all() -> Flow[tuple[Queue, ...]]:
    """Read all queues."""
    return run_query(ListQueues())


def delete(core: Core, name: str, confirm: int | None, actor: str | None) -> Flow[int]:
    """Delete a queue and its items. Refused if a file manages the queue."""
    if confirm is not None and type(confirm) is not int:
        raise InvalidInput(f"confirm must be the number of items you mean, not {short_repr(confirm, 40)}")
    name = check_name("queue", name)
    queue: Queue = yield from run_query(GetQueue(name))
    check_delete(name, (yield from managed_settings_of(name)))
    yield from drop_stale_links(core, queue)
    removed: int = yield from commit_call(DeleteQueue(name, confirm, core.actor(actor)))
    core.evict_queue(name)
    yield from _release_held(queue)
    yield from unlink_dead_queue(core, name, remote_dead_queues(queue.settings))
    return removed


def _release_held(queue: Queue) -> Flow[None]:
    """Release items in other queues that breakers of a deleted queue still hold: they were moved from it."""
    for breaker in queue.breakers:
        while (yield from commit_call(Unhold(breaker.holder(queue.name)))) == MAINTENANCE_BATCH:
            pass


def set_paused(core: Core, name: str, paused: bool, actor: str | None) -> Flow[Queue]:
    """Pause or resume a queue."""
    return _send(SetPaused(check_name("queue", name), paused, core.actor(actor)))


def stats(name: str) -> Flow[QueueStats]:
    """Read the statistics of a queue."""
    return run_query(GetStats(check_name("queue", name)))


def list_stats(names: Iterable[str] | None) -> Flow[tuple[QueueStats, ...]]:
    """Read the statistics of all queues, or of some."""
    if names is None:
        return run_query(ListStats())
    return run_query(ListStats(check_texts("names", names, "names of queues", lambda name: check_name("queue", name))))


def _send(call: SetPaused) -> Flow[Queue]:
    queue: Queue = yield from commit_call(call)
    return queue
