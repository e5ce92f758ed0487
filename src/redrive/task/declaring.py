"""Declared queues become queues of a store: missing ones are created, and what a declaration names is set."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from redrive.broker import dead_queues, queues
from redrive.broker.flow import Flow
from redrive.errors import QueueExists, QueueNotFound
from redrive.model.address import is_elsewhere
from redrive.model.queue import settings_from

if TYPE_CHECKING:
    from redrive.broker.core import Core


def declare(core: Core, declared: Mapping[str, Mapping[str, Any]]) -> Flow[None]:
    """Create or update each queue. Settings that the declaration does not name stay as somebody set them.

    Dead queues come first, and one that nobody declared is created with default settings where it is missing.
    """
    wanted = {name: dead_queues.addressed(core, settings_from(settings)) for name, settings in declared.items()}
    named = {name: [to for to in settings.dead_queues() if not is_elsewhere(to)] for name, settings in wanted.items()}
    for name in _dead_queues_first(named):
        yield from _declare(core, name, declared.get(name, {}))


def _declare(core: Core, name: str, settings: Mapping[str, Any]) -> Flow[None]:
    try:
        queue = yield from queues.get(core, name)
    except QueueNotFound:
        try:
            yield from queues.create(core, name, settings)
            return
        except QueueExists:  # somebody was faster
            queue = yield from queues.get(core, name)
    if dead_queues.addressed(core, settings_from(settings, base=queue.settings)) != queue.settings:
        yield from queues.update(core, name, settings, None)


def _dead_queues_first(named: Mapping[str, Iterable[str]]) -> list[str]:
    dead = dict.fromkeys(to for tos in named.values() for to in tos)
    return [*dead, *(name for name in named if name not in dead)]
