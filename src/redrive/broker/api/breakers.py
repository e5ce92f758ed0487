# Generated from broker/async_api/breakers.py by tools/blocking_api.py; edit that file.
"""Circuit breakers, as methods of `Broker`."""

from __future__ import annotations

from redrive.broker.api.base import BrokerBase
from redrive.broker.breaker_monitor import BreakerHook
from redrive.broker.flows import breaker_control
from redrive.model.breaker import QUEUE, BreakerStatus
from redrive.model.duration import DurationInput


class BreakerMethods(BrokerBase):
    """Methods to list, open and close circuit breakers. Queues open them by the rules of their setting `breakers`."""

    def list_breakers(self, queue: str | None = None) -> tuple[BreakerStatus, ...]:
        """List the circuit breakers that are not closed, of one queue or all."""
        return self.run_flow(breaker_control.list_breakers(self.core, queue))

    def open_breaker(
        self,
        queue: str,
        kind: str = QUEUE,
        *,
        open_for: DurationInput | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> BreakerStatus:
        """Open a circuit breaker: `queue`, an error class, or `fingerprint:` and the fingerprint of a group.

        It lets a probe through after `open_for`, and closes if that succeeds. One that is open is left unchanged.
        """
        return self.run_flow(breaker_control.open_by_hand(self.core, queue, kind, open_for, note, actor))

    def close_breaker(self, queue: str, kind: str = QUEUE, *, note: str | None = None, actor: str | None = None) -> int:
        """Close a circuit breaker without waiting for a probe. Returns how many items were released."""
        return self.run_flow(breaker_control.close_by_hand(self.core, queue, kind, note, actor))

    def on_breaker_change(self, hook: BreakerHook) -> BreakerHook:
        """Call a function with the feed's entry when a breaker opens or closes, in a separate thread.

        This process must run the maintenance; after a restart it is not called for changes from before.
        """
        return breaker_control.add_hook(self.core, hook)
