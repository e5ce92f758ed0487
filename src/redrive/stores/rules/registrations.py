"""Registrations: small values of the namespace by kind and name, some with an expiry."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.clock import Instant
from redrive.contract.admin_calls import AuditNote, Register, Registration, Unregister, VersionConflict
from redrive.contract.queries import ListRegistrations
from redrive.stores.rules.puts import PutPlan
from redrive.stores.rules.state import State


def register(state: State, call: Register) -> Registration | VersionConflict:
    """Save a registration. The puts are checked before any change."""
    present = _alive(state, call.kind, call.name)
    version = 0 if present is None else present.version
    if call.version is not None and call.version != version:
        return VersionConflict(present)
    plan = PutPlan(state)
    for put in call.puts:
        plan.add(put)
    until = None if call.timeout is None else Instant(state.now + call.timeout)
    registration = Registration(call.kind, call.name, call.value, version + 1, state.now, until)
    state.registrations.save(registration)
    plan.apply()
    _note(state, call.audit)
    return registration


def unregister(state: State, call: Unregister) -> bool:
    """Remove a registration and return whether it existed. An expired one counts as absent."""
    present = _alive(state, call.kind, call.name)
    if present is not None:
        state.registrations.remove(call.kind, call.name)
        _note(state, call.audit)
    return present is not None


def list_registrations(state: State, query: ListRegistrations) -> tuple[Registration, ...]:
    """Return all registrations of a kind, or the one with a name."""
    found: Iterable[Registration]
    if query.name is None:
        found = state.registrations.of(query.kind)
    else:
        named = state.registrations.get(query.kind, query.name)
        found = () if named is None else (named,)
    return tuple(sorted((each for each in found if each.is_alive(state.now)), key=lambda each: each.name))


def _note(state: State, noted: AuditNote | None) -> None:
    if noted is not None:
        state.write_audit(noted.actor, noted.verb, None, (), 0, noted.note)


def _alive(state: State, kind: str, name: str) -> Registration | None:
    found = state.registrations.get(kind, name)
    return found if found is not None and found.is_alive(state.now) else None
