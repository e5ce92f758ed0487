"""Groups of dead letters: who is in which is kept, the figures are counted when somebody looks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from redrive.clock import Instant
from redrive.model.group import Group, hour_of
from redrive.stores.rules.record import Letter, Record


@dataclass(slots=True)
class _Members:
    """The dead letters of one cause in one queue."""

    first_at: Instant
    last_at: Instant
    items: dict[int, Record] = field(default_factory=dict)
    """By the number of their death."""


class Groups:
    """The dead letters of a namespace by queue and cause."""

    def __init__(self) -> None:
        self._members: defaultdict[str, dict[str, _Members]] = defaultdict(dict)

    def join(self, letter: Letter, item: Record) -> None:
        """An item is a dead letter now."""
        at = letter.died_at
        members = self._members[letter.queue].setdefault(letter.fingerprint, _Members(at, at))
        members.first_at = min(members.first_at, at)
        members.last_at = max(members.last_at, at)
        members.items[letter.number] = item

    def leave(self, letter: Letter) -> None:
        """It is one no longer."""
        members = self._members[letter.queue][letter.fingerprint]
        del members.items[letter.number]
        if not members.items:
            del self._members[letter.queue][letter.fingerprint]

    def count(self, queues: Iterable[str], fingerprint: str | None) -> int:
        """How many dead letters of some queues there are, of one cause or of all."""
        return sum(
            len(members.items)
            for queue in queues
            for cause, members in self._members[queue].items()
            if fingerprint is None or cause == fingerprint
        )

    def of(self, queues: Iterable[str], limit: int) -> tuple[Group, ...]:
        """The groups of some queues, largest first, then newest, then by fingerprint."""
        found: defaultdict[str, dict[str, _Members]] = defaultdict(dict)
        for queue in queues:
            for fingerprint, members in self._members[queue].items():
                found[fingerprint][queue] = members
        groups = [_group(fingerprint, by_queue) for fingerprint, by_queue in found.items()]
        groups.sort(key=lambda group: (-group.count, -group.last_at, group.fingerprint))
        return tuple(groups[:limit])


def _group(fingerprint: str, by_queue: dict[str, _Members]) -> Group:
    items = {number: item for members in by_queue.values() for number, item in members.items.items()}
    hours = Counter(hour_of(item.deaths[-1].at) for item in items.values())
    sizes = sorted((-len(members.items), queue) for queue, members in by_queue.items())
    newest = items[max(items)]
    cause = newest.deaths[-1].cause
    return Group(
        fingerprint=fingerprint,
        title=cause.group_title,
        error_type=cause.error_type,
        error_class=cause.error_class,
        count=len(items),
        first_at=min(members.first_at for members in by_queue.values()),
        last_at=max(members.last_at for members in by_queue.values()),
        queues={queue: -size for size, queue in sizes},
        hours={hour: hours[hour] for hour in sorted(hours)},
        sample=newest.id,
    )
