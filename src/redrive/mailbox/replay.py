"""Replay: redrive dead letters of a mailbox, all of them or those that a condition selects."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from redrive.mailbox.body_types import BodyType
from redrive.mailbox.dead_letter import DeadLetter, dead_letter_of
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import InvalidParameterError
from redrive.model.exception import safe_str
from redrive.model.filter import Filter
from redrive.model.item import Item, Status
from redrive.telemetry import events

T = TypeVar("T")
_PAGE = 100
_MAX_ERRORS = 100
_log = events.logger("redrive.mailbox")


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """The counts of a replay."""

    replayed: int = 0
    skipped: int = 0
    """Dead letters that the condition did not select, or that consumers hold."""
    duplicates: int = 0
    """Dead letters with the same `dedupe` key as an older one."""
    failed: int = 0
    """Dead letters that could not be transformed or redriven, or for which a function raised. They stay."""
    operation: str | None = None
    """The id of the operation, for `broker.undo_operation`; None if the letters were redriven one by one."""
    errors: Mapping[str, str] = field(default_factory=dict)
    """The errors of those that failed, by item id: the first 100. The log has all."""


def replay(
    dlq: Mailbox[DeadLetter[T], None],
    source: Mailbox[Any, Any] | None = None,
    *,
    where: Callable[[DeadLetter[T]], bool] | Filter | None = None,
    transform: Callable[[T], T] | None = None,
    dedupe: Callable[[DeadLetter[T]], Hashable] | None = None,
    rate: float | None = None,
    canary: int | None = None,
    limit: int | None = None,
) -> ReplayResult:
    """Redrive the dead letters that exist now, to `source` or to the mailbox that each died in.

    Priorities, reply addresses and histories are kept, and deliveries count from 1 again.
    where: a condition on dead letters, or a `Filter`. transform: a function from a body to the body to send instead.
    dedupe: a function that returns a key; of dead letters with the same key, the oldest is replayed. rate: the highest
    number per second. limit: the highest number of letters. canary: the number of letters to redrive first; the others
    follow once these have completed. It requires a replay in one operation: without a function and without a limit.
    """
    to = None if source is None else dlq._address(source)
    filter = where if isinstance(where, Filter) else Filter(status=Status.DEAD)
    filter = msgspec.structs.replace(filter, queue=dlq.name)
    broker = dlq._broker
    if transform is None and dedupe is None and limit is None and (where is None or isinstance(where, Filter)):
        operation = broker.start_operation("redrive", filter, to=to, rate=rate, canary=canary or 0)
        operation = broker.run_operation(operation.id)
        return ReplayResult(operation.changed, sum(operation.skipped.values()), operation=operation.id)
    if canary is not None:
        raise InvalidParameterError("canary", canary, "for replays without a function and without a limit")
    selected = where if callable(where) else None
    inner: BodyType[T] = BodyType("body", dlq._body_type.argument)
    counts = Counter[str]()
    seen: set[Hashable] = set()
    errors: dict[str, str] = {}
    for item in _items(dlq, filter):
        if counts["replayed"] == limit:
            break
        counts[_replay_one(dlq, item, inner, to, selected, transform, dedupe, seen, errors)] += 1
        if rate is not None:
            threading.Event().wait(1 / rate)
    return ReplayResult(counts["replayed"], counts["skipped"], counts["duplicates"], counts["failed"], errors=errors)


def _items(dlq: Mailbox[DeadLetter[T], None], filter: Filter) -> Iterator[Item]:
    """Yield the dead letters that exist now, oldest first. One that dies again is not yielded twice."""
    until = dlq._core.clock.now() if filter.until is None else filter.until
    filter = msgspec.structs.replace(filter, until=until)
    cursor: str | None = None
    while True:
        page = dlq._broker.find(filter, order="oldest", limit=_PAGE, cursor=cursor, redacted=False)
        yield from page.items
        cursor = page.cursor
        if cursor is None:
            return


def _replay_one(
    dlq: Mailbox[DeadLetter[T], None],
    item: Item,
    body: BodyType[T],
    to: str | None,
    where: Callable[[DeadLetter[T]], bool] | None,
    transform: Callable[[T], T] | None,
    dedupe: Callable[[DeadLetter[T]], Hashable] | None,
    seen: set[Hashable],
    errors: dict[str, str],
) -> str:
    """Replay one dead letter, and return the outcome: the name of a field of `ReplayResult`."""
    if item.status is Status.ACTIVE:
        return "skipped"
    try:
        letter = dead_letter_of(item, body)
        if where is not None and not where(letter):
            return "skipped"
        if dedupe is not None:
            key = dedupe(letter)
            if key in seen:
                return "duplicates"
            seen.add(key)
        payload = ... if transform is None else body.encode(transform(letter.body)).payload
        dlq._broker.redrive(item.id, to=to, payload=payload)
    except Exception as error:  # of a function too: the body of a letter that cannot be decoded is its bytes
        said = f"{type(error).__name__}: {safe_str(error)}"
        if len(errors) < _MAX_ERRORS:
            errors[item.id] = said
        _log.warning("letter_not_replayed", mailbox=dlq.name, message_id=item.id, error=said)
        return "failed"
    return "replayed"
