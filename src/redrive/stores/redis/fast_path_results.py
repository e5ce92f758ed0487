"""Answers of the script of the fast path as results of the contract."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from redis.exceptions import ResponseError

from redrive.clock import Instant
from redrive.contract.base import SAME_CALL
from redrive.contract.item_calls import Complete, Extend, Leased, Put, ReturnLease, Settle, StaleSettings
from redrive.contract.maintenance_calls import Promote
from redrive.errors import (
    IdempotencyConflict,
    LeaseLost,
    PayloadTooLarge,
    QueueFull,
    QueueNotFound,
    RedriveError,
    StoreDamaged,
    StoreUnavailable,
    WrongQueue,
)
from redrive.model.ids import ItemId, Token, item_id_of, make_id
from redrive.model.item import Counters, Lease, Receipt, Settled, Status
from redrive.model.judge import Dead
from redrive.stores.redis.codec import decode_content, decode_state
from redrive.stores.redis.connection import classify_error
from redrive.stores.redis.fast_path import KINDS, FastPathBatch
from redrive.stores.redis.keys import long
from redrive.stores.redis.queue_state import decode_queue
from redrive.stores.rules.damage import read_value

_FIRST_DELIVERY = Counters(deliveries=1, attempts=1)
_LEFT = [5]
"""The answer to a call that the script leaves."""
_, _MEMORY_FULL = classify_error(ResponseError("OOM"))


class ResultReader:
    """Results of the calls of a batch."""

    def __init__(self, batch: FastPathBatch, namespace: str, store: str) -> None:
        self._batch = batch
        self._namespace = namespace
        self._store = store
        self.left: list[int] = []
        """Positions of calls that the script left, in the order of the batch."""
        self.is_run_refused = False
        """True if they were left because a run of puts was refused: the script takes them if each put is separate.
        Otherwise they were left to the rules."""

    def read(self, answer: Sequence[Any]) -> list[Any]:
        """Return the result of each call, in order."""
        batch = self._batch
        _, *by_kind, _ = answer
        results: list[Any] = [batch.refused.get(position) for position in range(len(batch.calls))]
        for kind, answers in zip(KINDS, by_kind, strict=True):
            for position, each in zip(batch.positions[kind], answers, strict=True):
                if kind == "l":
                    self._read_leases(position, each, results)
                elif kind == "p" and position in batch.put_runs:
                    self._read_run(position, each, results)
                elif each.__class__ is bytes:
                    results[position] = self._plainly_completed(position, each)
                elif each == _LEFT:
                    self.left.append(position)
                else:
                    results[position] = self._result(position, each)
        self.left.sort()
        return results

    def _plainly_completed(self, position: int, queue: bytes) -> Settled:
        """Return the result of a completion at the first delivery, after which the item is removed."""
        call = self._batch.calls[position]
        assert isinstance(call, Complete)
        return Settled(item_id_of(call.token), queue.decode(), None, _FIRST_DELIVERY)

    def _read_run(self, first: int, answer: Any, results: list[Any]) -> None:
        """Give each put of a run its receipts. If a run of several is refused, one of them may be the reason."""
        positions, at = self._batch.put_runs[first], 0
        if answer == _LEFT:
            self.left.extend(positions)
            self.is_run_refused = True
            return
        receipts = self._result(first, answer)
        for position in positions:
            if isinstance(receipts, RedriveError):
                results[position] = receipts
                continue
            count = len(self._batch.put_at(position).items)
            results[position] = receipts[at : at + count]
            at += count

    def _result(self, position: int, answer: Any) -> Any:
        match call := self._batch.calls[position]:
            case Put():
                suffixes = self._batch.suffixes[position]
                if not answer[0]:
                    return self._refusal(answer[1], call)
                if isinstance(answer[1], int):
                    return tuple(Receipt(_id(answer[1] + n, suffix)) for n, suffix in enumerate(suffixes))
                return tuple(map(_receipt, answer[1], suffixes))
            case Promote():
                return answer
            case Complete() | Settle() | ReturnLease() | Extend():
                return self._settled(call, answer)
        raise AssertionError(call)

    def _settled(self, call: Complete | Settle | ReturnLease | Extend, answer: Any) -> Any:
        id = item_id_of(call.token)
        match answer:
            case [0, status]:
                return LeaseLost(id, Status(status.decode()) if status else None)
            case [2, queue]:
                settings = read_value(decode_queue, queue, None, tuple)
                return StoreDamaged(self._store, "key queues") if settings is None else StaleSettings(settings)
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
            dead_reason=call.verdict.reason if isinstance(call, Settle) and isinstance(call.verdict, Dead) else None,
        )

    def _read_leases(self, first: int, answer: Any, results: list[Any]) -> None:
        """Give each lease of a group up to its limit of what was leased for all of them."""
        positions = self._batch.lease_groups[first]
        if answer is None:
            for position in positions:
                results[position] = QueueNotFound(self._batch.lease_at(position).queue, self._namespace)
            return
        if answer == _LEFT:
            self.left.extend(positions)
            return
        overdue, next_at, raw = answer
        leases = leases_of(raw)
        later = None if next_at < 0 else Instant(next_at)
        at = 0
        for position in positions:
            some = leases[at : at + self._batch.lease_at(position).limit]
            at += len(some)
            results[position] = Leased(some, overdue=bool(overdue), next_at=None if some else later)

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
                return StoreUnavailable(self._store, _MEMORY_FULL)
        raise AssertionError(refused)


def arrivals_of(answer: Sequence[Any]) -> dict[str, int]:
    """Return how many items became leasable, by queue; 0 if there is only a new time to wait for."""
    parts: Iterator[Any] = iter(answer[-1])
    return {queue.decode(): count for queue, count in zip(parts, parts, strict=True)}


def _id(number: int, suffix: str) -> ItemId:
    return ItemId(f"{suffix}{long(number):016x}")


def _receipt(answer: bytes, suffix: str) -> Receipt:
    """Return the receipt of a put: the script answers with the body of a new item, or the id of an existing one."""
    if len(answer) == 32:
        return Receipt(ItemId(answer.decode()), duplicate=True)
    return Receipt(_id(int(answer), suffix))


def leases_of(stored: Iterable[Sequence[bytes]]) -> list[Lease]:
    """Return the leases on active items. One that cannot be read is given to no worker, and is lost when it expires."""
    read = (read_value(lambda raw: _lease_of(*raw), raw, None, tuple) for raw in stored)
    return [lease for lease in read if lease is not None]


def _lease_of(body: bytes, raw_content: bytes, raw_state: bytes) -> Lease:
    """Return the lease on an active item from its stored content and state."""
    put_at, suffix, content = decode_content(raw_content)
    state = decode_state(raw_state)
    id = ItemId(state.i[-1]) if state.i else make_id(long(int(body)), suffix)
    assert state.t is not None
    assert state.F is not None
    return Lease(
        id=id,
        token=Token(id + state.t),
        queue=state.q,
        payload=content.payload,
        content_type=content.content_type,
        headers=content.headers or {},
        priority=content.priority,
        put_at=put_at,
        deliveries=state.d,
        attempts=state.a,
        failures=state.f,
        losses=state.l,
        redrives=state.v,
        leased_at=Instant(state.L),
        deadline=Instant(state.D),
        first_leased_at=Instant(state.F),
        expire_deadline=None if state.e is None else Instant(state.e),
        overrides=content.overrides,
        worker=state.w,
        dead_reason=state.R,
    )
