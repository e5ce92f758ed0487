"""What a handler returns to say how its delivery ends. Anything else that it returns is its result.

Beside these, `Dead(note=…)` makes the item dead, and `Again.after(…)` is a `Retry` without words. Raising means that it
failed.
"""

from __future__ import annotations

import msgspec

from redrive.model.duration import DurationInput, parse_duration


class Retry(msgspec.Struct, frozen=True):
    """A failure that is tried again `after` that time, whatever the retry setting says, while attempts are left."""

    after: DurationInput
    reason: str | None = None
    """What the history says of it."""

    def __post_init__(self) -> None:
        parse_duration(self.after, "after")


class Release(msgspec.Struct, frozen=True):
    """Not now, and nobody's fault: the item goes to the tail after `delay`. The attempt counts, and no failure does."""

    delay: DurationInput = 0
    reason: str | None = None
    """What the history says of it."""

    def __post_init__(self) -> None:
        parse_duration(self.delay, "delay")
