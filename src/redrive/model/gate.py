"""Gates: the instant before which a queue grants no leases, and the number granted after that. Independent of a pause.

Pure functions of the gates of a queue. A store applies them when it leases; a queue without gates has no extra cost.
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
"""The gate that is closed by a Retry-After."""

DAMAGED_GATE = "damaged"
"""The gate of a queue whose stored settings cannot be read: it takes items, keeps all that it has, and gives none."""


class Gate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A limit on leases: none before `until`; from then on `allowance` in total, or any number (None)."""

    name: str
    until: Instant
    allowance: int | None = None
    leased: tuple[ItemId, ...] = ()
    """The items leased under the allowance, oldest first."""

    @property
    def leases_left(self) -> int | None:
        """The number of leases left once it is open; None: any number."""
        return None if self.allowance is None else max(0, self.allowance - len(self.leased))


Gates = tuple[Gate, ...]


def lease_limit(gates: Gates, now: Instant, limit: int) -> int:
    """Return how many of `limit` leases these gates allow now."""
    if shut_gate(gates, now) is not None:
        return 0
    return min([limit, *(gate.leases_left for gate in gates if gate.leases_left is not None)])


def shut_gate(gates: Gates, now: Instant) -> Gate | None:
    """Return the first gate that allows no lease now: it is closed, or its allowance is used up."""
    return next((gate for gate in gates if now < gate.until or gate.leases_left == 0), None)


def counts_leases(gates: Gates) -> bool:
    """Return whether any of the gates counts leases and must be written with each lease."""
    return any(gate.allowance is not None for gate in gates)


def count_leases(gates: Gates, ids: Sequence[ItemId]) -> Gates:
    """Return the gates after these items were leased."""
    return tuple(
        gate if gate.allowance is None else msgspec.structs.replace(gate, leased=(*gate.leased, *ids)) for gate in gates
    )


def opens_at(gates: Gates, now: Instant) -> Instant | None:
    """Return the instant from which leases are allowed; None: only after a change of a gate."""
    if any(gate.leases_left == 0 for gate in gates):
        return None
    return max([now, *(gate.until for gate in gates)])


def gate_named(gates: Gates, name: str) -> Gate | None:
    """Return the gate of that name; None if there is none."""
    return next((gate for gate in gates if gate.name == name), None)


def set_gate(gates: Gates, name: str, gate: Gate | None) -> Gates:
    """Return the gates with the one of that name replaced, or removed for None."""
    others = tuple(each for each in gates if each.name != name)
    return others if gate is None else (*others, gate)


def close_for_retry_after(gates: Gates, until: Instant, leased_at: Instant, now: Instant) -> Gates:
    """Return the gates after a delivery, leased at `leased_at`, was asked to wait until `until`, at most an hour.

    The request is ignored if the gate has opened again since the lease, because it is older than that.
    """
    until = min(until, Instant(now + MAX_RETRY_AFTER))
    present = gate_named(gates, RETRY_AFTER_GATE)
    if until <= now or (present is not None and (until <= present.until or leased_at < present.until <= now)):
        return gates
    return set_gate(gates, RETRY_AFTER_GATE, Gate(RETRY_AFTER_GATE, until))
