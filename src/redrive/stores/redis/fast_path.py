"""Arguments of the fast path: puts, settled deliveries, promotions and leases as one script.

`fast_path_results.py` turns the answer of the script into results.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import Any

from redrive.clock import Instant
from redrive.contract import Call
from redrive.contract.item_calls import Complete, Extend, LeaseItems, NewItem, Put, ReturnLease, Settle
from redrive.contract.maintenance_calls import Promote
from redrive.contract.replies import REPLY_TO
from redrive.errors import InvalidName, RedriveError
from redrive.model.death import EXHAUSTED_REASONS, cause_of
from redrive.model.delivery_end import DELIVERY_ENDS
from redrive.model.feed import FeedKind
from redrive.model.holder import MAX_HOLDERS, ItemHolder, add_lasting
from redrive.model.ids import SALT_BITS, ItemId, Token, item_id_of, make_id_suffix, parse_token
from redrive.model.item import HistoryEntry, HistoryEvent
from redrive.model.judge import RETRY_STATUSES, Dead, OutcomeKind, RetryVerdict
from redrive.stores.redis.codec import encode, encode_entry_details, encode_held, encode_new_content
from redrive.stores.redis.keys import FORMAT, digits, short
from redrive.stores.redis.redis_client import Part

KINDS = "peml"
"""Puts, ends of deliveries, promotions and leases, in the order in which the script executes them."""
_DEADLY = (OutcomeKind.FAILED, OutcomeKind.LOST, OutcomeKind.RELEASED, OutcomeKind.BURIED)
"""Outcomes of deliveries by which an item may die in the script."""
_FIRST_ARGUMENT = 3
"""The script counts its arguments from 1; the first two are the root of the keys and the calls."""


def is_fast_path(call: Call) -> bool:
    """Return whether the script can execute a call."""
    match call:
        case LeaseItems() | Extend() | ReturnLease() | Promote():
            return True
        case Settle(outcome_kind=OutcomeKind.EXTRA_FAILED):
            return False
        case Settle(verdict=RetryVerdict() as verdict, outcome_kind=outcome_kind, close_until=None):
            return verdict.status in RETRY_STATUSES[outcome_kind] and len(verdict.held_by) <= MAX_HOLDERS
        case Settle(verdict=Dead(to=None, drop=False), outcome_kind=outcome_kind, close_until=None):
            return outcome_kind in _DEADLY
        case Put():
            return _is_fast_put(call)
        case Complete(puts=puts, reply=None):
            return all(map(_is_fast_put, puts))
        case _:
            return False


def _is_fast_put(put: Put) -> bool:
    return all(
        item.is_plain
        or (item.source_id is None and item.verdict is None and item.failure is None and item.note is None)
        for item in put.items
    )


class FastPathBatch:
    """Calls of one commit as arguments of the script, and the data to read its answer.

    Deaths record `namespace` and `store`. With `merge=False` each put is sent separately.
    """

    def __init__(self, calls: Sequence[Call], namespace: str, store: str, *, merge: bool = True) -> None:
        self.calls = calls
        self._namespace, self._store = namespace, store
        self.positions: dict[str, list[int]] = {kind: [] for kind in KINDS}
        """Positions of the calls for the script, by kind and in its order."""
        self.suffixes: dict[int, list[str]] = {}
        """Id suffixes of the items of each put, by the position of the call."""
        self.refused: dict[int, RedriveError] = {}
        """Calls that are not sent to the script, by position."""
        self.put_runs: dict[int, list[int]] = {}
        """Consecutive plain puts of one priority in one queue, by the position of the first. A run is one put for the
        script, and its calls share the numbers."""
        self.lease_groups: dict[int, list[int]] = {}
        """Leases that differ only in their limit, by the position of the first. A group is one lease for the script."""
        self._args: list[Part] = []
        self._records: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        """Cached results of `_records_of`, which are encoded once for uniform failures."""
        self._encoded: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        last: dict[str, tuple[int, list[int]]] = {}
        for position, call in enumerate(calls):
            if merge and isinstance(call, Put) and self._joins_run(position, call, last):
                continue
            try:
                kind, encoded = self._encode(position, call)
            except InvalidName as refusal:
                self.refused[position] = refusal
                continue
            self.positions[kind].append(position)
            self._encoded[kind].append(encoded)
        self._encode_runs()
        self._merge_leases()

    def arguments(self, root: str, now: Instant | None) -> list[Part]:
        """Return the arguments of the script after its keys."""
        of_all = {"t": now or 0, "w": self._has_puts_among_others(), "v": FORMAT, "r": REPLY_TO}
        return [root, encode({**of_all, **self._encoded}), *self._args]

    def put_at(self, position: int) -> Put:
        """Return the put at this position."""
        call = self.calls[position]
        assert isinstance(call, Put)
        return call

    def lease_at(self, position: int) -> LeaseItems:
        """Return the lease at this position."""
        call = self.calls[position]
        assert isinstance(call, LeaseItems)
        return call

    def _joins_run(self, position: int, put: Put, last: dict[str, tuple[int, list[int]]]) -> bool:
        """Add a plain put to the last run of its queue, or to a new one. Return whether it is plain."""
        priority = _only_priority(put)
        if priority is None:
            last.pop(put.queue, None)
            return False
        if put.queue in last and last[put.queue][0] == priority:
            last[put.queue][1].append(position)
            return True
        self.put_runs[position] = [position]
        last[put.queue] = priority, self.put_runs[position]
        self.positions["p"].append(position)
        self._encoded["p"].append(None)
        return True

    def _encode_runs(self) -> None:
        """Encode each run, now that all its puts are known."""
        for at, position in enumerate(self.positions["p"]):
            if (run := self.put_runs.get(position)) is not None:
                puts = [self.put_at(member) for member in run]
                suffixes = self.suffixes[position] = list[str]()
                items = puts[0].items if len(puts) == 1 else tuple(chain.from_iterable(put.items for put in puts))
                encoded = self._encode_put(Put(puts[0].queue, items), suffixes)
                self._encoded["p"][at] = encoded if len(puts) == 1 else (*encoded, True)

    def _merge_leases(self) -> None:
        groups: dict[tuple[Any, ...], list[int]] = {}
        for position, call in zip(self.positions["l"], self._encoded["l"], strict=True):
            timeout = -1 if call.timeout is None else call.timeout
            groups.setdefault((call.queue, call.worker or False, timeout, call.ignore_overdue), []).append(position)
        self.positions["l"] = [group[0] for group in groups.values()]
        self._encoded["l"] = [
            (
                queue,
                sum(self.lease_at(position).limit for position in group),
                worker,
                timeout,
                ignore_overdue,
                secrets.token_hex(16),
            )
            for (queue, worker, timeout, ignore_overdue), group in groups.items()
        ]
        self.lease_groups = {group[0]: group for group in groups.values()}

    def _has_puts_among_others(self) -> bool:
        others = (self._encoded[kind] for kind in "eml")
        if self._encoded["p"]:
            return any(others)
        return any(call[0] == "complete" and call[-1] for call in self._encoded["e"] if call.__class__ is tuple)

    def _encode(self, position: int, call: Call) -> tuple[str, Any]:
        """Return the kind of a call, and the call in the format of the script."""
        if call.__class__ is Complete and call.result is None and not call.puts:
            return "e", "".join(_token_parts(call.token)) + (call.queue or "")
        match call:
            case Put():
                suffixes = self.suffixes[position] = list[str]()
                return "p", self._encode_put(call, suffixes)
            case LeaseItems():
                return "l", call
            case Promote():
                return "m", call.limit
            case Complete():
                puts = [self._encode_put(put, []) for put in call.puts]
                result = 0 if call.result is None else self._argument(encode(call.result))
                size = 0 if call.result is None else len(call.result.payload)
                keep = 0 if call.result is None or call.keep_result is None else call.keep_result
                return "e", ("complete", *_token_parts(call.token), call.queue or False, result, size, keep, puts)
            case Settle():
                return "e", self._encode_settle(call)
            case ReturnLease():
                entry = HistoryEntry(Instant(0), HistoryEvent.RETURNED, "", 0, note=call.note)
                history = 0 if call.note is None else self._history(entry)
                note = False if call.note is None else call.note
                return "e", ("return", *_token_parts(call.token), call.queue or False, history, note)
            case Extend():
                timeout = -1 if call.timeout is None else call.timeout
                return "e", ("extend", *_token_parts(call.token), call.queue or False, timeout)
        raise AssertionError(call)

    def _encode_settle(self, call: Settle) -> tuple[Any, ...]:
        event = DELIVERY_ENDS[call.outcome_kind].event
        entry = HistoryEntry(Instant(0), event, "", 0, failure=call.failure, note=call.note)
        feed_entry, *death = self._records_of(call)
        ending = (
            *(*_token_parts(call.token), call.outcome_kind, call.version, call.worker_is_gone),
            *(self._history(entry), feed_entry),
        )
        verdict = call.verdict
        if isinstance(verdict, Dead):
            return "die", *ending, *death, verdict.reason in EXHAUSTED_REASONS
        held_by = encode_held(add_lasting((), verdict.held_by)) or False
        return "retry", *ending, verdict.status, verdict.delay, held_by

    def _records_of(self, call: Settle) -> tuple[Any, ...]:
        """Return the argument of the feed entry; of a death also that of the death record, and the fingerprint."""
        failure, verdict = call.failure, call.verdict
        alike: tuple[Any, ...] = call.outcome_kind, verdict.reason if isinstance(verdict, Dead) else None, call.note
        if failure is not None:
            alike = *alike, failure.type, failure.text, failure.error_class, failure.fingerprint
        known = self._records.get(alike)
        if known is None:
            known = self._records[alike] = self._encode_records(call)
        return known

    def _encode_records(self, call: Settle) -> tuple[Any, ...]:
        failure, verdict = call.failure, call.verdict
        entry: dict[str, Any] = {"number": 0, "at": 0}
        if failure is not None:
            entry |= {"error_class": failure.error_class, "fingerprint": failure.fingerprint}
        if isinstance(verdict, Dead):
            reason, cause = verdict.reason, cause_of(verdict.reason, failure, call.note)
            entry |= {"kind": FeedKind.DEAD, "title": cause.title, "reason": reason}
            death = {"reason": reason, "namespace": self._namespace, "store": self._store, "cause": cause}
            return self._argument(_open_map(entry, 2)), self._argument(_open_map(death, 5)), cause.fingerprint
        title = call.note if failure is None else failure.title
        entry |= {"kind": call.outcome_kind} if title is None else {"kind": call.outcome_kind, "title": title}
        return (self._argument(_open_map(entry, 2)),)

    def _encode_put(self, put: Put, suffixes: list[str]) -> tuple[Any, ...]:
        first = len(self._args) + _FIRST_ARGUMENT
        suffixes.extend(_new_suffixes(len(put.items)))
        self._args.extend(map(encode_new_content, put.items, repeat(put.queue), suffixes))
        options = [_options(new) for new in put.items]
        sizes = [len(new.payload) for new in put.items]
        if len(priorities := {new.priority for new in put.items}) == 1 and not any(options):
            return put.queue, first, len(sizes), priorities.pop(), max(sizes)
        return put.queue, [(first + at, new.priority, sizes[at], options[at]) for at, new in enumerate(put.items)]

    def _history(self, entry: HistoryEntry) -> int:
        return self._argument(encode_entry_details(entry))

    def _argument(self, value: bytes) -> int:
        """Add an argument, and return its number."""
        self._args.append(value)
        return len(self._args) + _FIRST_ARGUMENT - 1


def _only_priority(put: Put) -> int | None:
    """Return the priority of all items of a put, if nothing else is set for any of them."""
    if not put.items:
        return None
    priority = put.items[0].priority
    for new in put.items:
        if not new.is_plain or new.expire_timeout is not None or new.priority != priority:
            return None
    return priority


def _options(new: NewItem) -> dict[str, Any] | None:
    """Return the values of an item beside payload, content type and priority. The names are in `lua/commit/put.lua`."""
    if new.is_plain and new.expire_timeout is None:
        return None
    options: dict[str, Any] = {}
    if new.enqueue_at is not None:
        options["a"] = new.enqueue_at
    elif new.delay:
        options["d"] = new.delay
    if new.expire_timeout is not None:
        options["x"] = new.expire_timeout
    if new.expire_at is not None:
        options["u"] = new.expire_at
    if new.held_by is not None:
        options["h"] = encode_held((ItemHolder(new.held_by, new.hold_is_lasting),))
    if new.idempotency_key is not None:
        options["k"] = new.idempotency_key
        options["g"] = hashlib.sha256(new.content_type.encode() + b"\0" + new.payload).hexdigest()
    return options or None


def _open_map(fields: dict[str, Any], more: int) -> bytes:
    """Return a map in MessagePack to which the script appends `more` fields. Up to 15 are counted in its first byte."""
    assert len(fields) + more <= 15
    encoded = encode(fields)
    return bytes((encoded[0] + more,)) + encoded[1:]


def _token_parts(token: Token) -> tuple[str, str, ItemId]:
    """Return the number and the key in a token, and the id of the item."""
    number, _, _ = parse_token(token)
    return digits(short(number)), token[32:], item_id_of(token)


def _new_suffixes(count: int) -> Iterator[str]:
    """Return suffixes of new ids in hexadecimal digits: a salt that cannot be guessed, and the partition."""
    salts = secrets.token_bytes(8 * count)
    return (
        f"{make_id_suffix(int.from_bytes(salts[at : at + 8]) >> 64 - SALT_BITS):016x}" for at in range(0, 8 * count, 8)
    )
