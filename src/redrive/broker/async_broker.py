"""`AsyncBroker`: what a program can do with queues and items, on an event loop."""

# One id is a text, and a text is a sequence of texts: the overload for one id is meant first.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from redrive.broker import by_hand, items, lifecycle, queues, settle
from redrive.broker.core import Core
from redrive.broker.flow import Ask, Await, Effect, Flow, Send, accepted
from redrive.broker.handle import AsyncQueueHandle
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
from redrive.store import AuditEntry, Call, Durability, Put

_T = TypeVar("_T")


class AsyncBroker:
    """Queues and items of one namespace in one store. Safe to share between tasks, and between event loops.

    A call returns once its effect is on disk. It raises a `RedriveError` when it was refused, and then it changed
    nothing. Durations are texts such as `30s`, numbers of seconds, or timedeltas.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    # Queues

    def queue(self, name: str) -> AsyncQueueHandle:
        """A handle on one queue, which need not exist yet."""
        return AsyncQueueHandle(self, items.queue_name(name))

    async def create_queue(self, name: str, **settings: Any) -> Queue:
        """Create a queue. Settings: docs/reference/settings.md. The same settings again are no error."""
        return await self._run(queues.create(name, settings))

    async def update_queue(self, name: str, *, actor: str | None = None, **settings: Any) -> Queue:
        """Change some settings. They hold from the next failure on, without a restart."""
        return await self._run(queues.update(self._core, name, settings, actor))

    async def get_queue(self, name: str) -> Queue:
        """A queue with its settings."""
        return await self._run(queues.get(self._core, name))

    async def list_queues(self) -> tuple[Queue, ...]:
        """All queues of the namespace, by name."""
        return await self._run(queues.list_all())

    async def delete_queue(self, name: str, *, confirm: int | None = None, actor: str | None = None) -> int:
        """Remove a queue and the items in it; `confirm` is how many you mean. Returns how many went."""
        return await self._run(queues.delete(self._core, name, confirm, actor))

    async def pause_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give no more leases from this queue. Puts, settles and the lifecycle go on."""
        return await self._run(queues.set_paused(self._core, name, True, actor))

    async def resume_queue(self, name: str, *, actor: str | None = None) -> Queue:
        """Give leases again."""
        return await self._run(queues.set_paused(self._core, name, False, actor))

    async def stats(self, queue: str) -> QueueStats:
        """Counts by status, the oldest ready item, and totals for rates."""
        return await self._run(queues.stats(queue))

    # Work

    async def put(
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
        put = Put(items.queue_name(queue), (item,))
        if within is not None:
            return self._core.put_within(within, put)[0]
        receipts: tuple[Receipt, ...] = accepted(await self._core.committer.submit(put))
        return receipts[0]

    async def put_many(self, queue: str, values: Iterable[Any], *, within: Any = None) -> tuple[Receipt, ...]:
        """Put all of them, at most 10,000, or none. Each is a value, or a `new_item(value, …)` with its own options."""
        put = items.put_call(queue, values)
        receipts: tuple[Receipt, ...] = (
            self._core.put_within(within, put) if within is not None else await self._call(put)
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
    ) -> Receipt:
        """Put work that has failed already, outside of any queue: it is born failed or dead, as the settings say.

        A key that is known adds the failure to the item that is there.
        """
        item = items.new_item(value, headers=headers, idempotency_key=idempotency_key, content_type=content_type)
        return await self._run(settle.put_failed(self._core, queue, item, error, verdict))

    async def lease(
        self,
        queue: str,
        limit: int = 1,
        *,
        wait: DurationInput = 0,
        lease_timeout: DurationInput | None = None,
        worker: str | None = None,
    ) -> list[Lease]:
        """Up to `limit` items, in order; waits up to `wait` for the first one. An empty list when there is none."""
        return await self._run(items.lease(self._core, queue, limit, wait, lease_timeout, worker))

    async def extend(self, lease: Lease | Token, timeout: DurationInput | None = None) -> Instant:
        """Hold on to an item for `timeout` from now, or the queue's lease_timeout. Returns the new deadline."""
        answer: Instant = await self._call(items.extend_call(lease, timeout))
        return answer

    async def complete(
        self, lease: Lease | Token, *, result: Any = None, puts: Iterable[tuple[str, Any]] = ()
    ) -> Settled:
        """The work is done. `puts` are (queue, value or new_item) put in the same transaction, with the result.

        `get(id).result.value` is the result, for as long as the queue's keep_completed says.
        """
        answer: Settled = await self._call(items.complete_call(lease, result, puts))
        return answer

    async def fail(
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
        return await self._run(settle.fail(self._core, lease, error, final, verdict))

    async def release(
        self, lease: Lease | Token, *, delay: DurationInput = 0, counted: bool = True, error: str | None = None
    ) -> Settled:
        """Give the item back. Counted: the attempt is spent and the item goes to the tail after `delay`.

        Not counted: it never ran, and takes its old place.
        """
        return await self._run(settle.release(self._core, lease, delay, counted, error))

    async def bury(
        self, lease: Lease | Token, *, note: str | None = None, error: BaseException | None = None
    ) -> Settled:
        """Make the item dead, whatever its counters say."""
        return await self._run(settle.bury(self._core, lease, note, error))

    # Looking

    async def get(self, id: str) -> Item:
        """An item with its history and deaths. An id from before a move still finds it."""
        return await self._run(items.get(id))

    async def audit(self, limit: int = 100, *, before: int | None = None) -> tuple[AuditEntry, ...]:
        """Who changed what by hand, newest first. `before` is the number of the last entry of the page before."""
        return await self._run(items.audit(limit, before))

    # By hand: one id (raises when refused) or several (a result or an error for each)

    @overload
    async def retry(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    async def retry(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    async def retry(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Try dead or failed items again, where they are, with their counters at 0."""
        return await self._run(by_hand.change(self._core, Verb.RETRY, ids, actor, force))

    @overload
    async def redrive(
        self, ids: str, *, to: str | None = None, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    async def redrive(
        self, ids: Sequence[str], *, to: str | None = None, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    async def redrive(
        self, ids: str | Sequence[str], *, to: str | None = None, actor: str | None = None, force: bool = False
    ) -> Any:
        """Bring dead letters back to work: in place, from a dead queue to where each came from, or `to` a queue."""
        return await self._run(by_hand.change(self._core, Verb.REDRIVE, ids, actor, force, to=to))

    @overload
    async def done(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    async def done(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    async def done(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Take items as completed, though no worker said so."""
        return await self._run(by_hand.change(self._core, Verb.DONE, ids, actor, force))

    @overload
    async def drop(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    async def drop(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    async def drop(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Remove items for good. An audit row says which."""
        return await self._run(by_hand.change(self._core, Verb.DROP, ids, actor, force))

    @overload
    async def archive(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    async def archive(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    async def archive(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Put dead letters aside. They count for nothing and can be restored."""
        return await self._run(by_hand.change(self._core, Verb.ARCHIVE, ids, actor, False))

    @overload
    async def restore(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    async def restore(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    async def restore(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Take items out of the archive, to the status they had."""
        return await self._run(by_hand.change(self._core, Verb.RESTORE, ids, actor, False))

    @overload
    async def fail_by_hand(
        self, ids: str, error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    async def fail_by_hand(
        self, ids: Sequence[str], error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    async def fail_by_hand(
        self, ids: str | Sequence[str], error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> Any:
        """Count a failure against items that nobody works on: retried or dead, as their queues' settings say."""
        return await self._run(by_hand.judged(self._core, Verb.FAIL, ids, actor, force, error=error))

    @overload
    async def bury_by_hand(
        self, ids: str, *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    async def bury_by_hand(
        self, ids: Sequence[str], *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    async def bury_by_hand(
        self, ids: str | Sequence[str], *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> Any:
        """Make items dead that nobody works on."""
        return await self._run(by_hand.judged(self._core, Verb.BURY, ids, actor, force, note=note))

    async def hold(self, ids: Sequence[str], held_by: str) -> int:
        """Keep pending and failed items from being leased until `unhold`. Returns how many."""
        return await self._run(by_hand.hold(ids, held_by))

    async def unhold(self, held_by: str, ids: Sequence[str] | None = None) -> int:
        """Let items be leased again that were held under this name: these, or all. Returns how many."""
        return await self._run(by_hand.unhold(held_by, ids))

    # The broker itself

    async def step(self) -> lifecycle.Upkeep:
        """One step of the lifecycle, which otherwise runs by itself: for tests, and brokers opened without it."""
        return await self._run(lifecycle.step(self._core))

    async def durability(self) -> Durability:
        """What an acknowledged call survives on this store."""
        return self._core.store.durability()

    async def close(self) -> None:
        """Finish what was accepted, wake whoever waits, release the store. Twice is no error."""
        await asyncio.get_running_loop().run_in_executor(None, self._core.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _call(self, call: Call) -> Any:
        return accepted(await self._core.committer.submit(call))

    async def _run(self, flow: Flow[_T]) -> _T:
        """Drive a flow to its end in this coroutine."""
        try:
            step = next(flow)
            while True:
                try:
                    if step.__class__ is Send and len(step.calls) == 1:
                        answer = (await self._submit(step.calls[0]),)
                    else:
                        answer = await self._take(step)
                except RedriveError as error:
                    step = flow.throw(error)
                else:
                    step = flow.send(answer)
        except StopIteration as end:
            result: _T = end.value
            return result
        finally:
            flow.close()

    async def _submit(self, call: Call) -> Any:
        """The result of a call. If this coroutine is cancelled the moment leases come in, they are given back."""
        future = self._core.committer.submit(call)
        try:
            return await future
        except asyncio.CancelledError:
            self._core.committer.give_back(future)
            raise

    async def _take(self, step: Effect) -> Any:
        match step:
            case Send(calls):
                return await asyncio.gather(*map(self._submit, calls))
            case Ask(query):
                return await asyncio.get_running_loop().run_in_executor(None, self._core.read, query)
            case Await():
                return await self._core.notify.wait_async(step)
            case _:
                raise AssertionError(step)
