"""How an external queue was listed, as the processes that list it say."""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.model.text import pluralize


class PollInfo(msgspec.Struct, frozen=True):
    """The listings of one external queue, by all processes together."""

    polls: int = 0
    """How often it was listed."""
    errors: int = 0
    """How many of these listings had an error."""
    polled_at: Instant | None = None
    """When it was listed last."""
    objects: int = 0
    """How many objects the last listing had."""
    added: int = 0
    """How many of them became items."""
    error: str | None = None
    """The last error. It stays when later listings have none."""
    error_at: Instant | None = None
    poller: str | None = None
    """The process that listed it last."""

    @property
    def has_failed(self) -> bool:
        """Whether the last listing had an error."""
        return self.error_at is not None and self.error_at == self.polled_at

    def __str__(self) -> str:
        if not self.polls:
            return "never listed yet"
        errors = f", {pluralize(self.errors, 'error')}" if self.errors else ""
        return (
            f"listed {pluralize(self.polls, 'time')}{errors}; {pluralize(self.objects, 'object')}, {self.added:,} new"
        )

    def after(self, at: Instant, objects: int, added: int, error: str | None, poller: str) -> PollInfo:
        """The same with one more listing."""
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
