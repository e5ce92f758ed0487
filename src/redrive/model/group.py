"""Groups: dead letters with the same fingerprint, which is one root cause."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from redrive.clock import Instant
from redrive.model.classify import ErrorClass
from redrive.model.duration import HOUR
from redrive.model.ids import ItemId
from redrive.model.text import format_counts, format_instant, join_lines

ADVICE = {
    ErrorClass.TRANSIENT: "It will probably succeed later: redrive the group, slowly, once the other side is well.",
    ErrorClass.NETWORK: "Check that the other side answers, then redrive the group, a few items first.",
    ErrorClass.RESOURCE: "Make room first (memory, disk, quota), then redrive the group with a rate.",
    ErrorClass.PERMISSION: "A retry changes nothing: fix the credentials or rights, then redrive.",
    ErrorClass.VALIDATION: "The data is invalid: fix the payload and redrive that, or archive the group.",
    ErrorClass.PERMANENT: "Look at one traceback; once a fix is deployed, redrive a few items, then the rest.",
    ErrorClass.POISON: "It kills its workers or cannot be read: do not redrive before the cause is known.",
}
"""The advice for each class of errors."""


class Group(msgspec.Struct, frozen=True):
    """Dead letters of one cause. All figures are those at the time of reading."""

    fingerprint: str
    title: str
    error_type: str
    error_class: ErrorClass
    count: int
    first_at: Instant
    """The first death since the group was last empty."""
    last_at: Instant
    queues: Mapping[str, int]
    """The number in each queue, the largest first."""
    hours: Mapping[Instant, int]
    """The number of deaths in each hour, by the instant at which the hour starts, oldest first."""
    sample: ItemId
    """The newest of them."""

    def __str__(self) -> str:
        return join_lines(
            f"{self.count:,} × {self.title} ({self.error_class})",
            f"in {format_counts(self.queues)}; first {format_instant(self.first_at)}, last "
            f"{format_instant(self.last_at)}",
            f"fingerprint {self.fingerprint}, newest item {self.sample}",
            self.advice,
        )

    @property
    def advice(self) -> str:
        """The advice for this class of errors."""
        return ADVICE[self.error_class]


def hour_of(at: Instant) -> Instant:
    """Return the instant at which the hour starts."""
    return Instant(at - at % HOUR)
