"""`Broker`: what a program can do with queues and items, blocking."""

# One id is a text, and a text is a sequence of texts: the overload for one id is meant first.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from redrive.broker import by_hand, items, lifecycle, queues, settle
from redrive.broker.core import Core
from redrive.broker.flow import Flow, run
from redrive.broker.handle import QueueHandle
from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.duration import DurationInput
from redrive.model.failure import Failure
from redrive.model.ids import Token
from redrive.model.item import Item, Lease, Receipt, Settled
from redrive.model.judge import Verdict
from redrive.model.limits import DEFAULT_PRIORITY
from redrive.model.queue import Queue, QueueStats
from redrive.model.transitions import Verb
from redrive.store import AuditEntry, Durability

_T = TypeVar("_T")


class Broker:
    """Queues and items of one namespace in one store. Safe to share between threads; a forked child may go on using it.

    A call returns once its effect is on disk. It raises a `RedriveError` when it was refused, and then it changed
    nothing. Durations are texts such as `30s`, numbers of seconds, or timedeltas.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    # Queues

    def queue(self, name: str) -> QueueHandle:
        """A handle on one queue, which need not exist yet."""
        return QueueHandle(self, items.queue_name(name))

    def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue. Settings: docs/reference/settings.md. The same settings again are no error."""
        return self._run(queues.create(name, settings))

    def update_queue(self, name: str, *, actor: str | None = None, **settings: Any) -> Queue:
        """Change some settings. They hold from the next failure on, without a restart."""
        return self._run(queues.update(self._core, name, settings, actor))

    def get_queue(self, name: str) -> Queue:
        """A queue with its settings."""
        return self._run(queues.get(self._core, name))

    def list_queues(self) -> tuple[Queue, ...]:
        """All queues of the namespace, by name."""
        return self._run(queues.list_all())

    def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Remove a queue and the items in it; `confirm` is how many you mean. Returns how many went."""
        return self._run(queues.delete(self._core, name, confirm, actor))

    def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give no more leases from this queue. Puts, settles and the lifecycle go on."""
        return self._run(queues.set_paused(self._core, name, True, actor))

    def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give leases again."""
        return self._run(queues.set_paused(self._core, name, False, actor))

    def stats(self, queue: str) -> QueueStats:
        """Counts by status, the oldest ready item, and totals for rates."""
        return self._run(queues.stats(queue))

    # Work

    def put(
        self,
        queue: str,
        value: Any,
        *,
        delay: DurationInput = 0,
        enqueue_at: datetime | None = None,
        priority: int = DEFAULT_PRIORITY,
        expire_timeout: DurationInput | None = None,
        headers: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        content_type: str | None = None,
        held_by: str | None = None,
        max_attempts: int | None = None,
        max_losses: int | None = None,
        retry_attempts: int | None = None,
        within: Any = None,
    ) -> Receipt:
        """Put one item. Bytes are stored as they are; any other value as JSON.

        `within` is a connection of yours to the same database with a transaction open: the item then exists if and
        only if that transaction commits. The options are those of `new_item`.
        """
        item = items.new_item(
            value,
            delay=delay,
            enqueue_at=enqueue_at,
            priority=priority,
            expire_timeout=expire_timeout,
            headers=headers,
            idempotency_key=idempotency_key,
            content_type=content_type,
            held_by=held_by,
            max_attempts=max_attempts,
            max_losses=max_losses,
            retry_attempts=retry_attempts,
        )
        return self.put_many(queue, (item,), within=within)[0]

    def put_many(self, queue: str, values: Iterable[Any], *, within: Any = None) -> tuple[Receipt, ...]:
        """Put all of them, at most 10,000, or none. Each is a value, or a `new_item(value, …)` with its own options."""
        put = items.put_call(queue, values)
        receipts: tuple[Receipt, ...] = (
            self._core.put_within(within, put) if within is not None else self._core.call(put)
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
    ) -> Receipt:
        """Put work that has failed already, outside of any queue: it is born failed or dead, as the settings say.

        A key that is known adds the failure to the item that is there.
        """
        item = items.new_item(value, headers=headers, idempotency_key=idempotency_key, content_type=content_type)
        return self._run(settle.put_failed(self._core, queue, item, error, verdict))

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
        return self._run(items.lease(self._core, queue, limit, wait, lease_timeout, worker))

    def extend(self, lease: Lease | Token, timeout: DurationInput | None = None) -> Instant:
        """Hold on to an item for `timeout` from now, or the queue's lease_timeout. Returns the new deadline."""
        answer: Instant = self._core.call(items.extend_call(lease, timeout))
        return answer

    def complete(self, lease: Lease | Token, *, result: Any = None, puts: Iterable[tuple[str, Any]] = ()) -> Settled:
        """The work is done. `puts` are (queue, value or new_item) put in the same transaction, with the result.

        `get(id).result.value` is the result, for as long as the queue's keep_completed says.
        """
        answer: Settled = self._core.call(items.complete_call(lease, result, puts))
        return answer

    def fail(
        self,
        lease: Lease | Token,
        error: BaseException | Failure | str,
        *,
        final: bool = False,
        verdict: Verdict | None = None,
    ) -> Settled:
        """The work failed: retried or dead, as the queue's settings say. `final` means never again.

        `verdict` decides instead of the settings: `Again.after("30s")` or `Dead(reason)`.
        """
        return self._run(settle.fail(self._core, lease, error, final, verdict))

    def release(
        self, lease: Lease | Token, *, delay: DurationInput = 0, counted: bool = True, error: str | None = None
    ) -> Settled:
        """Give the item back. Counted: the attempt is spent and the item goes to the tail after `delay`.

        Not counted: it never ran, and takes its old place.
        """
        return self._run(settle.release(self._core, lease, delay, counted, error))

    def bury(self, lease: Lease | Token, *, note: str | None = None, error: BaseException | None = None) -> Settled:
        """Make the item dead, whatever its counters say."""
        return self._run(settle.bury(self._core, lease, note, error))

    # Looking

    def get(self, id: str) -> Item:
        """An item with its history and deaths. An id from before a move still finds it."""
        return self._run(items.get(id))

    def audit(self, limit: int = 100, *, before: int | None = None) -> tuple[AuditEntry, ...]:
        """Who changed what by hand, newest first. `before` is the number of the last entry of the page before."""
        return self._run(items.audit(limit, before))

    # By hand: one id (raises when refused) or several (a result or an error for each)

    @overload
    def retry(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def retry(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def retry(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Try dead or failed items again, where they are, with their counters at 0."""
        return self._run(by_hand.change(self._core, Verb.RETRY, ids, actor, force))

    @overload
    def redrive(self, ids: str, *, to: str | None = None, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def redrive(
        self, ids: Sequence[str], *, to: str | None = None, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def redrive(
        self, ids: str | Sequence[str], *, to: str | None = None, actor: str | None = None, force: bool = False
    ) -> Any:
        """Bring dead letters back to work: in place, from a dead queue to where each came from, or `to` a queue."""
        return self._run(by_hand.change(self._core, Verb.REDRIVE, ids, actor, force, to=to))

    @overload
    def done(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def done(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def done(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Take items as completed, though no worker said so."""
        return self._run(by_hand.change(self._core, Verb.DONE, ids, actor, force))

    @overload
    def drop(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def drop(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def drop(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Remove items for good. An audit row says which."""
        return self._run(by_hand.change(self._core, Verb.DROP, ids, actor, force))

    @overload
    def archive(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    def archive(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    def archive(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Put dead letters aside. They count for nothing and can be restored."""
        return self._run(by_hand.change(self._core, Verb.ARCHIVE, ids, actor, False))

    @overload
    def restore(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    def restore(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    def restore(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Take items out of the archive, to the status they had."""
        return self._run(by_hand.change(self._core, Verb.RESTORE, ids, actor, False))

    @overload
    def fail_by_hand(
        self, ids: str, error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    def fail_by_hand(
        self, ids: Sequence[str], error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def fail_by_hand(
        self, ids: str | Sequence[str], error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> Any:
        """Count a failure against items that nobody works on: retried or dead, as their queues' settings say."""
        return self._run(by_hand.judged(self._core, Verb.FAIL, ids, actor, force, error=error))

    @overload
    def bury_by_hand(
        self, ids: str, *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    def bury_by_hand(
        self, ids: Sequence[str], *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def bury_by_hand(
        self, ids: str | Sequence[str], *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> Any:
        """Make items dead that nobody works on."""
        return self._run(by_hand.judged(self._core, Verb.BURY, ids, actor, force, note=note))

    def hold(self, ids: Sequence[str], held_by: str) -> int:
        """Keep pending and failed items from being leased until `unhold`. Returns how many."""
        return self._run(by_hand.hold(ids, held_by))

    def unhold(self, held_by: str, ids: Sequence[str] | None = None) -> int:
        """Let items be leased again that were held under this name: these, or all. Returns how many."""
        return self._run(by_hand.unhold(held_by, ids))

    # The broker itself

    def step(self) -> lifecycle.Upkeep:
        """One step of the lifecycle, which otherwise runs by itself: for tests, and brokers opened without it."""
        return self._run(lifecycle.step(self._core))

    def durability(self) -> Durability:
        """What an acknowledged call survives on this store."""
        return self._core.store.durability()

    def close(self) -> None:
        """Finish what was accepted, wake whoever waits, release the store. Twice is no error."""
        self._core.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, flow: Flow[_T]) -> _T:
        return run(self._core, flow)
