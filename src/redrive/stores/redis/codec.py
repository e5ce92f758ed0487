"""Items as Redis has them: content that never changes, how the item stands, its history and its deaths.

What a script has to change is MessagePack without binary values, which Lua's cmsgpack can neither read nor write; or
text of a fixed width in front of a value that scripts do not look into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import NewItem
from redrive.model.arrival import MoveRoute
from redrive.model.ids import ItemId, Token, make_id
from redrive.model.item import NO_OVERRIDES, Counters, Death, HistoryEntry, Overrides, Result, Status
from redrive.stores.redis.keys import digits, long, short
from redrive.stores.rules.record import History, LeaseState, Record

_DIGITS = 16
_ENTRY_HEAD = 34


class Content(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """What never changes. In front of it stand the instant of the put, which only the server knows, and the tail of
    the first id."""

    queue: str
    """Where it was put."""
    payload: bytes
    content_type: str
    priority: int
    headers: Mapping[str, str] | None = None
    expire_timeout: int | None = None
    idempotency_key: str | None = None
    overrides: Overrides = NO_OVERRIDES


class ItemState(msgspec.Struct, omit_defaults=True, gc=False):
    """How an item stands. The names are short because every item that was leased has them."""

    q: str
    """queue"""
    p: int
    """priority"""
    n: int
    """seq"""
    r: int
    """ready_at"""
    s: Status = Status.PENDING
    """status"""
    e: int | None = None
    """expire_deadline"""
    h: str | None = None
    """held_by"""
    d: int = 0
    """deliveries"""
    a: int = 0
    """attempts"""
    f: int = 0
    """failures"""
    l: int = 0  # noqa: E741
    """losses"""
    v: int = 0
    """redrives"""
    t: str | None = None
    """the key of its token"""
    w: str | None = None
    """worker"""
    L: int = 0
    """leased_at"""
    D: int = 0
    """deadline"""
    F: int | None = None
    """first_leased_at"""
    C: int | None = None
    """completed_at"""
    o: int = 0
    """entries of its history that are only counted"""
    i: list[str] = []
    """ids after its first"""
    S: str | None = None
    """source_id"""
    O: str | None = None  # noqa: E741
    """origin_id"""
    Q: str | None = None
    """origin_queue"""
    A: Status | None = None
    """archived_from"""
    m: bool = False
    """is_in_dead_queue"""
    x: int = 0
    """death_number"""
    g: str | None = None
    """the fingerprint of a dead letter"""
    G: int = 0
    """and when it died"""
    k: bool = False
    """it has a history, deaths, words or a result"""
    H: str | None = None
    """home"""
    P: MoveRoute | None = None
    """passage"""


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
_decode_rest_of_content = msgspec.msgpack.Decoder(Content).decode
decode_state = msgspec.msgpack.Decoder(ItemState).decode
_decode_details = msgspec.msgpack.Decoder(HistoryEntry).decode
_decode_death = msgspec.msgpack.Decoder(Death).decode
_decode_result = msgspec.msgpack.Decoder(Result).decode
_decode_words = msgspec.msgpack.Decoder(frozenset[str]).decode


class Loaded(NamedTuple):
    """What was read of an item, to tell what has changed when it is written."""

    stand: bytes
    """As this process would write it."""
    entries: tuple[HistoryEntry, ...]
    deaths: int
    words: frozenset[str]
    result: Result | None


NOT_READ = frozenset(("(not read)",))
"""Stands for the words of an item that was read without them."""
NOTHING_LOADED = Loaded(b"", (), 0, frozenset(), None)


def encode_new_content(new: NewItem, queue: str, tail: str) -> bytes:
    """What is written of a new item, without the instant of its put."""
    if new.is_plain and new.expire_timeout is None:  # the same, without the rest, which has its defaults
        return tail.encode() + encode((queue, new.payload, new.content_type, new.priority))
    return tail.encode() + encode(
        Content(
            queue,
            new.payload,
            new.content_type,
            new.priority,
            new.headers or None,
            new.expire_timeout,
            new.idempotency_key,
            new.overrides,
        )
    )


def encode_content(item: Record) -> bytes:
    """The content of an item, whole."""
    content = Content(
        item.queue,
        item.payload,
        item.content_type,
        item.priority,
        dict(item.headers) or None,
        item.expire_timeout,
        item.idempotency_key,
        item.overrides,
    )
    return (digits(item.put_at) + item.ids[0][:_DIGITS]).encode() + encode(content)


def decode_content(raw: bytes) -> tuple[Instant, int, Content]:
    """When it was put, the tail of its first id, and what never changes."""
    return Instant(int(raw[:_DIGITS])), int(raw[_DIGITS : 2 * _DIGITS], 16), _decode_rest_of_content(raw[2 * _DIGITS :])


def encode_state(item: Record) -> bytes:
    """How an item stands."""
    grant, counters = item.grant, item.counters
    stand = ItemState(
        q=item.queue,
        p=item.priority,
        s=item.status,
        n=short(item.seq),
        r=item.ready_at,
        e=item.expire_deadline,
        h=item.held_by,
        d=counters.deliveries,
        a=counters.attempts,
        f=counters.failures,
        l=counters.losses,
        v=counters.redrives,
        F=item.first_leased_at,
        C=item.completed_at,
        o=item.history.omitted,
        i=[str(id) for id in item.ids[1:]],
        S=item.source_id,
        O=item.origin_id,
        Q=item.origin_queue,
        A=item.archived_from,
        m=item.is_in_dead_queue,
        x=short(item.death_number),
        k=bool(item.history.entries() or item.deaths or item.words or item.result),
        H=item.home_store,
        P=item.passage,
    )
    if (letter := item.dead_letter_key) is not None:
        stand.g, stand.G = letter.fingerprint, letter.died_at
    if grant is not None:
        stand.t, stand.w, stand.L, stand.D = grant.token[-_DIGITS:], grant.worker, grant.leased_at, grant.deadline
    return encode(stand)


def read_record(body: int, raw: Sequence[Any], *, with_words: bool) -> tuple[Record, Loaded]:
    """An item as the rules know it, and what was read of it."""
    put_at, tail, content = decode_content(raw[0])
    stand = ItemState(content.queue, content.priority, n=body, r=put_at) if raw[1] is None else decode_state(raw[1])
    entries = tuple(map(decode_entry, raw[2]))
    deaths = [_decode_death(death) for death in raw[3]]
    result = None if raw[4] is None else _decode_result(raw[4])
    words = read_words(raw) if with_words else NOT_READ
    ids = [make_id(long(body), tail), *map(ItemId, stand.i)]
    record = Record(
        ids=ids,
        queue=stand.q,
        status=stand.s,
        payload=content.payload,
        content_type=content.content_type,
        headers=content.headers or {},
        priority=content.priority,
        put_at=put_at,
        seq=long(stand.n),
        ready_at=Instant(stand.r),
        expire_timeout=content.expire_timeout,
        expire_deadline=_instant(stand.e),
        held_by=stand.h,
        idempotency_key=content.idempotency_key,
        overrides=content.overrides,
        source_id=None if stand.S is None else ItemId(stand.S),
        origin_id=None if stand.O is None else ItemId(stand.O),
        origin_queue=stand.Q,
        counters=counters_of(stand),
        grant=_grant(ids[-1], stand),
        first_leased_at=_instant(stand.F),
        completed_at=_instant(stand.C),
        result=result,
        archived_from=stand.A,
        history=History(entries, stand.o),
        deaths=deaths,
        is_in_dead_queue=stand.m,
        death_number=long(stand.x),
        words=words,
        home_store=stand.H,
        passage=stand.P,
    )
    return record, as_loaded(record)


def read_words(raw: Sequence[Any]) -> frozenset[str]:
    """The words of an item that was read with them."""
    return frozenset() if raw[5] is None else _decode_words(raw[5])


def as_loaded(item: Record) -> Loaded:
    """An item of which everything is stored as it is now."""
    return Loaded(encode_state(item), item.history.entries(), len(item.deaths), item.words, item.result)


def counters_of(stand: ItemState) -> Counters:
    """The counters of an item that stands so."""
    return Counters(stand.d, stand.a, stand.f, stand.l, stand.v)


def _grant(id: ItemId, stand: ItemState) -> LeaseState | None:
    if stand.t is None:
        return None
    return LeaseState(Token(id + stand.t), stand.w, Instant(stand.L), Instant(stand.D))


def _instant(value: int | None) -> Instant | None:
    return None if value is None else Instant(value)


def encode_entry(entry: HistoryEntry) -> bytes:
    """A row of the history. What a script knows of it comes first: instant, delivery, and the lengths of two names."""
    worker, queue = (entry.worker or "").encode(), entry.queue.encode()
    head = f"{digits(entry.at)}{entry.delivery:010d}{len(worker):04d}{len(queue):04d}"
    return head.encode() + worker + queue + encode_entry_details(entry)


def encode_entry_details(entry: HistoryEntry) -> bytes:
    """What a script does not look into."""
    return encode(msgspec.structs.replace(entry, at=Instant(0), delivery=0, worker=None, queue=""))


def decode_entry(raw: bytes) -> HistoryEntry:
    """The row of the history that was written so."""
    queue_from = _ENTRY_HEAD + int(raw[26:30])
    told_from = queue_from + int(raw[30:34])
    return msgspec.structs.replace(
        _decode_details(raw[told_from:]),
        at=Instant(int(raw[:16])),
        delivery=int(raw[16:26]),
        worker=raw[_ENTRY_HEAD:queue_from].decode() or None,
        queue=raw[queue_from:told_from].decode(),
    )
