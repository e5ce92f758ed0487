"""Health of a store: durability and warnings for the operator."""

from __future__ import annotations

import msgspec

from redrive.broker.core import Core
from redrive.broker.flow import Flow, run_query
from redrive.broker.flows.breaker_control import breaker_status
from redrive.broker.flows.moves import STUCK_AFTER
from redrive.contract.queries import ListMoveTargets, ListQueues, MoveTarget
from redrive.errors import StoreUnavailable
from redrive.model.duration import format_duration
from redrive.model.gate import DAMAGED_GATE, gate_named
from redrive.model.queue import Queue
from redrive.model.text import join_lines, pluralize
from redrive.store import Durability, Store

BREAKER_WARNING = "Circuit breaker "
"""The start of the warning about a breaker that is open, half-open or closing."""


class Health(msgspec.Struct, frozen=True):
    """The health of a store."""

    durability: Durability
    """Failures that an acknowledged call survives, and data that can be lost."""
    warnings: tuple[str, ...] = ()
    """Conditions that need an operator, a sentence each."""

    @property
    def is_healthy(self) -> bool:
        """True if there are no warnings."""
        return not self.warnings

    def __str__(self) -> str:
        state = "well" if self.is_healthy else "needs attention"
        return join_lines(f"{state}; an acknowledged call survives {self.durability.survives}", *self.warnings)


def store_warnings(core: Core) -> Flow[tuple[str, ...]]:
    """Return a sentence for each stuck move, and each queue with damaged settings or an open breaker.

    A store that cannot be read is reported as a warning, not raised.
    """
    try:
        return (*(yield from _stuck_moves(core)), *(yield from _open_breakers(core)))
    except StoreUnavailable as error:
        return (str(error),)


def _open_breakers(core: Core) -> Flow[tuple[str, ...]]:
    """Return a sentence for each queue: about the breaker that opened first, and the number of others."""
    queues: tuple[Queue, ...] = yield from run_query(ListQueues())
    warnings: list[str] = []
    for queue in queues:
        if gate_named(queue.gates, DAMAGED_GATE) is not None:
            damaged = f"The stored settings of queue '{queue.name}' are damaged"
            warnings.append(f"{damaged}: it gives no items until they are set again")
        if queue.breakers:
            first = yield from breaker_status(core, queue, min(queue.breakers, key=lambda each: each.opened_at))
            others = len(queue.breakers) - 1
            more = f"; {pluralize(others, 'other breaker')} of this queue too" if others else ""
            warnings.append(f"{BREAKER_WARNING}{str(first).removeprefix('breaker ')}{more}")
    return tuple(warnings)


def _stuck_moves(core: Core) -> Flow[tuple[str, ...]]:
    """Return a sentence for each queue of another store to which items have been moving for too long."""
    found: tuple[MoveTarget, ...] = yield from run_query(ListMoveTargets())
    now = core.clock.now()
    return tuple(
        f"Items have been moving to {each.to} for {format_duration(now - each.since)}: "
        f"{core.trials.problem(each.to) or 'no program that knows that store has taken them'}"
        for each in found
        if now - each.since > STUCK_AFTER
    )


def health_of(store: Store, warnings: tuple[str, ...]) -> Health:
    """Return the health with these warnings and those of the store. Queries the store's server, if it has one."""
    return Health(store.durability(), tuple(dict.fromkeys((*store.warnings(), *warnings))))
