"""Items as they are stored: content that never changes, the state of the item, its history and its deaths.

Scripts read and change MessagePack without binary values, which Lua's cmsgpack does not support, and text of a fixed
width before a value that they do not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from redrive.clock import Instant
from redrive.contract.item_calls import NewItem
from redrive.model.arrival import MoveRoute
from redrive.model.death import DeadReason
from redrive.model.holder import Holders, ItemHolder
from redrive.model.ids import ItemId, Token, make_id
from redrive.model.item import NO_OVERRIDES, Counters, Death, HistoryEntry, Overrides, Result, Status
from redrive.model.manual_change import death_text
from redrive.model.search_terms import search_terms_of
from redrive.stores.redis.keys import DIGITS, digits, long, short
from redrive.stores.rules.damage import read_value, substitute_death, substitute_entry
from redrive.stores.rules.record import History, LeaseState, Record

_ENTRY_HEAD = 34


class Content(msgspec.Struct, array_like=True, gc=False, omit_defaults=True):
    """The immutable part. The instant of the put, which only the server knows, and the suffix of the first id are
    stored before it."""

    queue: str
    """The queue of the put."""
    payload: bytes
    content_type: str
    priority: int
    headers: Mapping[str, str] | None = None
    expire_timeout: int | None = None
    idempotency_key: str | None = None
    overrides: Overrides = NO_OVERRIDES


class ItemState(msgspec.Struct, omit_defaults=True, gc=False):
    """State of an item. The names are short because they are stored with every item that was leased."""

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
    h: str | Holders | None = None
    """holders; only the name of one that does not last"""
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
    """key of its token"""
    w: str | None = None
    """worker"""
    L: int = 0
    """leased_at"""
    D: int = 0
    """deadline"""
    R: DeadReason | None = None
    """dead_reason of the lease: it was leased although it is dead"""
    F: int | None = None
    """first_leased_at"""
    C: int | None = None
    """completed_at"""
    o: int = 0
    """entries of its history that are counted and not kept"""
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
    """fingerprint of a dead letter"""
    G: int = 0
    """instant of the death of a dead letter"""
    k: bool = False
    """True if it has a history, deaths, search words or a result"""
    H: str | None = None
    """home_store"""
    P: MoveRoute | None = None
    """route"""
    W: bool = False
    """True if its search words are not stored, because its last death and its payload have them"""


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
_decode_content = msgspec.msgpack.Decoder(Content).decode
decode_state = msgspec.msgpack.Decoder(ItemState).decode
_decode_details = msgspec.msgpack.Decoder(HistoryEntry).decode
_decode_death = msgspec.msgpack.Decoder(Death).decode
_decode_result = msgspec.msgpack.Decoder(Result).decode
_decode_words = msgspec.msgpack.Decoder(frozenset[str]).decode


_UNREADABLE_CONTENT = Content("", b"", "", 0)
_T = TypeVar("_T")


class Loaded(NamedTuple):
    """The stored parts of an item. Differences from it are written."""

    state: bytes
    """Encoded as this process would write it."""
    entries: tuple[HistoryEntry, ...]
    deaths: int
    words: frozenset[str]
    result: Result | None


class DerivedWords(frozenset[str]):
    """Words that are not stored: `Record.words_of_death` finds them again."""


NOT_READ = frozenset(("(not read)",))
"""Placeholder for the words of an item that was read without them."""
DERIVED_NOT_READ = DerivedWords(NOT_READ)
"""The placeholder for words that are not stored."""
NOTHING_LOADED = Loaded(b"", (), 0, frozenset(), None)


def encode_new_content(new: NewItem, queue: str, suffix: str) -> bytes:
    """Return the content of a new item without the instant of its put."""
    if new.is_plain and new.expire_timeout is None:  # everything else has its default
        return suffix.encode() + encode((queue, new.payload, new.content_type, new.priority))
    return suffix.encode() + encode(
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
    """Return the content of an item."""
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
    return (digits(item.put_at) + item.ids[0][:DIGITS]).encode() + encode(content)


def decode_content(raw: bytes) -> tuple[Instant, int, Content]:
    """Return the instant of the put, the suffix of the first id, and the rest."""
    return *_decode_content_head(raw), _decode_content(raw[2 * DIGITS :])


def _decode_content_head(raw: bytes) -> tuple[Instant, int]:
    return Instant(int(raw[:DIGITS])), int(raw[DIGITS : 2 * DIGITS], 16)


def encode_state(item: Record) -> bytes:
    """Return the state of an item."""
    grant, counters = item.grant, item.counters
    state = ItemState(
        q=item.queue,
        p=item.priority,
        s=item.status,
        n=short(item.seq),
        r=item.ready_at,
        e=item.expire_deadline,
        h=encode_held(item.holders),
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
        k=bool(item.history.entries() or item.deaths or item.result),  # words are of a death
        H=item.home_store,
        P=item.route,
        W=isinstance(item.words, DerivedWords),
    )
    if (dead_letter := item.dead_letter_key) is not None:
        state.g, state.G = dead_letter.fingerprint, dead_letter.died_at
    if grant is not None:
        state.t, state.w, state.L, state.D = grant.token[-DIGITS:], grant.worker, grant.leased_at, grant.deadline
        state.R = grant.dead_reason
    return encode(state)


def read_record(body: int, raw: Sequence[Any], *, with_words: bool) -> Record:
    """Return an item for the rules. What cannot be read has a substitute."""
    damage: list[str] = []

    def read(kind: str, decode: Callable[[Any], _T], value: Any, substitute: _T) -> _T:
        return read_value(decode, value, substitute, lambda: damage.append(f"key {kind}:{digits(body)}"))

    put_at, suffix = read("c", _decode_content_head, raw[0], (Instant(0), 0))
    content = read("c", _decode_content, raw[0][2 * DIGITS :], _UNREADABLE_CONTENT)
    unstored = ItemState(content.queue, content.priority, n=body, r=put_at)
    state = unstored if raw[1] is None else read("s", decode_state, raw[1], unstored)
    ids = [make_id(long(body), suffix), *map(ItemId, state.i)]
    entries = tuple([read("h", decode_entry, entry, substitute_entry(state.q)) for entry in raw[2]])
    death_of_index = substitute_death(state.q, ids[-1], state.g or "", state.G)
    deaths = [read("d", _decode_death, death, death_of_index) for death in raw[3]]
    result = None if raw[4] is None else read("y", _decode_result, raw[4], None)
    record = Record(
        ids=ids,
        queue=state.q,
        status=state.s,
        payload=content.payload,
        content_type=content.content_type,
        headers=content.headers or {},
        priority=content.priority,
        put_at=put_at,
        seq=long(state.n),
        ready_at=Instant(state.r),
        expire_timeout=content.expire_timeout,
        expire_deadline=_instant(state.e),
        holders=_holders(state.h),
        idempotency_key=content.idempotency_key,
        overrides=content.overrides,
        source_id=None if state.S is None else ItemId(state.S),
        origin_id=None if state.O is None else ItemId(state.O),
        origin_queue=state.Q,
        counters=counters_of(state),
        grant=_lease_state(ids[-1], state),
        first_leased_at=_instant(state.F),
        completed_at=_instant(state.C),
        result=result,
        archived_from=state.A,
        history=History(entries, state.o),
        deaths=deaths,
        is_in_dead_queue=state.m,
        death_number=long(state.x),
        words=DERIVED_NOT_READ if state.W else NOT_READ,
        home_store=state.H,
        route=state.P,
        damage=damage[0] if damage else None,
        has_unknown_status=any(place.startswith(("key c", "key s")) for place in damage),
    )
    if with_words:
        record.words = read_words(record, raw)
    return record


def has_unread_words(item: Record) -> bool:
    """Return whether an item was read without its words."""
    return item.words is NOT_READ or item.words is DERIVED_NOT_READ


def read_words(item: Record, raw: Sequence[Any]) -> frozenset[str]:
    """Return the words of an item that had unread ones, and was now read with them."""
    if isinstance(item.words, DerivedWords):
        return DerivedWords(item.words_of_death())
    return frozenset() if raw[5] is None else read_value(_decode_words, raw[5], frozenset(), tuple)


def lasting_words(item: Record, loaded: Loaded) -> frozenset[str]:
    """Return derived words of an item; as words to store if its history no longer has the text of its death."""
    death, text = item.deaths[-1], death_text(item.deaths[-1], loaded.entries)
    if len(item.deaths) > loaded.deaths or text == death_text(death, item.history.entries()):
        return item.words
    return search_terms_of(death.cause.error_type, text, item.payload, item.content_type)


def as_loaded(item: Record) -> Loaded:
    """Return the stored parts of an item in its current state."""
    return Loaded(encode_state(item), item.history.entries(), len(item.deaths), item.words, item.result)


def counters_of(state: ItemState) -> Counters:
    """Return the counters of an item."""
    return Counters(state.d, state.a, state.f, state.l, state.v)


def _lease_state(id: ItemId, state: ItemState) -> LeaseState | None:
    if state.t is None:
        return None
    return LeaseState(Token(id + state.t), state.w, Instant(state.L), Instant(state.D), state.R)


def encode_held(holders: Holders) -> str | Holders | None:
    """Return holders as `h` of a state has them, in which scripts find the names."""
    if not holders:
        return None
    return holders[0].name if len(holders) == 1 and not holders[0].is_lasting else holders


def _holders(held: str | Holders | None) -> Holders:
    if held is None:
        return ()
    return (ItemHolder(held),) if isinstance(held, str) else held


def _instant(value: int | None) -> Instant | None:
    return None if value is None else Instant(value)


def encode_entry(entry: HistoryEntry) -> bytes:
    """Encode a history entry. Parts that scripts write come first: instant, delivery, and the lengths of two names."""
    worker, queue = (entry.worker or "").encode(), entry.queue.encode()
    head = f"{digits(entry.at)}{entry.delivery:010d}{len(worker):04d}{len(queue):04d}"
    return head.encode() + worker + queue + encode_entry_details(entry)


def encode_entry_details(entry: HistoryEntry) -> bytes:
    """Return the part of a history entry that scripts do not write."""
    return encode(msgspec.structs.replace(entry, at=Instant(0), delivery=0, worker=None, queue=""))


def decode_entry(raw: bytes) -> HistoryEntry:
    """Decode a history entry."""
    queue_from = _ENTRY_HEAD + int(raw[26:30])
    details_from = queue_from + int(raw[30:34])
    return msgspec.structs.replace(
        _decode_details(raw[details_from:]),
        at=Instant(int(raw[:16])),
        delivery=int(raw[16:26]),
        worker=raw[_ENTRY_HEAD:queue_from].decode() or None,
        queue=raw[queue_from:details_from].decode(),
    )
