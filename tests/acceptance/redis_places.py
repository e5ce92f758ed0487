"""The same for Redis: what its keys hold, read past the store, and whether they belong together."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import redis
from tests.acceptance.places import EXHAUSTED, TOTALS, Broken, Standing, check_totals

from redrive.model.feed import DEFAULT_FEED_KINDS
from redrive.model.holder import holder_names
from redrive.model.item import WAITING_STATUSES, Status
from redrive.stores.redis.codec import read_record
from redrive.stores.redis.keys import Keys, short
from redrive.stores.redis.queue_state import counts_of, decode_queue
from redrive.stores.redis.tables import decode_feed_entry
from redrive.stores.rules.record import Record

PLACES = ("ready", "waiting", "leases", "completed", "dead", "archived", "dropped")
NAMED = {"leases": Status.ACTIVE, "completed": Status.COMPLETED, "dead": Status.DEAD}
DEATH_INDEXES = ("dead_letters", "archived_dead_letters", "group")
PARTS = "shdwy"
DIGITS = 16


class Place(NamedTuple):
    """Where an item stands, and by what it is in order there."""

    kind: str
    of: str
    score: int


class Dump:
    """All keys of one namespace, at one moment in which nobody writes."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        prefix = parse_qs(parts.query).get("prefix", ["redrive"])[0]
        self._root = Keys(prefix, "default").root
        with contextlib.closing(redis.Redis.from_url(parts._replace(query="").geturl())) as client:
            self._client = client
            names = sorted(key.decode().removeprefix(self._root) for key in client.scan_iter(f"{self._root}*", 1000))
            self.values = {name: self._read(name) for name in names}
            self.feed = [decode_feed_entry(entry) for entry in client.zrange(f"{self._root}feed", 0, -1)]

    def _read(self, name: str) -> Any:
        key = self._root + name
        match self._client.type(key):
            case b"zset":
                return {member.decode(errors="replace"): int(score) for member, score in self._client.zscan_iter(key)}
            case b"hash":
                return self._client.hgetall(key)
            case b"list":
                return self._client.lrange(key, 0, -1)
            case b"set":
                return self._client.smembers(key)
            case _:
                return self._client.get(key)

    def of(self, kind: str) -> dict[str, Any]:
        """What keys of that kind hold, by the rest of their names."""
        return {name.partition(":")[2]: value for name, value in self.values.items() if name.partition(":")[0] == kind}


def places(url: str) -> list[Standing]:
    """Every item. Raises Broken unless each is in exactly one place and all keys belong together."""
    dump = Dump(url)
    _leave_out_removed(dump)
    if "lock" in dump.values:
        raise Broken(f"a process has the lock: {dump.values['lock']}")
    items = {body: _record(dump, body, content) for body, content in dump.of("c").items()}
    _check_places(dump, items)
    _check_parts(dump, items)
    _check_counts(dump, items)
    _check_letters(dump, items)
    return [_standing(item) for item in items.values()]


def _leave_out_removed(dump: Dump) -> None:
    """What deleted queues left is nowhere any more. Each list of it is known, and all that is on one is there still."""
    lists = {number: members for number, members in dump.of("removed").items() if number}
    if sorted(lists) != sorted(number.decode() for number in dump.values.get("removed", ())):
        raise Broken(f"lists of removed items are not those that are known: {sorted(lists)}")
    for body in {body for members in lists.values() for body in members}:
        if f"c:{body}" not in dump.values:
            raise Broken(f"the removed item {body} is on a list and does not exist")
        for kind in ("c", *PARTS):
            dump.values.pop(f"{kind}:{body}", None)
        for later in [number for number, of in dump.of("o").items() if of.decode() == body]:
            del dump.values[f"o:{later}"]
        for kind in ("held", "moving"):
            for members in dump.of(kind).values():
                members.pop(body, None)


def _record(dump: Dump, body: str, content: bytes) -> Record:
    parts = {kind: dump.values.get(f"{kind}:{body}") for kind in PARTS}
    raw = [content, parts["s"], parts["h"] or [], parts["d"] or [], parts["y"], parts["w"]]
    return read_record(int(body), raw, with_words=True)


def _standing(item: Record) -> Standing:
    counters = item.counters
    if counters.attempts > counters.deliveries:
        raise Broken(f"item {item.id} counts {counters.attempts} attempts in {counters.deliveries} deliveries")
    return Standing(
        item.id,
        item.queue,
        str(item.status),
        item.payload,
        counters.deliveries,
        counters.attempts,
        counters.failures,
        counters.losses,
        counters.redrives,
        str(item.deaths[-1].reason) if item.status is Status.DEAD or item.was_dead else None,
        len(item.history.entries()) + item.history.omitted,
        len(item.deaths),
        item.origin_queue,
    )


def _check_places(dump: Dump, items: dict[str, Record]) -> None:
    """Each item is in one place, and that is the right one."""
    found: defaultdict[str, list[Place]] = defaultdict(list)
    for kind in PLACES:
        for of, members in dump.of(kind).items():
            for member, score in members.items():
                found[member[-DIGITS:]].append(Place(kind, of, score))
    if strays := found.keys() - items.keys():
        raise Broken(f"{len(strays)} items stand somewhere and do not exist: {sorted(strays)[:5]}")
    for body, item in items.items():
        if (
            item.is_dead_letter and item.status in WAITING_STATUSES
        ):  # it waits in a dead queue, whose retention finds it too
            found[body].remove(Place("dead", item.queue, item.deaths[-1].at))
        holders = {of for of, members in dump.of("held").items() if body in members}
        if holders != (set(holder_names(item.holders)) if item.is_found_by_holder else set()):
            raise Broken(f"item {item.id} is held by {item.holders}, and found under {holders}")
        if item.holders and item.status in WAITING_STATUSES:
            if found[body]:
                raise Broken(f"item {item.id} is held, and stands at {found[body]}")
            continue
        if len(found[body]) != 1:
            raise Broken(f"item {item.id}, {item.status}, is in {len(found[body])} places: {found[body]}")
        (place,) = found[body]
        if place != (wanted := _wanted(item, place)):
            raise Broken(f"item {item.id} is {item.status} and stands at {place}, not at {wanted}")


def _wanted(item: Record, place: Place) -> Place:
    """Where an item ought to be. What has fallen due is brought in by whoever leases, and not before."""
    if item.status is Status.ARCHIVED:
        return Place("dropped" if item.is_dropped else "archived", item.queue, item.retained_from)
    for kind, status in NAMED.items():
        if item.status is status:
            score = item.grant.deadline if item.grant is not None else place.score
            return Place(kind, item.queue, score)
    if place.kind == "waiting":
        return Place("waiting", item.queue, item.ready_at)
    if item.status is not Status.PENDING:
        return Place("waiting", item.queue, item.ready_at)
    return Place("ready", f"{item.queue}:{item.priority}", item.ready_at)


def _check_parts(dump: Dump, items: dict[str, Record]) -> None:
    """What belongs to an item belongs to one that exists, and every item is on the list of its queue, once."""
    for kind in PARTS:
        if strays := dump.of(kind).keys() - items.keys():
            raise Broken(f"{kind} has {len(strays)} keys of items that do not exist: {sorted(strays)[:5]}")
    for number, body in dump.of("o").items():
        item = items.get(body.decode())
        if item is None or int(number) not in [short(int(id[DIGITS:], 16)) for id in item.ids[1:]]:
            raise Broken(f"the later id {number} is that of no item")
    listed: Counter[tuple[str, str, int]] = Counter()
    for queue, members in dump.of("all").items():
        listed.update((queue, body, score) for body, score in members.items())
    wanted = Counter((item.queue, body, short(item.number)) for body, item in items.items())
    if listed != wanted:
        raise Broken(f"the lists of queues have {listed - wanted} too much, and {wanted - listed} too little")


def _check_counts(dump: Dump, items: dict[str, Record]) -> None:
    """The counts that `stats` shows are what a recount gives."""
    recount = Counter((item.queue, str(item.status)) for item in items.values())
    letters = {queue: len(members) for queue, members in dump.of("dead_letters").items()}
    queues = {name.decode() for name in dump.values.get("queues", ())}
    told: Counter[tuple[str, str]] = Counter()
    for entry in dump.feed:
        told[entry.queue, str(entry.kind)] += 1
        told[entry.queue, "exhausted"] += entry.reason in EXHAUSTED
    for queue in queues:
        raw = dump.values.get(f"counts:{queue}", {})
        counted = counts_of(part for pair in raw.items() for part in pair)
        for status in Status:
            if counted.get(status, 0) != recount[queue, status]:
                raise Broken(f"queue {queue} counts {counted}, and {recount[queue, status]} are {status}")
        if counted.get("dead_letters", 0) != letters.get(queue, 0):
            raise Broken(f"queue {queue} counts {counted}, and has {letters.get(queue, 0)} letters")
        if decode_queue(dump.values["queues"][queue.encode()]).settings.feed == DEFAULT_FEED_KINDS:
            check_totals(queue, {name: counted.get(f"{name}_total", 0) for name in TOTALS}, told)
    if strays := {item.queue for item in items.values()} - queues:
        raise Broken(f"items are in queues that do not exist: {strays}")


def _check_letters(dump: Dump, items: dict[str, Record]) -> None:
    """Whoever is dead or archived has a letter, in the right list; and groups hold and count what there is."""
    found: dict[str, Counter[tuple[str, str, int]]] = {kind: Counter() for kind in DEATH_INDEXES}
    for kind, seen in found.items():
        for of, members in dump.of(kind).items():
            seen.update((of, body, score) for body, score in members.items())
    wanted: dict[str, Counter[tuple[str, str, int]]] = {kind: Counter() for kind in DEATH_INDEXES}
    for body, item in items.items():
        number = short(item.death_number)
        if item.status is Status.ARCHIVED:
            wanted["archived_dead_letters"][item.queue, body, number] += 1
        elif item.dead_letter_key is not None:
            wanted["dead_letters"][item.queue, body, number] += 1
            wanted["group"][f"{item.queue}:{item.dead_letter_key.fingerprint}", body, number] += 1
        elif item.status is Status.DEAD:
            raise Broken(f"item {item.id} is dead and has no letter")
    for kind in found:
        if found[kind] != wanted[kind]:
            raise Broken(f"{kind} has {found[kind] - wanted[kind]} too much, {wanted[kind] - found[kind]} too little")
    groups = {f"{queue}:{name.decode()}" for queue, figures in dump.of("groups").items() for name in figures}
    if groups != {of for of, _, _ in found["group"]}:
        raise Broken(f"groups are counted that do not exist, or the other way round: {groups}")
