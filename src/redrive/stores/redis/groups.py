"""Groups of dead letters: counts in a hash for each queue, members in a sorted set for each fingerprint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from redrive.clock import Instant
from redrive.model.group import Group, hour_of
from redrive.stores.redis.codec import encode
from redrive.stores.redis.keys import body_of, digits, short
from redrive.stores.redis.tables import Hash
from redrive.stores.redis.unit_of_work import Session
from redrive.stores.rules.damage import read_value, substitute_death
from redrive.stores.rules.record import DeadLetterKey, Record
from redrive.stores.rules.tables import Groups


class Figures(msgspec.Struct, array_like=True):
    """Counts of the dead letters of one fingerprint in one queue."""

    count: int
    first_at: int
    last_at: int
    hours: dict[int, int]


_decode = msgspec.msgpack.Decoder(Figures).decode


def decode_figures(raw: bytes) -> Figures:
    """Return the counts of a group; none if they are damaged."""
    return read_value(_decode, raw, Figures(0, 0, 0, {}), tuple)


class RedisGroups(Groups):
    """Counts in a hash for each queue, members in a sorted set for each fingerprint."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hashes: dict[str, Hash[str, Figures]] = {}

    def join(self, dead_letter: DeadLetterKey, item: Record) -> None:
        groups, at, hour = self._groups(dead_letter.queue), dead_letter.died_at, hour_of(dead_letter.died_at)
        figures = groups.get(dead_letter.fingerprint) or Figures(0, at, at, {})
        groups[dead_letter.fingerprint] = Figures(
            figures.count + 1,
            min(figures.first_at, at),
            max(figures.last_at, at),
            {**figures.hours, hour: figures.hours.get(hour, 0) + 1},
        )
        self._session.write("ZADD", self._key(dead_letter), short(dead_letter.number), digits(body_of(item.ids[0])))

    def leave(self, dead_letter: DeadLetterKey) -> None:
        groups, hour = self._groups(dead_letter.queue), hour_of(dead_letter.died_at)
        figures = groups[dead_letter.fingerprint]
        self._session.write(
            "ZREMRANGEBYSCORE", self._key(dead_letter), short(dead_letter.number), short(dead_letter.number)
        )
        if figures.count == 1:
            del groups[dead_letter.fingerprint]
            return
        hours = {each: count - (each == hour) for each, count in figures.hours.items()}
        groups[dead_letter.fingerprint] = Figures(
            figures.count - 1,
            figures.first_at,
            figures.last_at,
            {each: count for each, count in hours.items() if count},
        )

    def count(self, queues: Iterable[str], fingerprint: str | None) -> int:
        return sum(
            figures.count
            for _, by_cause in self._all(queues)
            for cause, figures in by_cause.items()
            if fingerprint is None or cause == fingerprint
        )

    def of(self, queues: Iterable[str], limit: int) -> tuple[Group, ...]:
        found: dict[str, dict[str, Figures]] = {}
        for queue, by_cause in self._all(queues):
            for cause, figures in by_cause.items():
                found.setdefault(cause, {})[queue] = figures
        order = sorted(found, key=lambda cause: (*_rank(found[cause].values()), cause))
        return tuple(group for cause in order[:limit] if (group := self._group(cause, found[cause])) is not None)

    def _all(self, queues: Iterable[str]) -> Iterator[tuple[str, dict[str, Figures]]]:
        names = tuple(queues)
        answers = self._session.fetch(*(("HGETALL", self._session.keys.of("groups", queue)) for queue in names))
        for queue, fields in zip(names, answers, strict=True):
            raw = iter(fields)
            yield queue, {cause.decode(): decode_figures(figures) for cause, figures in zip(raw, raw, strict=True)}

    def _group(self, fingerprint: str, by_queue: dict[str, Figures]) -> Group | None:
        """Return the group; None if its last dead letter was removed between two reads."""
        newest = self._newest(fingerprint, by_queue)
        if newest is None:
            return None
        cause = (newest.deaths or [substitute_death("", newest.id, fingerprint)])[-1].cause
        hours: dict[int, int] = {}
        for figures in by_queue.values():
            for hour, count in figures.hours.items():
                hours[hour] = hours.get(hour, 0) + count
        sizes = sorted((-figures.count, queue) for queue, figures in by_queue.items())
        return Group(
            fingerprint=fingerprint,
            title=cause.group_title,
            error_type=cause.error_type,
            error_class=cause.error_class,
            count=sum(figures.count for figures in by_queue.values()),
            first_at=Instant(min(figures.first_at for figures in by_queue.values())),
            last_at=Instant(max(figures.last_at for figures in by_queue.values())),
            queues={queue: -size for size, queue in sizes},
            hours={Instant(hour): hours[hour] for hour in sorted(hours)},
            sample=newest.id,
        )

    def _newest(self, fingerprint: str, queues: Iterable[str]) -> Record | None:
        keys = [self._session.keys.of("group", queue, fingerprint) for queue in queues]
        ranges = self._session.ranges(*((key, "down", "-inf", "+inf", 0, 1) for key in keys))
        heads = [(score, member) for found in ranges for member, score in found]
        return self._session.item_at(max(heads)[1]) if heads else None

    def _groups(self, queue: str) -> Hash[str, Figures]:
        key = self._session.keys.of("groups", queue)
        return self._hashes.setdefault(queue, Hash(self._session, key, encode, decode_figures, "groups"))

    def _key(self, dead_letter: DeadLetterKey) -> str:
        return self._session.keys.of("group", dead_letter.queue, dead_letter.fingerprint)


def _rank(figures: Iterable[Figures]) -> tuple[int, int]:
    each = tuple(figures)
    return -sum(one.count for one in each), -max(one.last_at for one in each)
