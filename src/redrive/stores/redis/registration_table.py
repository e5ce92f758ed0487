"""Registrations: a hash for each kind, and those that will be over by when."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from redrive.clock import Instant
from redrive.store import Registration
from redrive.stores.redis.codec import encode
from redrive.stores.redis.hashes import Hash
from redrive.stores.redis.indexes import NamesByInstant
from redrive.stores.redis.session import Session
from redrive.stores.rules.registration_table import RegistrationTable

_BETWEEN = " "
"""What kinds do not have."""
_read_registration = msgspec.msgpack.Decoder(Registration).decode


class RedisRegistrations(RegistrationTable):
    """A hash for each kind."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._kinds: dict[str, Hash[str, Registration]] = {}
        self._until = NamesByInstant(session, session.keys.of("registeredage"))

    def get(self, kind: str, name: str) -> Registration | None:
        return self._of(kind).get(name)

    def of(self, kind: str) -> Iterable[Registration]:
        """As they are stored."""
        (raw,) = self._session.look(("HVALS", self._key(kind)))
        return map(_read_registration, raw)

    def save(self, registration: Registration) -> None:
        kind, name = registration.kind, registration.name
        self._of(kind)[name] = registration
        if registration.until is None:
            self._until.discard(_member(kind, name))
        else:
            self._until.add(_member(kind, name), (registration.until,))

    def remove(self, kind: str, name: str) -> None:
        del self._of(kind)[name]
        self._until.discard(_member(kind, name))

    def forget(self, now: Instant, limit: int) -> int:
        over = self._until.until(now, limit)
        for member in over:
            kind, _, name = member.partition(_BETWEEN)
            self.remove(kind, name)
        return len(over)

    def _of(self, kind: str) -> Hash[str, Registration]:
        return self._kinds.setdefault(kind, Hash(self._session, self._key(kind), encode, _read_registration))

    def _key(self, kind: str) -> str:
        return self._session.keys.of("registered", kind)


def _member(kind: str, name: str) -> str:
    return f"{kind}{_BETWEEN}{name}"
