"""Queries: the rules of `redrive.stores.rules`, and where Redis has a shorter way."""

from __future__ import annotations

from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.store import (
    AuditEntry,
    Destination,
    GetHeld,
    GetKeyHolders,
    GetOverdue,
    ListAudit,
    ListDestinations,
    NextDue,
    Query,
)
from redrive.stores.redis.hot import lease_of
from redrive.stores.redis.keys import score_of
from redrive.stores.redis.session import Session
from redrive.stores.redis.state import RedisState
from redrive.stores.rules.calls import answer as follow_rules

_read_audit = msgspec.msgpack.Decoder(AuditEntry).decode


def answer(state: RedisState, session: Session, query: Query, now: Instant) -> Any:
    """The answer to a query. Raises the errors that its docstring names."""
    match query:
        case ListAudit():
            return _audit(session, query)
        case NextDue():
            heads = _heads(state, session, ("waiting", "expiring", "leases"))
            return min((at for at in (*heads.values(), state.operations.next_at()) if at is not None), default=None)
        case GetOverdue(queue=None):
            heads = _heads(state, session, ("expiring", "leases"))
            overdue = {name: state.queues.values_now[name] for (name, _), at in heads.items() if at <= now}
            state.queues.values_now = overdue
        case GetKeyHolders():
            state.read_ahead(query.queue, "keys", query.keys)
        case ListDestinations():
            return _destinations(state)
        case GetHeld():
            return tuple(lease_of(*raw) for raw in session.held(query.worker, query.limit))
    return follow_rules(state, query, now)


def _heads(state: RedisState, session: Session, kinds: tuple[str, ...]) -> dict[tuple[str, str], Instant]:
    """The earliest instant in indexes of every queue."""
    places = [(queue, kind) for queue in state.queues.values_now for kind in kinds]
    commands = [("ZRANGE", session.keys.of(kind, queue), 0, 0, "WITHSCORES") for queue, kind in places]
    answers = session.look(*commands)
    return {place: Instant(score_of(head[1])) for place, head in zip(places, answers, strict=True) if head}


def _destinations(state: RedisState) -> tuple[Destination, ...]:
    """The last item of one may arrive between two looks."""
    first = ((to, state.items[id]) for to in state.destinations() for id in state.moving_ids(to, 1))
    return tuple(Destination(to, item.passage.since) for to, item in first if item.passage is not None)


def _audit(session: Session, query: ListAudit) -> tuple[AuditEntry, ...]:
    """Entries are numbered from 1 in the order in which they were written."""
    key = session.keys.of("audit")
    (length,) = session.look(("LLEN", key))
    end = length if query.before is None else max(0, min(query.before - 1, length))
    start = max(0, end - query.limit)
    (raw,) = session.look(("LRANGE", key, start, end - 1)) if end else ((),)
    entries = [msgspec.structs.replace(_read_audit(each), number=start + place) for place, each in enumerate(raw, 1)]
    return tuple(reversed(entries))
