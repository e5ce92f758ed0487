"""Gates: until when a queue gives no leases, and how many it gives after that. Independent of a pause.

Pure functions of the gates that a queue has. A store applies them where it leases; a queue without gates costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from redrive.clock import Instant
from redrive.model.ids import ItemId
from redrive.model.retry_after import MAX_RETRY_AFTER

BREAKER_GATE = "breaker"
"""The gate of a queue's breaker."""
RETRY_AFTER_GATE = "retry_after"
"""The gate that a Retry-After closes."""


class Gate(msgspec.Struct, frozen=True, omit_defaults=True):
    """Before `until` the queue gives no leases; from then on `allowance` more in all, or any number (None)."""

    name: str
    until: Instant
    allowance: int | None = None
    leased: tuple[ItemId, ...] = ()
    """What was leased under the allowance, oldest first."""

    @property
    def leases_left(self) -> int | None:
        """How many leases it gives once it is open. None: any number."""
        return None if self.allowance is None else max(0, self.allowance - len(self.leased))


Gates = tuple[Gate, ...]


def lease_limit(gates: Gates, now: Instant, limit: int) -> int:
    """How many of `limit` leases these gates let through now."""
    if shut_gate(gates, now) is not None:
        return 0
    return min([limit, *(gate.leases_left for gate in gates if gate.leases_left is not None)])


def shut_gate(gates: Gates, now: Instant) -> Gate | None:
    """The first gate that lets no lease through now: it is closed, or its allowance is used up."""
    return next((gate for gate in gates if now < gate.until or gate.leases_left == 0), None)


def counts_leases(gates: Gates) -> bool:
    """Whether any of the gates must be written with each lease."""
    return any(gate.allowance is not None for gate in gates)


def count_leases(gates: Gates, ids: Sequence[ItemId]) -> Gates:
    """The gates after these items were leased."""
    return tuple(
        gate if gate.allowance is None else msgspec.structs.replace(gate, leased=(*gate.leased, *ids)) for gate in gates
    )


def opens_at(gates: Gates, now: Instant) -> Instant | None:
    """When leases may be given again. None: not before a gate is changed."""
    if any(gate.leases_left == 0 for gate in gates):
        return None
    return max([now, *(gate.until for gate in gates)])


def gate_named(gates: Gates, name: str) -> Gate | None:
    """The gate of that name."""
    return next((gate for gate in gates if gate.name == name), None)


def set_gate(gates: Gates, name: str, gate: Gate | None) -> Gates:
    """The gates with another one of that name, or none."""
    others = tuple(each for each in gates if each.name != name)
    return others if gate is None else (*others, gate)


def close_for_retry_after(gates: Gates, until: Instant, leased_at: Instant, now: Instant) -> Gates:
    """The gates after a delivery that was leased at that time was asked to come back at `until`, or after an hour.

    It is ignored if the gate has opened again since the lease: the answer is from before that.
    """
    until = min(until, Instant(now + MAX_RETRY_AFTER))
    present = gate_named(gates, RETRY_AFTER_GATE)
    if until <= now or (present is not None and (until <= present.until or leased_at < present.until <= now)):
        return gates
    return set_gate(gates, RETRY_AFTER_GATE, Gate(RETRY_AFTER_GATE, until))
