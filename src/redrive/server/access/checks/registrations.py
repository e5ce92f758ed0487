"""Registrations: small values under a name."""

from __future__ import annotations

import msgspec

from redrive.broker.checks import note_of
from redrive.errors import InvalidInput
from redrive.model.limits import MAX_REGISTRATION_BYTES, check_label, check_name
from redrive.server.access.checks import items, values
from redrive.store import Noted, Register, Unregister

_replace = msgspec.structs.replace


def register(call: Register) -> Register:
    """A small value."""
    check_name("kind", call.kind)
    check_label("name", call.name)
    if len(call.value) > MAX_REGISTRATION_BYTES:
        size = len(call.value)
        raise InvalidInput(f"what is registered has {size:,} bytes and the limit is {MAX_REGISTRATION_BYTES:,}")
    values.span("timeout", call.timeout, 1)
    if call.version is not None:
        values.version(call.version)
    checked = items.puts(call.puts)
    if checked is call.puts and call.noted is None:
        return call
    return _replace(call, puts=checked, noted=_noted(call.noted))


def unregister(call: Unregister) -> Unregister:
    """It goes."""
    check_name("kind", call.kind)
    check_label("name", call.name)
    return call if call.noted is None else _replace(call, noted=_noted(call.noted))


def _noted(noted: Noted | None) -> Noted | None:
    if noted is None:
        return None
    check_label("actor", noted.actor)
    check_name("verb", noted.verb)
    return _replace(noted, note=note_of("note", noted.note))
