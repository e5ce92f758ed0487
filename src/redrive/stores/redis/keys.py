"""Where things are: every key of a namespace. All of them have one hash tag, so that a script may touch any of them.

An item is known by its *body*: the number of its first id, which does not change when it moves. Numbers in Redis are
those of the ids without their last 11 bits: they have to fit into the 53 bits of a Lua number.

| key | type | what |
|---|---|---|
| `meta` | hash | `next`: the last number drawn; `epoch`: that of the last change of a queue; `version`: of settings |
| `turn` | string | who changes the namespace for himself: token, client, and until when |
| `queues` | hash | queue → its value |
| `info` | hash | queue → what scripts need of its settings |
| `counts:Q` | hash | items by status, and totals |
| `c:B` | string | content: 16 digits put_at, 16 digits tail of the first id, then what never changes |
| `s:B` | string | how it stands; none: pending since it was put, as it was put |
| `h:B`, `d:B` | lists | history (first 5 and last 45), deaths |
| `w:B`, `y:B` | strings | words of a dead letter, result of a completed item |
| `o:N` | string | the body of the item that has or had the later id of this number |
| `ready:Q:R` | sorted set | ready items of priority R by ready_at; members are seq and body, 16 digits each |
| `leases:Q` | sorted set | active items by deadline; members are seq and body |
| `waiting:Q` `expiring:Q` `completed:Q` `dead:Q` `archived:Q` | sorted sets | bodies by instant |
| `all:Q` | sorted set | every item of the queue: body by the number of its id |
| `removed`, `removed:N` | list, sorted set | what was `all:Q` of deleted queues: items that are found no more |
| `letters:Q` `aside:Q` | sorted sets | dead letters, archived items: body by the number of the death |
| `groups:Q` | hash | fingerprint → count, first, last, hours |
| `group:Q:F` | sorted set | dead letters of one cause: body by the number of the death |
| `held:NAME` | sorted set | bodies of held items |
| `moving:TO`, `destinations` | sorted set, hash | bodies of items on their way as they left; how many go where |
| `open:Q@STORE`, `openfrom:Q` | sorted set, set | ids that STORE may still have of items that came to Q; those stores |
| `keys:Q`, `keyage:Q` | hash, sorted set | idempotency keys: id, digest, until; and by until |
| `sources:Q`, `sourceage:Q` | hash, sorted set | source ids: id, until; and by until |
| `operations`, `operationorder` | hash, sorted set | operations; ids by number |
| `atwork` | set | ids of operations that somebody has to see to |
| `changed:ID` | set | items that an operation changed, by the id they had then |
| `registered:KIND`, `registeredage` | hash, sorted set | name → registration; kind, blank and name by until |
| `result:ID`, `resultage` | string, sorted set | results that outlive items: 16 digits until, result; ids by until |
| `feed` | sorted set | entries by number; members are number and instant, 16 digits each, and the rest |
| `audit` | list | entries, the first is number 1 |
"""

from __future__ import annotations

from redrive.model.ids import NUMBERS_PER_MICROSECOND, ItemId, parse_id

SHIFT = NUMBERS_PER_MICROSECOND.bit_length() - 1
"""Bits that a number has in an id and not in Redis."""
RANKS = range(10)


def short(number: int) -> int:
    """A number as Redis has it."""
    return number >> SHIFT


def long(number: int) -> int:
    """A number as ids have it."""
    return number << SHIFT


def digits(number: int) -> str:
    """A number as it stands in keys and members."""
    return f"{number:016d}"


def score_of(raw: bytes) -> int:
    """The score of a member. Servers write round ones as `1.7e+15`, too."""
    return int(float(raw))


def body_of(id: ItemId) -> int:
    """The body of the item whose first id this is."""
    return short(parse_id(id)[0])


class Keys:
    """The keys of one namespace."""

    def __init__(self, prefix: str, namespace: str) -> None:
        self.root = f"{{{prefix}:{namespace}}}:"
        self.meta = self.of("meta")
        self.turn = self.of("turn")

    def of(self, kind: str, *parts: str | int) -> str:
        """The key of that kind."""
        return self.root + ":".join((kind, *map(str, parts)))
