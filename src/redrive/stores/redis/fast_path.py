"""What is done often, as one script: puts, ends of deliveries, and leases. Here are its arguments and its answers."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from redis.exceptions import ResponseError

from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.admin_calls import Promote
from redrive.contract.base import SAME_CALL
from redrive.contract.item_calls import (
    Complete,
    Extend,
    Leased,
    LeaseItems,
    NewItem,
    Put,
    ReturnLease,
    Settle,
    StaleSettings,
)
from redrive.errors import (
    IdempotencyConflict,
    InvalidName,
    LeaseLost,
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    RedriveError,
    StoreUnavailable,
    WrongQueue,
)
from redrive.model.ids import SALT_BITS, ItemId, Token, item_id_of, make_id, make_id_suffix, parse_token
from redrive.model.item import Counters, HistoryEntry, HistoryEvent, Lease, Receipt, Settled, Status
from redrive.model.judge import RETRY_STATUSES, RetryVerdict
from redrive.stores.redis.codec import content_of, decode_stand, encode, entry_told, read_content
from redrive.stores.redis.connection import meaning
from redrive.stores.redis.keys import digits, long, short
from redrive.stores.redis.queue_state import read_queue
from redrive.stores.redis.redis_client import Part

_FIRST_ARGUMENT = 3
_FIRST_DELIVERY = Counters(deliveries=1, attempts=1)
_, _FULL = meaning(ResponseError("OOM"))


def is_fast_path(call: Call) -> bool:
    """Whether the script can carry out a call."""
    match call:
        case LeaseItems() | Extend() | ReturnLease() | Promote():
            return True
        case Settle(verdict=RetryVerdict(status=status), ending=ending):
            return status in RETRY_STATUSES[ending]
        case Put():
            return _is_hot(call)
        case Complete(puts=puts):
            return all(map(_is_hot, puts))
        case _:
            return False


def _is_hot(put: Put) -> bool:
    return all(
        item.is_plain
        or (item.source_id is None and item.verdict is None and item.failure is None and item.note is None)
        for item in put.items
    )


class FastPathBatch:
    """The arguments of the script for some calls, and the results that its answer gives them."""

    def __init__(self, calls: Sequence[Call], namespace: str, store: str, *, together: bool = True) -> None:
        self._calls = calls
        self._namespace = namespace
        self._store = store
        self._args: list[Part] = []
        self._tails: dict[int, list[str]] = {}
        """Of the items of each put, by the place of the call."""
        self._places: dict[str, list[int]] = {"p": [], "e": [], "m": [], "l": []}
        self._plan: dict[str, list[Any]] = {"p": [], "e": [], "m": [], "l": []}
        self._refused: dict[int, RedriveError] = {}
        self._runs: dict[int, list[int]] = {}
        """Puts that follow one another in a queue, and of which nothing is said but their priority, by the place of the
        first. A run is one put for the script, and its calls share the numbers."""
        self.apart: list[int] = []
        """Puts of runs that were refused, and wrote nothing. Each is to be tried for itself."""
        last: dict[str, tuple[int, list[int]]] = {}
        for place, call in enumerate(calls):
            if together and isinstance(call, Put) and self._merges(place, call, last):
                continue
            try:
                kind, planned = self._planned(place, call)
            except InvalidName as refusal:
                self._refused[place] = refusal
                continue
            self._places[kind].append(place)
            self._plan[kind].append(planned)
        self._put_together()
        self._lease_together()

    def _merges(self, place: int, put: Put, last: dict[str, tuple[int, list[int]]]) -> bool:
        """Whether a put is part of a run: the last one of its queue, or a new one."""
        priority = _only_priority(put)
        if priority is None:
            last.pop(put.queue, None)
            return False
        if put.queue in last and last[put.queue][0] == priority:
            last[put.queue][1].append(place)
            return True
        self._runs[place] = [place]
        last[put.queue] = priority, self._runs[place]
        self._places["p"].append(place)
        self._plan["p"].append(None)
        return True

    def _put_together(self) -> None:
        """Plan the runs, whose members are known now."""
        for at, place in enumerate(self._places["p"]):
            if (run := self._runs.get(place)) is not None:
                calls = [self._put_call(member) for member in run]
                tails = self._tails[place] = list[str]()
                items = calls[0].items if len(calls) == 1 else tuple(chain.from_iterable(put.items for put in calls))
                self._plan["p"][at] = self._put(Put(calls[0].queue, items), tails)

    def _lease_together(self) -> None:
        """Leases that differ in nothing but how many are asked for are one for the script, and share what it gives."""
        together: dict[tuple[Any, ...], list[int]] = {}
        for place, call in zip(self._places["l"], self._plan["l"], strict=True):
            timeout = -1 if call.timeout is None else call.timeout
            together.setdefault((call.queue, call.worker or False, timeout, call.ignore_overdue), []).append(place)
        self._places["l"] = [places[0] for places in together.values()]
        self._plan["l"] = [
            (
                queue,
                sum(self._lease_call(place).limit for place in places),
                worker,
                timeout,
                swept,
                secrets.token_hex(16),
            )
            for (queue, worker, timeout, swept), places in together.items()
        ]
        self._sharing = {places[0]: places for places in together.values()}

    def arguments(self, root: str, now: Instant | None) -> list[Part]:
        """What the script is given."""
        return [root, encode({"t": now or 0, "w": self._puts_among_others(), **self._plan}), *self._args]

    def _puts_among_others(self) -> bool:
        others = (self._plan[kind] for kind in "eml")
        if self._plan["p"]:
            return any(others)
        return any(call[0] == "complete" and call[-1] for call in self._plan["e"] if call.__class__ is tuple)

    def _planned(self, place: int, call: Call) -> tuple[str, Any]:
        if call.__class__ is Complete and call.result is None and not call.puts:
            return "e", "".join(_named(call.token)) + (call.queue or "")
        match call:
            case Put():
                tails = self._tails[place] = list[str]()
                return "p", self._put(call, tails)
            case LeaseItems():
                return "l", call
            case Promote():
                return "m", call.limit
            case Complete():
                puts = [self._put(put, []) for put in call.puts]
                result = 0 if call.result is None else self._argument(encode(call.result))
                size = 0 if call.result is None else len(call.result.payload)
                keep = 0 if call.result is None or call.keep_result is None else call.keep_result
                return "e", ("complete", *_named(call.token), call.queue or False, result, size, keep, puts)
            case Settle(verdict=RetryVerdict() as verdict):
                told = HistoryEntry(
                    Instant(0), HistoryEvent(call.ending.value), "", 0, failure=call.failure, note=call.note
                )
                title = call.note if call.failure is None else call.failure.title
                return "e", (
                    *("again", *_named(call.token), call.ending, call.version, verdict.status, verdict.delay),
                    *(self._argument(entry_told(told)), False if title is None else title, call.worker_is_gone),
                )
            case ReturnLease():
                told = HistoryEntry(Instant(0), HistoryEvent.RETURNED, "", 0, note=call.note)
                row = 0 if call.note is None else self._argument(entry_told(told))
                note = False if call.note is None else call.note
                return "e", ("return", *_named(call.token), call.queue or False, row, note)
            case Extend():
                timeout = -1 if call.timeout is None else call.timeout
                return "e", ("extend", *_named(call.token), call.queue or False, timeout)
        raise AssertionError(call)

    def _put(self, put: Put, tails: list[str]) -> tuple[Any, ...]:
        first = len(self._args) + _FIRST_ARGUMENT
        tails.extend(_tails(len(put.items)))
        self._args.extend(map(content_of, put.items, repeat(put.queue), tails))
        options = [_options(new) for new in put.items]
        sizes = [len(new.payload) for new in put.items]
        if len(priorities := {new.priority for new in put.items}) == 1 and not any(options):
            return put.queue, first, len(sizes), priorities.pop(), max(sizes)
        return put.queue, [
            (first + place, new.priority, sizes[place], options[place]) for place, new in enumerate(put.items)
        ]

    def _argument(self, value: bytes) -> int:
        self._args.append(value)
        return len(self._args) + _FIRST_ARGUMENT - 1

    # The answer

    def results(self, answer: Sequence[Any]) -> list[Any]:
        """One for each call, in order."""
        _, *by_kind, _ = answer
        results: list[Any] = [self._refused.get(place) for place in range(len(self._calls))]
        for kind, answers in zip("peml", by_kind, strict=True):
            for place, answered in zip(self._places[kind], answers, strict=True):
                if kind == "l":
                    self._share(place, answered, results)
                elif kind == "p" and place in self._runs:
                    self._share_numbers(place, answered, results)
                elif answered.__class__ is bytes:
                    results[place] = self._completed(place, answered)
                else:
                    results[place] = self._result(place, answered)
        return results

    def _completed(self, place: int, queue: bytes) -> Settled:
        """The end of a first delivery that left nothing behind."""
        call = self._calls[place]
        assert isinstance(call, Complete)
        return Settled(item_id_of(call.token), queue.decode(), None, _FIRST_DELIVERY)

    def _share_numbers(self, first: int, answer: Any, results: list[Any]) -> None:
        """Give each put of a run its receipts. Where the run is refused, one of them may be the reason: `apart`."""
        places, at = self._runs[first], 0
        if not answer[0] and len(places) > 1:
            self.apart.extend(places)
            return
        receipts = self._result(first, answer)
        for place in places:
            if isinstance(receipts, RedriveError):
                results[place] = receipts
                continue
            count = len(self._put_call(place).items)
            results[place] = receipts[at : at + count]
            at += count

    def _result(self, place: int, answer: Any) -> Any:
        match call := self._calls[place]:
            case Put():
                tails = self._tails[place]
                if not answer[0]:
                    return self._refusal(answer[1], call)
                if isinstance(answer[1], int):
                    return tuple(Receipt(_id(answer[1] + n, tail)) for n, tail in enumerate(tails))
                return tuple(map(_receipt, answer[1], tails))
            case Promote():
                return answer
            case Complete() | Settle() | ReturnLease() | Extend():
                return self._ended(call, answer)
        raise AssertionError(call)

    def _ended(self, call: Complete | Settle | ReturnLease | Extend, answer: Any) -> Any:
        id = item_id_of(call.token)
        match answer:
            case [0, status]:
                return LeaseLost(id, Status(status.decode()) if status else None)
            case [2, queue]:
                return StaleSettings(read_queue(queue))
            case [4, queue]:
                assert not isinstance(call, Settle)
                return WrongQueue(id, queue.decode(), call.queue or "")
            case [3, *refused]:
                return self._refusal(refused, *(call.puts if isinstance(call, Complete) else ()))
            case [1, deadline] if isinstance(call, Extend):
                return Instant(deadline)
        _, queue, status, *counters, ready_at = answer
        return Settled(
            id=id,
            queue=queue.decode(),
            status=Status(status.decode()) if status else None,
            counters=Counters(*counters),
            ready_at=None if ready_at < 0 else Instant(ready_at),
        )

    def _share(self, first: int, answer: Any, results: list[Any]) -> None:
        """Give each of the calls that were leased together what it asked for, as far as it goes."""
        places = self._sharing[first]
        if answer is None:
            for place in places:
                results[place] = QueueNotFound(self._lease_call(place).queue, self._namespace)
            return
        overdue, next_at, raw = answer
        leases = [lease_of(body, content, stand) for body, content, stand in raw]
        later = None if next_at < 0 else Instant(next_at)
        at = 0
        for place in places:
            mine = leases[at : at + self._lease_call(place).limit]
            at += len(mine)
            results[place] = Leased(mine, overdue=bool(overdue), next_at=None if mine else later)

    def _put_call(self, place: int) -> Put:
        call = self._calls[place]
        assert isinstance(call, Put)
        return call

    def _lease_call(self, place: int) -> LeaseItems:
        call = self._calls[place]
        assert isinstance(call, LeaseItems)
        return call

    def _refusal(self, refused: Sequence[Any], *puts: Put) -> RedriveError:
        match refused:
            case [b"large", limit]:
                sizes = (len(item.payload) for put in puts for item in put.items)
                return PayloadTooLarge(
                    "payload", next(size for size in sizes if size > limit), limit, "max_payload_size"
                )
            case [b"queue", queue]:
                return QueueNotFound(queue.decode(), self._namespace)
            case [b"bytes", size, limit]:
                return PayloadTooLarge("payload", size, limit, "max_payload_size")
            case [b"result", size, limit]:
                return PayloadTooLarge("result", size, limit, "max_payload_size")
            case [b"key", queue, key, id]:
                return IdempotencyConflict(queue.decode(), key.decode(), id.decode() or SAME_CALL)
            case [b"full", queue, size, max_size, adding]:
                return QueueFull(queue.decode(), size, max_size, adding)
            case [b"memory"]:
                return StoreUnavailable(self._store, _FULL)
        raise AssertionError(refused)


def arrivals_of(answer: Sequence[Any]) -> dict[str, int]:
    """Whom to wake."""
    told: Iterator[Any] = iter(answer[-1])
    return {queue.decode(): count for queue, count in zip(told, told, strict=True)}


def _only_priority(put: Put) -> int | None:
    """The priority of all items of a put, if that is all there is to say of them."""
    if not put.items:
        return None
    priority = put.items[0].priority
    for new in put.items:
        if not new.is_plain or new.expire_timeout is not None or new.priority != priority:
            return None
    return priority


def _options(new: NewItem) -> dict[str, Any] | None:
    """What an item has beside payload, content type and priority."""
    if new.is_plain and new.expire_timeout is None:
        return None
    options: dict[str, Any] = {}
    if new.enqueue_at is not None:
        options["a"] = new.enqueue_at
    elif new.delay:
        options["d"] = new.delay
    if new.expire_timeout is not None:
        options["x"] = new.expire_timeout
    if new.held_by is not None:
        options["h"] = new.held_by
    if new.idempotency_key is not None:
        options["k"] = new.idempotency_key
        options["g"] = hashlib.sha256(new.content_type.encode() + b"\0" + new.payload).hexdigest()
    return options or None


def _named(token: Token) -> tuple[str, str, ItemId]:
    """The number and the key in a token, and the id."""
    number, _, _ = parse_token(token)
    return digits(short(number)), token[32:], item_id_of(token)


def _tails(count: int) -> Iterator[str]:
    """Tails of new ids, as they stand there: a salt that nobody can guess, and the partition."""
    salts = secrets.token_bytes(8 * count)
    return (
        f"{make_id_suffix(int.from_bytes(salts[at : at + 8]) >> 64 - SALT_BITS):016x}" for at in range(0, 8 * count, 8)
    )


def _id(number: int, tail: str) -> ItemId:
    return ItemId(f"{tail}{long(number):016x}")


def _receipt(answer: bytes, tail: str) -> Receipt:
    """The body of an item that was put, or the id of the one that was there."""
    if len(answer) == 32:
        return Receipt(ItemId(answer.decode()), duplicate=True)
    return Receipt(_id(int(answer), tail))


def lease_of(body: bytes, raw_content: bytes, raw_stand: bytes) -> Lease:
    """The lease on an active item, as it is stored."""
    put_at, tail, content = read_content(raw_content)
    stand = decode_stand(raw_stand)
    id = ItemId(stand.i[-1]) if stand.i else make_id(long(int(body)), tail)
    assert stand.t is not None
    assert stand.F is not None
    return Lease(
        id=id,
        token=Token(id + stand.t),
        queue=stand.q,
        payload=content.payload,
        content_type=content.content_type,
        headers=content.headers or {},
        priority=content.priority,
        put_at=put_at,
        deliveries=stand.d,
        attempts=stand.a,
        failures=stand.f,
        losses=stand.l,
        redrives=stand.v,
        leased_at=Instant(stand.L),
        deadline=Instant(stand.D),
        first_leased_at=Instant(stand.F),
        expire_deadline=None if stand.e is None else Instant(stand.e),
        overrides=content.overrides,
        worker=stand.w,
    )
