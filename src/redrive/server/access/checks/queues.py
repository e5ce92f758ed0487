"""Queues and their settings."""

from __future__ import annotations

import msgspec

from redrive.broker.checks import whole
from redrive.errors import InvalidInput
from redrive.model.address import check_address, is_elsewhere
from redrive.model.ids import MAX_NUMBER
from redrive.model.limits import check_label
from redrive.model.queue import checked_settings
from redrive.server.access.checks import values
from redrive.store import CreateQueue, DeleteQueue, SetPaused, SetUsedBy, UpdateQueue

_replace = msgspec.structs.replace


def create(call: CreateQueue) -> CreateQueue:
    """A new queue."""
    values.queue(call.name)
    return _replace(call, settings=checked_settings(call.settings))


def update(call: UpdateQueue) -> UpdateQueue:
    """Other settings."""
    values.queue(call.name)
    values.version(call.version)
    check_label("actor", call.actor)
    return _replace(call, settings=checked_settings(call.settings))


def set_paused(call: SetPaused) -> SetPaused:
    """Pause or resume."""
    values.queue(call.name)
    check_label("actor", call.actor)
    return call


def set_used_by(call: SetUsedBy) -> SetUsedBy:
    """A queue of another store uses this one."""
    values.queue(call.name)
    if not is_elsewhere(check_address("user", call.user)):
        raise InvalidInput(f"'{call.user}' is no queue of another store; write name@store")
    return call


def delete(call: DeleteQueue) -> DeleteQueue:
    """A queue goes."""
    values.queue(call.name)
    check_label("actor", call.actor)
    if call.confirm is not None:
        whole("confirm", call.confirm, 0, MAX_NUMBER)
    return call
