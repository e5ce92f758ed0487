"""The rules about dead queues, which every store checks when a queue is created and when it is updated.

A queue that receives dead items of others has no dead queue itself, so that a dead item moves once and stays.
"""

from __future__ import annotations

from collections.abc import Mapping

from redrive.errors import InvalidSetting
from redrive.model.limits import is_remote
from redrive.model.queue import QueueSettings

DEAD_QUEUE = "dead_queue"


def check_dead_queues(
    name: str, settings: QueueSettings, queues: Mapping[str, QueueSettings], source_queues: tuple[str, ...] = ()
) -> None:
    """Raise `InvalidSetting` unless queue `name` may have these settings among `queues`.

    `queues` may contain `name`, whose settings there are ignored. `source_queues` are the queues of other stores that
    use it as their dead queue. Dead queues in other stores are checked there, by the broker.
    """
    for dead_queue in local_dead_queues(settings):
        if dead_queue == name:
            raise InvalidSetting(DEAD_QUEUE, "cannot reference itself")
        if dead_queue not in queues:
            raise InvalidSetting(DEAD_QUEUE, f"'{dead_queue}' does not exist; create it first")
        if queues[dead_queue].dead_queue is not None:
            raise InvalidSetting(DEAD_QUEUE, f"'{dead_queue}' cannot have its own dead_queue")
    if settings.dead_queue is not None and (source_queues or source_queues_of(name, queues)):
        raise InvalidSetting(DEAD_QUEUE, f"'{name}' cannot have its own dead_queue")


def check_source_queue(name: str, settings: QueueSettings) -> None:
    """Raise `InvalidSetting` unless a queue with these settings may be the dead queue of a queue in another store."""
    if settings.dead_queue is not None:
        raise InvalidSetting(DEAD_QUEUE, f"'{name}' cannot have its own dead_queue")


def source_queues_after(source_queues: tuple[str, ...], user: str, *, used: bool) -> tuple[str, ...]:
    """Return the queues of other stores that use a queue, after `user` has started (`used`) or stopped to use it."""
    others = {each for each in source_queues if each != user}
    return tuple(sorted({*others, user} if used else others))


def local_dead_queues(settings: QueueSettings) -> tuple[str, ...]:
    """Return the dead queues in the same store."""
    return tuple(name for name in settings.dead_queues() if not is_remote(name))


def remote_dead_queues(settings: QueueSettings) -> tuple[str, ...]:
    """Return the dead queues in other stores, as `name@store`."""
    return tuple(name for name in settings.dead_queues() if is_remote(name))


def source_queues_of(name: str, queues: Mapping[str, QueueSettings]) -> tuple[str, ...]:
    """Return the other queues that name this one as a dead queue, sorted."""
    return tuple(sorted(user for user, settings in queues.items() if user != name and name in settings.dead_queues()))
