"""Settings that a file manages: registered in the store, so that every process refuses to change them otherwise."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from redrive.broker.flow import Flow, ask, send
from redrive.errors import InvalidSetting
from redrive.model.limits import check_name
from redrive.model.queue import QueueSettings
from redrive.store import ListRegistrations, Register, Registration, Unregister

KIND = "managed"
"""What queues of a file are registered as."""


class Management(msgspec.Struct, frozen=True):
    """Who manages a queue."""

    file: str
    """The path of the file, on the machine where it was applied."""
    settings: tuple[str, ...] = ()
    """What the file sets. Other settings of the queue are anybody's."""
    is_external: bool = False
    """Whether the items of the queue come from a command that lists them."""


def management_of(queue: str) -> Flow[Management | None]:
    """Who manages a queue; None where nobody does."""
    found: tuple[Registration, ...] = yield from ask(ListRegistrations(KIND, queue))
    return _read(found[0]) if found else None


def managements() -> Flow[dict[str, Management]]:
    """All queues that a file manages, by name."""
    found: tuple[Registration, ...] = yield from ask(ListRegistrations(KIND))
    return {each.name: read for each in found if (read := _read(each)) is not None}


def manage(queue: str, management: Management) -> Register:
    """The call by which a file takes a queue over."""
    return Register(KIND, queue, msgspec.json.encode(management))


def leave(queue: str) -> Unregister:
    """The call by which nobody manages a queue any more."""
    return Unregister(KIND, queue)


def release(queue: str) -> Flow[bool]:
    """Nobody manages a queue any more; for a file that is gone. Gives whether somebody did."""
    released: bool = yield from send(leave(check_name("queue", queue)))
    return released


def check_update(queue: str, management: Management | None, before: QueueSettings, after: QueueSettings) -> None:
    """Raise where a change touches what a file manages."""
    if management is None:
        return
    for name in management.settings:
        if getattr(before, name, None) != getattr(after, name, None):
            raise InvalidSetting(name, f"of queue '{queue}' {_refusal(queue, management, 'change it there')}")


def check_delete(queue: str, management: Management | None) -> None:
    """Raise where a file has the queue."""
    if management is not None:
        raise InvalidSetting("queue", f"'{queue}' {_refusal(queue, management, 'remove it there first')}")


def without(settings: QueueSettings, names: Iterable[str]) -> QueueSettings:
    """Settings in which these have their defaults again."""
    defaults = QueueSettings()
    return msgspec.structs.replace(settings, **{name: getattr(defaults, name) for name in names})


def _refusal(queue: str, management: Management, what: str) -> str:
    return (
        f"is managed by {management.file}: {what}. If that file is gone for good, free the queue with: redrive config "
        f"release {queue}"
    )


def _read(registration: Registration) -> Management | None:
    """None where it was written by nobody that is known here."""
    try:
        return msgspec.json.decode(registration.value, type=Management)
    except ValueError:  # also for texts that are not UTF-8
        return None
