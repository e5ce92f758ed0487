"""Queues: create, update, get, list, delete, pause, resume, stats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redrive.broker import dead_queues, managed
from redrive.broker.flow import Flow, ask, send
from redrive.errors import InvalidInput, RedriveError, StoreFailed, shown
from redrive.model.dead_queue import elsewhere
from redrive.model.limits import check_name
from redrive.model.queue import Queue, QueueStats, settings_from
from redrive.store import CreateQueue, DeleteQueue, GetQueue, GetStats, ListQueues, SetPaused, Stale, UpdateQueue

if TYPE_CHECKING:
    from redrive.broker.core import Core

MAX_ROUNDS = 100
"""How often a change that met newer settings is tried again before giving up."""


def create(core: Core, name: str, settings: Mapping[str, Any]) -> Flow[Queue]:
    """Create a queue from what a person wrote. A dead queue in another store is told first."""
    name = check_name("queue", name)
    wanted = dead_queues.addressed(core, settings_from(settings))
    yield from dead_queues.tell(core, name, wanted)
    try:
        queue: Queue = yield from send(CreateQueue(name, wanted))
    except RedriveError:
        yield from dead_queues.take_back(core, name, elsewhere(wanted))
        raise
    return queue


def update(core: Core, name: str, changes: Mapping[str, Any], actor: str | None) -> Flow[Queue]:
    """Apply the changes to the newest settings, again and again until nobody else changed them in between.

    What a file manages is refused.
    """
    name = check_name("queue", name)
    queue = yield from get(core, name)
    management = yield from managed.management_of(name)
    for _ in range(MAX_ROUNDS):
        settings = dead_queues.addressed(core, settings_from(changes, base=queue.settings))
        managed.check_update(name, management, queue.settings, settings)
        named = {*elsewhere(queue.settings), *elsewhere(settings)}
        yield from dead_queues.tell(core, name, settings)
        try:
            result = yield from send(UpdateQueue(queue.name, settings, queue.version, core.actor(actor)))
        except RedriveError:
            yield from dead_queues.take_back(core, name, named)
            raise
        if not isinstance(result, Stale):
            yield from dead_queues.take_back(core, name, named)
            core.remember(result)
            updated: Queue = result
            return updated
        queue = result.queue
    raise unsettled(core, name)


def get(core: Core, name: str) -> Flow[Queue]:
    """Read a queue, and remember its settings."""
    queue: Queue = yield from ask(GetQueue(check_name("queue", name)))
    core.remember(queue)
    return queue


def list_all() -> Flow[tuple[Queue, ...]]:
    """Read all queues."""
    return ask(ListQueues())


def delete(core: Core, name: str, confirm: int | None, actor: str | None) -> Flow[int]:
    """Remove a queue and what is in it. One that a file has is refused."""
    if confirm is not None and type(confirm) is not int:
        raise InvalidInput(f"confirm must be the number of items you mean, not {shown(confirm, 40)}")
    name = check_name("queue", name)
    queue: Queue = yield from ask(GetQueue(name))
    managed.check_delete(name, (yield from managed.management_of(name)))
    yield from dead_queues.forget_users(core, queue)
    removed: int = yield from send(DeleteQueue(name, confirm, core.actor(actor)))
    core.forget(name)
    yield from dead_queues.take_back(core, name, elsewhere(queue.settings))
    return removed


def set_paused(core: Core, name: str, paused: bool, actor: str | None) -> Flow[Queue]:
    """Pause or resume."""
    return _send(SetPaused(check_name("queue", name), paused, core.actor(actor)))


def stats(name: str) -> Flow[QueueStats]:
    """Read the counts."""
    return ask(GetStats(check_name("queue", name)))


def _send(call: SetPaused) -> Flow[Queue]:
    queue: Queue = yield from send(call)
    return queue


def unsettled(core: Core, name: str) -> StoreFailed:
    """Nobody edits settings that fast: something is wrong with the store, and giving up loses nothing."""
    return StoreFailed(core.store.name, f"the settings of queue '{name}' changed {MAX_ROUNDS} times meanwhile")
