"""Circuit breakers: after too many failures of one kind, what would fail like that waits, until a probe succeeds.

The rules of a queue's breakers, the state of those that are not closed, and how a state follows another. Pure: what is
counted, read and written is the business of `redrive.broker.flows.breakers`.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from redrive.clock import Instant
from redrive.model.classify import ErrorClass
from redrive.model.duration import MINUTE, SECOND, Duration
from redrive.model.failure import Failure
from redrive.model.ids import ItemId

QUEUE = "queue"
"""The kind of a breaker that all failures of its queue count for."""
FINGERPRINT = "fingerprint"
"""The key of the rule for each fingerprint; the kind of such a breaker is `fingerprint:` and its digits."""
MAX_FINGERPRINT_BREAKERS = 100
"""Of one queue, not closed."""
LONGEST_OPEN_FOR = 10 * MINUTE
"""Up to here `open_for` is doubled while probes fail."""
MAX_PROBES = 100


class BreakerRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """When a breaker opens, and how it closes. It opens by `failures`, by `share`, or by either if both are given."""

    failures: int | None = None
    """Failures within the window; 20 unless a share is given."""
    window: Duration = MINUTE
    share: float | None = None
    """Failures of this kind among all deliveries that ended within the window, if those are `minimum` or more."""
    minimum: int = 20
    open_for: Duration = 30 * SECOND
    """From the opening to the first probe; doubled up to 10 minutes each time that a probe fails."""
    probes: int = 1
    """Items that are tried before the rest follows."""


class BreakerState(StrEnum):
    """What a breaker lets through. A breaker that is closed has no state on record."""

    OPEN = "open"
    """Nothing."""
    HALF_OPEN = "half_open"
    """Its probes."""
    CLOSING = "closing"
    """Everything: what it held is being released."""


class Breaker(msgspec.Struct, frozen=True, omit_defaults=True):
    """A breaker that is not closed."""

    kind: str
    """`queue`, an error class, or `fingerprint:` and a fingerprint."""
    opened_at: Instant
    until: Instant
    """When its next probes are let through."""
    reason: str
    open_for: Duration
    probing_from: Instant
    """When its first probe was due."""
    opened_by: str | None = None
    """Who opened it, if a person did."""
    probes: tuple[ItemId, ...] = ()
    """Items that were released as probes, most recently."""
    probing_since: Instant | None = None
    """When those were chosen."""
    is_swept: bool = False
    """All items that had failed like that before it opened are held."""
    is_closing: bool = False

    def state(self, now: Instant) -> BreakerState:
        """Its state at an instant."""
        if self.is_closing:
            return BreakerState.CLOSING
        return BreakerState.OPEN if now < self.until else BreakerState.HALF_OPEN

    def holder(self, queue: str) -> str:
        """The name under which it holds items of its queue."""
        return f"breaker:{queue}:{self.kind}"

    def matches(self, failure: Failure | None) -> bool:
        """Whether a failure is of its kind."""
        return self.kind == QUEUE or (failure is not None and self.kind in failure_kinds(failure))


def failure_kinds(failure: Failure) -> tuple[str, str]:
    """The kinds of breakers, apart from that of the queue, that a failure counts for."""
    return failure.error_class.value, f"{FINGERPRINT}:{failure.fingerprint}"


def rule_key(kind: str) -> str:
    """The key of the rule for a kind: `queue`, `fingerprint`, or an error class."""
    return FINGERPRINT if kind.startswith(f"{FINGERPRINT}:") else kind


RULE_KEYS = (QUEUE, FINGERPRINT, *(each.value for each in ErrorClass))
"""What a queue can have breakers for."""
