"""What retention has to do, looked up for all queues at once: the turn is taken only where there is something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from redrive.clock import Instant
from redrive.model.queue import Queue
from redrive.store import FEED_TIMEOUT, OPERATION_TIMEOUT
from redrive.stores.redis.keys import score_of
from redrive.stores.redis.session import Session


def queues_to_clean(session: Session, queues: Mapping[str, Queue], now: Instant) -> dict[str, Queue]:
    """The queues in which something is past its time."""
    ends = [(name, kind, until) for name, queue in queues.items() for kind, until in _ends(queue, now)]
    commands = [("ZCOUNT", session.keys.of(kind, name), "-inf", until) for name, kind, until in ends]
    counts = session.look(*commands)
    return {name: queues[name] for (name, _, _), count in zip(ends, counts, strict=True) if count}


def _ends(queue: Queue, now: Instant) -> Iterator[tuple[str, int]]:
    """What was written at these instants, or earlier, goes."""
    settings = queue.settings
    yield "keyage", now
    yield "sourceage", now
    yield "completed", now - settings.keep_completed
    for kind, time in (
        ("dead", settings.archive_after),
        ("dead", settings.keep_dead),
        ("archived", settings.keep_archived),
    ):
        if time is not None:
            yield kind, now - time


def is_anything_old(session: Session, now: Instant) -> bool:
    """Whether an entry of the feed, an operation, a registration or a result may be past its time, or something is left
    of a deleted queue."""
    feed, operations, registrations, results, removed = session.look(
        ("ZRANGE", session.keys.of("feed"), 0, 0),
        ("ZRANGE", session.keys.of("operationorder"), 0, 0, "WITHSCORES"),
        ("ZCOUNT", session.keys.of("registeredage"), "-inf", now),
        ("ZCOUNT", session.keys.of("resultage"), "-inf", now),
        ("LLEN", session.keys.of("removed")),
    )
    if registrations or results or removed:
        return True
    entry_is_old = bool(feed) and int(feed[0][16:32]) <= now - FEED_TIMEOUT
    return entry_is_old or (bool(operations) and score_of(operations[1]) <= now - OPERATION_TIMEOUT)
