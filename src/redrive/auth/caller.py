"""A caller in a namespace: the data by which the guard authorizes its calls, and the leases granted to it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

from redrive.auth.principal import Permission, Principal, Role
from redrive.broker.core import Core
from redrive.broker.redaction import Redaction
from redrive.errors import Forbidden
from redrive.model.ids import Token
from redrive.model.item import Lease

MAX_KNOWN_LEASES = 20_000
"""Leases whose queues are known without a query. A lease token belongs to one queue as long as it is valid."""


class KnownLeases:
    """The queues of the leases granted most recently, by namespace and token."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[str, Token], str] = OrderedDict()

    def add(self, namespace: str, leases: Iterable[Lease]) -> None:
        """Record granted leases; drop the oldest ones beyond `MAX_KNOWN_LEASES`."""
        for lease in leases:
            self._queues[namespace, lease.token] = lease.queue
        while len(self._queues) > MAX_KNOWN_LEASES:
            self._queues.popitem(last=False)

    def queue_of(self, namespace: str, token: Token) -> str | None:
        """Return the queue of a lease; None if it is not recorded here."""
        return self._queues.get((namespace, token))


class Caller(msgspec.Struct, frozen=True, gc=False):
    """A principal in a namespace of a store: the subject of every check in `redrive.auth`."""

    principal: Principal
    namespace: str
    core: Core
    leases: KnownLeases
    redaction: Redaction | None = None
    """The redaction that hides secrets from the caller, once the rules of the queues have been read."""

    @property
    def may_do_everything(self) -> bool:
        """True if no call is refused and nothing is hidden. The audit records the caller's name all the same."""
        principal = self.principal
        return Role.ADMIN in principal.roles and principal.in_all_queues and principal.may_enter(self.namespace)

    @property
    def sees_all_payloads(self) -> bool:
        """True if no content of items is hidden."""
        return self.principal.may(Permission.READ_PAYLOADS, self.namespace)

    def may(self, rights: Iterable[Permission], queue: str | None) -> bool:
        """Return whether the caller has one of these rights in a queue, or in every queue if it is None."""
        return not self.principal.rights.isdisjoint(rights) and self.principal.is_for(self.namespace, queue)

    def may_everywhere(self, rights: Iterable[Permission]) -> bool:
        """Return whether the caller has one of these rights in every queue of the namespace."""
        return self.may(rights, None)

    def may_somewhere(self, rights: Iterable[Permission]) -> bool:
        """Return whether the caller has one of these rights in some queue of the namespace."""
        return not self.principal.rights.isdisjoint(rights) and self.principal.may_enter(self.namespace)

    def check_somewhere(self, rights: Sequence[Permission]) -> None:
        """Raise unless the caller has one of these rights in some queue of the namespace."""
        if not self.may_somewhere(rights):
            raise Forbidden(rights[0], self.namespace, None)

    def remember(self, leases: Iterable[Lease]) -> None:
        """Record leases granted to the caller, so that settling them needs no query. A caller with access to all queues
        never needs one."""
        if not self.principal.in_all_queues:
            self.leases.add(self.namespace, leases)
