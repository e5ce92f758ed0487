"""The polling status of an external queue, as reported by the processes that list it."""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.model.text import pluralize


class PollInfo(msgspec.Struct, frozen=True):
    """The listings of one external queue, by all processes together."""

    polls: int = 0
    """The number of listings."""
    errors: int = 0
    """The number of these listings that had an error."""
    polled_at: Instant | None = None
    """The instant of the last listing."""
    objects: int = 0
    """The number of objects in the last listing."""
    added: int = 0
    """The number of those objects that became items."""
    error: str | None = None
    """The last error, also if later listings had none."""
    error_at: Instant | None = None
    poller: str | None = None
    """The process that listed it last."""

    @property
    def has_failed(self) -> bool:
        """True if the last listing had an error."""
        return self.error_at is not None and self.error_at == self.polled_at

    def __str__(self) -> str:
        if not self.polls:
            return "never listed yet"
        errors = f", {pluralize(self.errors, 'error')}" if self.errors else ""
        return (
            f"listed {pluralize(self.polls, 'time')}{errors}; {pluralize(self.objects, 'object')}, {self.added:,} new"
        )

    def after(self, at: Instant, objects: int, added: int, error: str | None, poller: str) -> PollInfo:
        """Return the status after one more listing."""
        return PollInfo(
            polls=self.polls + 1,
            errors=self.errors + (error is not None),
            polled_at=at,
            objects=objects,
            added=added,
            error=self.error if error is None else error,
            error_at=self.error_at if error is None else at,
            poller=poller,
        )
