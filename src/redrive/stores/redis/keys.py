"""The keys of a namespace. All of them have one hash tag, so that a script may use any of them.

An item is stored under its *body*: the number of its first id, which does not change when the item moves. Numbers in
Redis are those of ids without their last 11 bits, because they have to fit into the 53 bits of a Lua number. *Digits*
are the 16 decimal digits of a number or an instant, so that scripts can cut values and members at fixed positions.

The idempotency key of a dropped item is free; its former entry is under NUL and the first id of the item.

The names of keys that every item has are short. Fields of `s:B` are in `codec.py`, those of `info` in
`queue_state.py`.

| key | type | content |
|---|---|---|
| `meta` | hash | `format`; `next`: last number; `epoch`: of the last change of a queue; `version` of settings |
| `lock` | string | holder of the lock of the namespace: token, client id, and digits of its end |
| `queues` | hash | queue → its value |
| `info` | hash | queue → the settings that scripts need |
| `counts:Q` | hash | items by status, and totals |
| `c:B` | string | digits of put_at, 16 hexadecimal digits of the suffix of the first id, the rest of its content |
| `s:B` | string | state of the item; missing while a plain item is pending since its put |
| `h:B`, `d:B` | lists | history (first 5 and last 45 entries), deaths |
| `w:B`, `y:B` | strings | search words of a dead letter, unless `W` in `s:B`; result of a completed item |
| `o:N` | string | body of the item that has or had the later id with number N |
| `ready:Q:R` | sorted set | leasable items of priority R by ready_at; members are digits of seq and body |
| `leases:Q` | sorted set | active items by deadline; members are digits of seq and body |
| `waiting:Q` | sorted set | scheduled and failed items: body by ready_at |
| `expiring:Q` | sorted set | pending and failed items that expire: body by expire_deadline |
| `completed:Q`, `dead:Q`, `archived:Q`, `dropped:Q` | sorted sets | body by the instant that retention counts from |
| `all:Q` | sorted set | every item of the queue: body by the number of its id |
| `removed`, `removed:N` | list, sorted set | numbers of deletions of queues; former `all:Q` of one, until it is swept |
| `dead_letters:Q`, `archived_dead_letters:Q` | sorted sets | body by the number of the death or the archiving |
| `groups:Q` | hash | fingerprint → count, first, last, hours |
| `group:Q:F` | sorted set | dead letters with fingerprint F: body by the number of the death |
| `held:NAME` | sorted set | items with this holder: body by the number of the id |
| `moving:TO`, `move_targets` | sorted set, hash | items moving to another store, as they left; count by target |
| `open_moves:Q@STORE` | sorted set | ids that STORE may still have of items that came to Q |
| `open_move_stores:Q` | set | the stores of these keys |
| `keys:Q`, `key_expiry:Q` | hash, sorted set | idempotency key → id, digest, expiry (0: with item); keys by cleaning |
| `sources:Q`, `source_expiry:Q` | hash, sorted set | source id → id, expiry; source ids by expiry |
| `operations`, `operation_order` | hash, sorted set | id → operation; ids by number |
| `active_operations` | set | ids of operations that have not ended |
| `operation_items:ID` | set | items that an operation changed, by the id that they had then |
| `registrations:KIND` | hash | name → registration |
| `registration_expiry` | sorted set | kind, space and name by expiry |
| `result:ID` | string | result without its item: digits of expiry, queue, NUL, queue of the put, NUL, the rest |
| `result_expiry` | sorted set | ids of these results by expiry |
| `feed` | sorted set | entries by number; members are digits of number and instant, then the rest |
| `audit` | list | entries; the first is number 1 |

`notifications` is the channel on which processes publish the queues in which items arrived.
"""

from __future__ import annotations

from redrive.model.ids import NUMBERS_PER_MICROSECOND, ItemId, parse_id

DIGITS = 16
"""The number of digits of a number in a key, member or value."""
FIRST_FORMAT = 3
"""The first format that a store opens."""
FORMAT = 8
"""Version of the keys and values of a namespace. Format 4 adds dead items that are leased (`R` in `s:B`), format 5
archived items that are dropped (`dropped:Q`) or were no dead letters, format 6 queues with gates or breakers, format 7
several holders of an item and lasting ones (`h` in `s:B`), format 8 dead items whose search words are not stored (`W`
in `s:B`). An older namespace gets it with the first of them: a Redrive that does not know them no longer opens it
then."""
SHIFT = NUMBERS_PER_MICROSECOND.bit_length() - 1
"""Low bits of a number in an id that are omitted in Redis."""
RANKS = range(10)


def short(number: int) -> int:
    """Convert a number in an id to its number in Redis."""
    return number >> SHIFT


def long(number: int) -> int:
    """Convert a number in Redis to its number in an id."""
    return number << SHIFT


def digits(number: int) -> str:
    """Return the digits of a number in a key or member."""
    return f"{number:0{DIGITS}d}"


def score_of(raw: bytes) -> int:
    """Return the score of a member. Servers may write a round one as `1.7e+15`."""
    return int(float(raw))


def body_of(id: ItemId) -> int:
    """Return the body of the item with this first id."""
    return short(parse_id(id)[0])


class Keys:
    """The keys of one namespace."""

    def __init__(self, prefix: str, namespace: str) -> None:
        self.root = f"{{{prefix}:{namespace}}}:"
        self.meta = self.of("meta")
        self.lock = self.of("lock")

    def of(self, kind: str, *parts: str | int) -> str:
        """Return the key of this kind."""
        return self.root + ":".join((kind, *map(str, parts)))
