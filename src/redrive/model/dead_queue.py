"""The rules about dead queues, checked by every store from both sides: when a queue is created and when it is updated.

A queue that receives the dead of others has no dead queue of its own, so that a dead item moves once and stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from redrive.errors import InvalidSetting
from redrive.model.queue import QueueSettings

_SETTING = "dead_queue"


def check_dead_queues(name: str, settings: QueueSettings, queues: Mapping[str, QueueSettings]) -> None:
    """Raise `InvalidSetting` unless queue `name` may have these settings among `queues`.

    `queues` may or may not have `name` in it; the settings that it has there do not matter.
    """
    for dead_queue in settings.dead_queues():
        if dead_queue == name:
            raise InvalidSetting(_SETTING, "cannot reference itself")
        if dead_queue not in queues:
            raise InvalidSetting(_SETTING, f"'{dead_queue}' does not exist; create it first")
        if queues[dead_queue].dead_queue is not None:
            raise InvalidSetting(_SETTING, f"'{dead_queue}' cannot have its own dead_queue")
    if settings.dead_queue is not None and users_of(name, queues):
        raise InvalidSetting(_SETTING, f"'{name}' cannot have its own dead_queue")


def users_of(name: str, queues: Mapping[str, QueueSettings]) -> tuple[str, ...]:
    """The other queues that name this one as a dead queue, in order."""
    return tuple(sorted(user for user, settings in queues.items() if user != name and name in settings.dead_queues()))
