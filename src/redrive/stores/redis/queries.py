"""Queries by the rules of `redrive.stores.rules`, or by commands of Redis if these need less to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from redrive.clock import Instant
from redrive.contract import Query
from redrive.contract.base import FEED_RETENTION, OPERATION_RETENTION
from redrive.contract.queries import (
    AuditEntry,
    GetIdempotencyOwners,
    GetItemsByKey,
    GetNextDue,
    GetOverdue,
    ListAudit,
    ListMoveTargets,
    ListStats,
    ListWorkerLeases,
    MoveTarget,
)
from redrive.model.limits import MAX_BATCH
from redrive.model.queue import Queue, QueueStats
from redrive.stores.redis.fast_path_results import leases_of
from redrive.stores.redis.keys import score_of
from redrive.stores.redis.queue_state import read_stats
from redrive.stores.redis.state import RedisState
from redrive.stores.redis.unit_of_work import Session
from redrive.stores.rules.damage import UNREADABLE_TITLE, read_value
from redrive.stores.rules.dispatch import answer_query as follow_rules

_UNREADABLE = AuditEntry(0, Instant(0), "", UNREADABLE_TITLE, None, (), 0)
_read_audit = msgspec.msgpack.Decoder(AuditEntry).decode


def answer_query(state: RedisState, session: Session, query: Query, now: Instant) -> Any:
    """Return the answer to a query. Raises the errors that the docstring of the query names."""
    match query:
        case ListAudit():
            return _audit(session, query)
        case GetNextDue():
            heads = _heads(state, session, ("waiting", "expiring", "leases"))
            return min((at for at in (*heads.values(), state.operations.next_at()) if at is not None), default=None)
        case GetOverdue(queue=None):
            heads = _heads(state, session, ("expiring", "leases"))
            overdue = {name: state.queues.current_values[name] for (name, _), at in heads.items() if at <= now}
            state.queues.current_values = overdue
        case GetIdempotencyOwners() | GetItemsByKey():
            state.prefetch(query.queue, "keys", query.keys)
        case ListStats():
            return tuple(_stats(state, session, query, now))
        case ListMoveTargets():
            return _move_targets(state)
        case ListWorkerLeases():
            return tuple(leases_of(session.worker_leases(query.worker, query.limit)))
    session.load(query.item_ids)
    return follow_rules(state, query, now)


def _stats(state: RedisState, session: Session, query: ListStats, now: Instant) -> Iterator[QueueStats]:
    """Return the counts of queues by name, a page of them with each round trip: a long script blocks the server."""
    values = state.queues.current_values
    names = sorted(values if query.names is None else values.keys() & set(query.names))
    for start in range(0, len(names), MAX_BATCH):
        yield from read_stats(session, values, names[start : start + MAX_BATCH], now)


def _heads(state: RedisState, session: Session, kinds: tuple[str, ...]) -> dict[tuple[str, str], Instant]:
    """Return the earliest instant in indexes of every queue, by queue and kind."""
    indexes = [(queue, kind) for queue in state.queues.current_values for kind in kinds]
    commands = [("ZRANGE", session.keys.of(kind, queue), 0, 0, "WITHSCORES") for queue, kind in indexes]
    answers = session.fetch(*commands)
    return {index: Instant(score_of(head[1])) for index, head in zip(indexes, answers, strict=True) if head}


def _move_targets(state: RedisState) -> tuple[MoveTarget, ...]:
    """Return targets with the departure of their first item. The last item may arrive between two reads."""
    first = ((to, state.items[id]) for to in state.destinations() for id in state.moving_ids(to, 1))
    return tuple(MoveTarget(to, item.route.since) for to, item in first if item.route is not None)


def _audit(session: Session, query: ListAudit) -> tuple[AuditEntry, ...]:
    """Return entries, newest first. They are numbered from 1 in the order in which they were written."""
    key = session.keys.of("audit")
    (length,) = session.fetch(("LLEN", key))
    end = length if query.before is None else max(0, min(query.before - 1, length))
    start = max(0, end - query.limit)
    (raw,) = session.fetch(("LRANGE", key, start, end - 1)) if end else ((),)
    read = [read_value(_read_audit, each, _UNREADABLE, tuple) for each in raw]
    entries = [msgspec.structs.replace(entry, number=number) for number, entry in enumerate(read, start + 1)]
    return tuple(reversed(entries))


def queues_to_clean(session: Session, queues: Mapping[str, Queue], now: Instant) -> dict[str, Queue]:
    """Return the queues in which something is past its retention."""
    ends = [(name, kind, until) for name, queue in queues.items() for kind, until in _ends(queue, now)]
    commands = [("ZCOUNT", session.keys.of(kind, name), "-inf", until) for name, kind, until in ends]
    counts = session.fetch(*commands)
    return {name: queues[name] for (name, _, _), count in zip(ends, counts, strict=True) if count}


def _ends(queue: Queue, now: Instant) -> Iterator[tuple[str, int]]:
    """Return kinds of indexes, and the instant up to which their entries are past retention."""
    settings = queue.settings
    yield "key_expiry", now
    yield "source_expiry", now
    yield "completed", now - settings.keep_completed
    for kind, time in (
        ("dead", settings.archive_after),
        ("dead", settings.keep_dead),
        ("archived", settings.keep_archived),
        ("dropped", settings.keep_dropped),
    ):
        if time is not None:
            yield kind, now - time


def is_anything_old(session: Session, now: Instant) -> bool:
    """Return whether an entry of the feed, an operation, a registration or a result may be past its retention, or an
    item of a deleted queue is not yet swept."""
    feed, operations, registrations, results, removed = session.fetch(
        ("ZRANGE", session.keys.of("feed"), 0, 0),
        ("ZRANGE", session.keys.of("operation_order"), 0, 0, "WITHSCORES"),
        ("ZCOUNT", session.keys.of("registration_expiry"), "-inf", now),
        ("ZCOUNT", session.keys.of("result_expiry"), "-inf", now),
        ("LLEN", session.keys.of("removed")),
    )
    if registrations or results or removed:
        return True
    entry_is_old = bool(feed) and int(feed[0][16:32]) <= now - FEED_RETENTION
    return entry_is_old or (bool(operations) and score_of(operations[1]) <= now - OPERATION_RETENTION)
