"""Operations, as methods of `AsyncBroker`: changes of many items, which live in the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from redrive.broker.async_api.base import AsyncBrokerBase
from redrive.broker.flows import operations
from redrive.broker.flows.operations import BATCH_SIZE
from redrive.model.declaration import lists_options
from redrive.model.duration import DurationInput
from redrive.model.filter import Filter
from redrive.model.operation import Operation
from redrive.model.operation_plan import OperationPlan
from redrive.model.options import PlanConditions, StartOptions


class AsyncOperationMethods(AsyncBrokerBase):
    """Methods to start, watch and control changes of many items."""

    @lists_options(StartOptions)
    async def start_operation(
        self, verb: str, where: Filter | None = None, **options: Unpack[StartOptions]
    ) -> Operation:
        """Change all items that match now: retry, redrive, undo, move, bury, archive, restore or purge them.

        The filter or the conditions are those of `find`; without a status, the one that the verb is for. The operation
        is kept in the store: the maintenance of any broker runs it, and it continues after a crash.
        """
        return await self.run_flow(operations.start_operation(self.core, verb, where, **options))

    @lists_options(PlanConditions)
    async def plan_operation(
        self, verb: str, where: Filter | None = None, **options: Unpack[PlanConditions]
    ) -> OperationPlan:
        """Return what `start_operation` would do, item by item, without doing it."""
        return await self.run_flow(operations.plan_operation(self.core, verb, where, **options))

    async def get_operation(self, id: str) -> Operation:
        """Return the current state of an operation."""
        return await self.run_flow(operations.get(self.core, id))

    async def list_operations(self, *, unfinished: bool = False, limit: int = 100) -> tuple[Operation, ...]:
        """List operations, newest first; with `unfinished`, only those that have not ended."""
        return await self.run_flow(operations.list_all(self.core, unfinished, limit))

    async def pause_operation(self, id: str, *, actor: str | None = None) -> Operation:
        """Pause an operation: it makes no more steps until it is resumed."""
        return await self.run_flow(operations.pause(self.core, id, actor))

    async def resume_operation(self, id: str, *, skip_canaries: bool = False, actor: str | None = None) -> Operation:
        """Resume a paused operation. `skip_canaries`: do not wait for its canaries any longer."""
        return await self.run_flow(operations.resume(self.core, id, skip_canaries, actor))

    async def cancel_operation(self, id: str, *, actor: str | None = None) -> Operation:
        """Cancel an operation. Items that it has changed stay changed; `undo_operation` reverts them."""
        return await self.run_flow(operations.cancel(self.core, id, actor))

    async def set_operation_rate(self, id: str, rate: float, *, actor: str | None = None) -> Operation:
        """Limit the rate of an operation: at most this many items per second from now on."""
        return await self.run_flow(operations.set_operation_rate(self.core, id, rate, actor))

    async def undo_operation(self, id: str, *, actor: str | None = None) -> Operation:
        """Start the operation that reverses another, for the items that it changed and that are unchanged since."""
        return await self.run_flow(operations.undo_operation(self.core, id, actor))

    async def run_operation(
        self,
        id: str,
        *,
        wait: DurationInput | None = None,
        progress: Callable[[Operation], object] | None = None,
        at_once: int = BATCH_SIZE,
    ) -> Operation:
        """Run the steps of an operation in this process, until it has ended, waits for canaries, or is paused.

        With `wait` it also waits for the canaries, and returns after that time at the latest. `progress` is called with
        the operation after each step of up to `at_once` items. Not needed if a maintenance runs; both may run
        concurrently.
        """
        return await self.run_flow(operations.run_operation(self.core, id, wait, progress, at_once))
