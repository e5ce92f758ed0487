"""The examination of a namespace: counts and indexes of each queue, and the items that the indexes name.

Each step is one script that sees one instant, between two commits. So what it finds is true beside any other work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from redrive.clock import Instant
from redrive.model.item import Status
from redrive.model.text import pluralize
from redrive.stores.redis.groups import decode_figures
from redrive.stores.redis.keys import Keys
from redrive.stores.redis.queue_state import counts_of, ready_keys
from redrive.stores.redis.redis_client import Part, RedisClient
from redrive.stores.redis.scripts import EXAMINE
from redrive.stores.redis.unit_of_work import Session

_PAGE = 500
"""About how many items one script examines."""
_COUNTED = ("leases", "completed", "archived", "dropped", "dead_letters")
_INDEXES = ("all", *_COUNTED, "waiting", "expiring", "dead", "archived_dead_letters")
_PROBLEMS = ("without content", "whose state cannot be read", "missing in an index")


def find_problems(client: RedisClient, keys: Keys, now: Instant | None) -> Iterator[str]:
    """Return a sentence for each kind of damage of each queue. `now` is None for the clock of the server."""
    session = Session(client, keys, read_only=True)
    named, with_info = session.fetch(("HKEYS", keys.of("queues")), ("HKEYS", keys.of("info")))
    for raw in sorted({*named, *with_info}):
        name = raw.decode(errors="replace")
        if (raw in named) is not (raw in with_info):
            yield f"queue {name!r} has only one of its two values, in `queues` and `info`"
        yield from _wrong_counts(session, name)
        yield from _unrelated(client, keys, name, now)


def _wrong_counts(session: Session, queue: str) -> Iterator[str]:
    """Compare the counts of a queue with the sizes of its indexes, all at one instant."""
    of = session.keys.of
    sizes: list[int]
    counted, groups, *sizes = session.fetch(
        ("HGETALL", of("counts", queue)),
        ("HVALS", of("groups", queue)),
        *(("ZCARD", of(kind, queue)) for kind in ("all", *_COUNTED)),
        *(("ZCARD", key) for key in (of("waiting", queue), *ready_keys(session.keys, queue))),
    )
    counts = Counter(counts_of(counted))
    there, active, completed, archived, dropped, dead_letters, *waiting = sizes
    for what, count, number in (
        ("items", sum(counts[status] for status in Status), there),
        ("active items", counts["active"], active),
        ("completed items", counts["completed"], completed),
        ("archived items", counts["archived"], archived + dropped),
        ("dead letters", counts["dead_letters"], dead_letters),
        ("dead letters in groups", sum(decode_figures(raw).count for raw in groups), dead_letters),
    ):
        if count != number:
            yield f"queue {queue!r} counts {count:,} {what}, and has {number:,}"
    if sum(waiting) > (most := counts["pending"] + counts["failed"]):  # others are held or have expired
        yield f"queue {queue!r} counts {most:,} pending and failed items, and {sum(waiting):,} wait"


def _unrelated(client: RedisClient, keys: Keys, queue: str, now: Instant | None) -> Iterator[str]:
    """Walk the indexes of a queue. Several scripts may see an item, so the largest number of one index counts."""
    found = Counter[str]()
    for index in (*(keys.of(kind, queue) for kind in _INDEXES), *ready_keys(keys, queue)):
        seen = [0] * len(_PROBLEMS)
        cursor = b"0"
        while True:
            arguments: list[Part] = [keys.root, queue, index, cursor, _PAGE, 0 if now is None else now]
            cursor, *numbers = client.run(EXAMINE, [keys.meta], arguments)
            seen = [one + other for one, other in zip(seen, numbers, strict=True)]
            if cursor == b"0":
                break
        for problem, number in zip(_PROBLEMS, seen, strict=True):
            found[problem] = max(found[problem], number)
    for problem, number in found.items():
        if number:
            yield f"queue {queue!r} has {pluralize(number, 'item')} {problem}"
