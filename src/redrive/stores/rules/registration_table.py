"""What is registered, whether its time is over or not."""

from __future__ import annotations

from collections.abc import Iterable

from redrive.clock import Instant
from redrive.store import Registration


class RegistrationTable:
    """Registrations by kind and name."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Registration] = {}

    def get(self, kind: str, name: str) -> Registration | None:
        """What is written under that name."""
        return self._known.get((kind, name))

    def of(self, kind: str) -> Iterable[Registration]:
        """All of a kind, in no order."""
        return [each for each in self._known.values() if each.kind == kind]

    def save(self, registration: Registration) -> None:
        """Write it down, in place of what was there."""
        self._known[registration.kind, registration.name] = registration

    def remove(self, kind: str, name: str) -> None:
        """One that is there."""
        del self._known[kind, name]

    def forget(self, now: Instant, limit: int) -> int:
        """Remove at most so many whose time is over. Returns how many."""
        over = [key for key, each in self._known.items() if not each.is_alive(now)][:limit]
        for key in over:
            del self._known[key]
        return len(over)
