"""Registrations: small values of the namespace by kind and name, some with an expiry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from redrive.clock import Instant
from redrive.contract.admin_calls import AuditNote, Register, Registration, Unregister, VersionConflict
from redrive.contract.queries import ListRegistrations
from redrive.stores.relational import verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.puts import put_batch
from redrive.stores.relational.session import Executor

_ALIVE = "(expires_at IS NULL OR expires_at > ?)"
_WRITE = """
    INSERT INTO redrive_registration AS there (namespace, kind, name, version, value, at, expires_at)
    VALUES (?1, ?2, ?3, 1, ?4, ?5, ?6)
    ON CONFLICT (namespace, kind, name) DO UPDATE
    SET version = CASE WHEN there.expires_at IS NULL OR there.expires_at > ?5 THEN there.version + 1 ELSE 1 END,
        value = excluded.value, at = excluded.at, expires_at = excluded.expires_at
    RETURNING version"""
"""Concurrent transactions may write a registration without a version: each finds the version of the one before."""
_REMOVE = f"DELETE FROM redrive_registration WHERE namespace = ? AND kind = ? AND name = ? AND {_ALIVE} RETURNING 1"
_OF_KIND = f"""
    SELECT kind, name, value, version, at, expires_at FROM redrive_registration
    WHERE namespace = ? AND kind = ? AND {_ALIVE} ORDER BY name"""
_NAMED = f"""
    SELECT kind, name, value, version, at, expires_at FROM redrive_registration
    WHERE namespace = ? AND kind = ? AND {_ALIVE} AND name = ?"""


def register(batch: Batch, call: Register) -> Registration | VersionConflict:
    """Save a registration. The puts are checked before any write."""
    if call.version is not None:
        present = next(iter(_read(batch, batch.namespace_key, call.kind, call.name, batch.now)), None)
        if call.version != (0 if present is None else present.version):
            return VersionConflict(present)
    put_batch(batch, call.puts)
    until = None if call.timeout is None else Instant(batch.now + call.timeout)
    written = (batch.namespace_key, call.kind, call.name, call.value, batch.now, until)
    version = batch.execute(_WRITE, written).get
    _note(batch, call.audit)
    return Registration(call.kind, call.name, call.value, version, batch.now, until)


def unregister(batch: Batch, call: Unregister) -> bool:
    """Remove a registration and return whether it existed. An expired one counts as absent."""
    was_there = batch.execute(_REMOVE, (batch.namespace_key, call.kind, call.name, batch.now)).get is not None
    if was_there:
        _note(batch, call.audit)
    return was_there


def _note(batch: Batch, noted: AuditNote | None) -> None:
    if noted is not None:
        verdicts.audit(batch, noted.actor, noted.verb, None, [], 0, noted.note)


def list_registrations(
    executor: Executor, namespace_key: int | None, query: ListRegistrations, now: Instant
) -> tuple[Registration, ...]:
    """Return all registrations of a kind, or the one with a name."""
    return tuple(_read(executor, namespace_key, query.kind, query.name, now))


def _read(
    executor: Executor, namespace_key: int | None, kind: str, name: str | None, now: Instant
) -> Iterable[Registration]:
    values = (namespace_key, kind, now)
    rows: Iterable[Any] = (
        executor.execute(_OF_KIND, values) if name is None else executor.execute(_NAMED, (*values, name))
    )
    return [Registration(*row) for row in rows]
