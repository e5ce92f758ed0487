"""Deliveries, as methods of `AsyncBroker`: put, lease, extend and settle."""

# A str is also a Sequence[str]: the overload for one id takes precedence.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

from redrive.broker.async_api.base import AsyncBrokerBase
from redrive.broker.flows import deliveries, settle
from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.declaration import lists_options
from redrive.model.duration import DurationInput
from redrive.model.failure import Failure
from redrive.model.ids import Token
from redrive.model.item import KeptResult, Lease, Receipt, Settled
from redrive.model.judge import Verdict
from redrive.model.options import ItemOptions
from redrive.model.retry_policy import RetryInput


class AsyncDeliveryMethods(AsyncBrokerBase):
    """Methods of producers and workers."""

    @lists_options(ItemOptions)
    async def put(self, queue: str, value: Any, *, transaction: Any = None, **options: Unpack[ItemOptions]) -> Receipt:
        """Put one item. Bytes are stored unchanged; any other value as JSON.

        `transaction` is your own connection to the same database, with an open transaction: the item then exists if and
        only if that transaction commits.
        """
        put = deliveries.put_one(queue, value, options)
        if transaction is not None:
            return self.core.put_in_transaction(transaction, put)[0]
        receipts: tuple[Receipt, ...] = await self.submit(put)
        return receipts[0]

    async def put_many(self, queue: str, values: Iterable[Any], *, transaction: Any = None) -> tuple[Receipt, ...]:
        """Put all values or none, at most 10,000. Each is a value, or a `new_item(value, …)` with its own options."""
        put = deliveries.put_call(queue, values)
        receipts: tuple[Receipt, ...] = (
            self.core.put_in_transaction(transaction, put) if transaction is not None else await self.submit(put)
        )
        return receipts

    async def put_failed(
        self,
        queue: str,
        value: Any,
        error: BaseException | Failure | str,
        *,
        verdict: Verdict | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        content_type: str | None = None,
        max_attempts: int | None = None,
        max_losses: int | None = None,
        retry: RetryInput | None = None,
    ) -> Receipt:
        """Put work that has already failed outside of any queue: the item starts as failed or dead, by its own `retry`
        and limits, or by those of the queue.

        If the idempotency key is known, the failure is added to that item. If that item is completed or deleted, the
        failure is a new item, which takes over the key. Raises `ItemMoving` while that item moves to another store.
        """
        item = deliveries.new_item(
            value,
            headers=headers,
            idempotency_key=idempotency_key,
            content_type=content_type,
            max_attempts=max_attempts,
            max_losses=max_losses,
            retry=retry,
        )
        return await self.run_flow(settle.put_failed(self.core, queue, item, error, verdict))

    async def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: DurationInput = 0,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease]:
        """Lease up to `limit` items, in order; wait up to `wait` for the first one. Returns [] if there is none."""
        return await self.run_flow(deliveries.lease(self.core, queue, limit, wait, lease_timeout, worker))

    @overload
    async def lease_by_id(
        self,
        ids: str,
        *,
        include_dead: bool = False,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> Lease: ...
    @overload
    async def lease_by_id(
        self,
        ids: Sequence[str],
        *,
        include_dead: bool = False,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease | RedriveError]: ...
    async def lease_by_id(
        self,
        ids: str | Sequence[str],
        *,
        include_dead: bool = False,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> Any:
        """Lease exactly these items, now: pending and failed ones, even if they are not due.

        One id returns its lease, or raises the refusal. Several return a list, with a lease or an error for each.
        With `include_dead`, dead items too: such an item is completed, or dead again with the same last death.
        """
        return await self.run_flow(deliveries.lease_by_id(ids, include_dead, lease_timeout, worker))

    async def extend(self, lease: Lease | Token, timeout: DurationInput | None = None) -> Instant:
        """Extend a lease to `timeout` from now, by default the queue's lease_timeout. Returns the new deadline."""
        answer: Instant = await self.submit(deliveries.extend_call(lease, timeout))
        return answer

    async def complete(
        self,
        lease: Lease | Token,
        *,
        result: Any = None,
        puts: Iterable[tuple[str, Any]] = (),
        keep_result: DurationInput | None = None,
    ) -> Settled:
        """Complete an item. `puts` are (queue, value or new_item), put in the same transaction as the result.

        `get(id).result.value` is the result, for as long as the queue's keep_completed says; `result(id)` returns it
        for `keep_result`, even if the item is not kept.
        """
        answer: Settled = await self.submit(deliveries.complete_call(lease, result, puts, keep_result))
        return answer

    async def result(self, id: str) -> KeptResult | None:
        """Return the result that `complete` kept for an item, unredacted: `result(id).value`. None if none is kept.

        Any id that the item had finds it, such as the one in the receipt of its put. The result names the queue in
        which the item was completed (`queue`), and the one that it was put to if it moved (`put_to`).
        """
        return await self.run_flow(deliveries.result(id))

    async def fail(
        self,
        lease: Lease | Token,
        error: BaseException | Failure | str,
        *,
        final: bool = False,
        verdict: Verdict | None = None,
    ) -> Settled:
        """Report that the work failed: the item is retried or dead, by the queue's settings. `final`: no more retries.

        `verdict` decides instead of the settings: `RetryVerdict.after("30s")` or `Dead(reason)`.
        """
        return await self.run_flow(settle.fail(self.core, lease, error, final, verdict))

    async def release(
        self, lease: Lease | Token, *, delay: DurationInput = 0, counted: bool = True, error: str | None = None
    ) -> Settled:
        """Release an item. Counted: the attempt is spent, and the item goes to the end of the queue after `delay`.

        Not counted: the item never ran, and returns to its old position.
        """
        return await self.run_flow(settle.release(self.core, lease, delay, counted, error))

    async def bury(
        self, lease: Lease | Token, *, note: str | None = None, error: BaseException | Failure | None = None
    ) -> Settled:
        """Make an item dead, regardless of its counters."""
        return await self.run_flow(settle.bury(self.core, lease, note, error))

    async def report_lost(self, lease: Lease | Token, error: Failure | str) -> Settled:
        """Report that the worker of a lease is gone, before the lease expires: one loss is counted immediately.

        `error` describes the end of the worker; it is the cause of death if the item dies of this loss.
        """
        return await self.run_flow(settle.report_lost(self.core, lease, error))
