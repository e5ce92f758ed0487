# Generated from broker/async_api/deliveries.py by tools/blocking_api.py; edit that file.
"""Work, as methods of `Broker`: put, lease, and how a delivery ends."""

# One id is a text, and a text is a sequence of texts: the overload for one id is meant first.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack, overload

from redrive.broker.api.base import BrokerBase
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


class DeliveryMethods(BrokerBase):
    """What programs and workers do all day."""

    @lists_options(ItemOptions)
    def put(self, queue: str, value: Any, *, transaction: Any = None, **options: Unpack[ItemOptions]) -> Receipt:
        """Put one item. Bytes are stored as they are; any other value as JSON.

        `transaction` is a connection of yours to the same database with a transaction open: the item then exists if and
        only if that transaction commits.
        """
        put = deliveries.put_one(queue, value, options)
        if transaction is not None:
            return self.core.put_in_transaction(transaction, put)[0]
        receipts: tuple[Receipt, ...] = self.submit(put)
        return receipts[0]

    def put_many(self, queue: str, values: Iterable[Any], *, transaction: Any = None) -> tuple[Receipt, ...]:
        """Put all of them, at most 10,000, or none. Each is a value, or a `new_item(value, …)` with its own options."""
        put = deliveries.put_call(queue, values)
        receipts: tuple[Receipt, ...] = (
            self.core.put_in_transaction(transaction, put) if transaction is not None else self.submit(put)
        )
        return receipts

    def put_failed(
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
        """Put work that has failed already, outside of any queue: it is born failed or dead, as its own `retry` and
        limits say, or those of the queue.

        A key that is known adds the failure to the item that is there. Where that is completed or gone, the failure is
        a new item, which takes the key. Raises `ItemMoving` while it is on its way to another store.
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
        return self.run_flow(settle.put_failed(self.core, queue, item, error, verdict))

    def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: DurationInput = 0,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease]:
        """Up to `limit` items, in order; waits up to `wait` for the first one. An empty list when there is none."""
        return self.run_flow(deliveries.lease(self.core, queue, limit, wait, lease_timeout, worker))

    @overload
    def lease_by_id(
        self,
        ids: str,
        *,
        include_dead: bool = False,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> Lease: ...
    @overload
    def lease_by_id(
        self,
        ids: Sequence[str],
        *,
        include_dead: bool = False,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease | RedriveError]: ...
    def lease_by_id(
        self,
        ids: str | Sequence[str],
        *,
        include_dead: bool = False,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> Any:
        """Lease exactly these items, now: pending ones, also if they are not due, and failed ones before their time.

        One id gives its lease, and a refusal is raised. Several give a list, with a lease or an error for each.
        With `include_dead`, dead items too: such an item is completed, or dead again as it was.
        """
        return self.run_flow(deliveries.lease_by_id(ids, include_dead, lease_timeout, worker))

    def extend(self, lease: Lease | Token, timeout: DurationInput | None = None) -> Instant:
        """Hold on to an item for `timeout` from now, or the queue's lease_timeout. Returns the new deadline."""
        answer: Instant = self.submit(deliveries.extend_call(lease, timeout))
        return answer

    def complete(
        self,
        lease: Lease | Token,
        *,
        result: Any = None,
        puts: Iterable[tuple[str, Any]] = (),
        keep_result: DurationInput | None = None,
    ) -> Settled:
        """The work is done. `puts` are (queue, value or new_item) put in the same transaction, with the result.

        `get(id).result.value` is the result, for as long as the queue's keep_completed says; `result(id)` gives it for
        `keep_result`, whether the item is kept or not.
        """
        answer: Settled = self.submit(deliveries.complete_call(lease, result, puts, keep_result))
        return answer

    def result(self, id: str) -> KeptResult | None:
        """What the work on an item gave, as it is: `result(id).value`. None where it is not done, or nothing was kept.

        The id is any that the item had, as the one in the receipt of its put. The result names the queue in which the
        item was completed (`queue`), and the one that it was put to if it moved (`put_to`).
        """
        return self.run_flow(deliveries.result(id))

    def fail(
        self,
        lease: Lease | Token,
        error: BaseException | Failure | str,
        *,
        final: bool = False,
        verdict: Verdict | None = None,
    ) -> Settled:
        """The work failed: retried or dead, as the queue's settings say. `final` means never again.

        `verdict` decides instead of the settings: `RetryVerdict.after("30s")` or `Dead(reason)`.
        """
        return self.run_flow(settle.fail(self.core, lease, error, final, verdict))

    def release(
        self, lease: Lease | Token, *, delay: DurationInput = 0, counted: bool = True, error: str | None = None
    ) -> Settled:
        """Give the item back. Counted: the attempt is spent and the item goes to the tail after `delay`.

        Not counted: it never ran, and takes its old place.
        """
        return self.run_flow(settle.release(self.core, lease, delay, counted, error))

    def bury(
        self, lease: Lease | Token, *, note: str | None = None, error: BaseException | Failure | None = None
    ) -> Settled:
        """Make the item dead, whatever its counters say."""
        return self.run_flow(settle.bury(self.core, lease, note, error))

    def report_lost(self, lease: Lease | Token, error: Failure | str) -> Settled:
        """The worker that held it is gone, and somebody knows it before the lease runs out: one loss, counted at once.

        `error` is what is known of its end; where the item dies of it, that is the cause.
        """
        return self.run_flow(settle.report_lost(self.core, lease, error))
