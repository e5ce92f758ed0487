"""A caller in a namespace: what the guard has to know to let its calls in, and which leases it was given."""

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
"""Leases whose queues are known without asking the store. A token is good in one queue for as long as it is good."""


class KnownLeases:
    """Those given out last, by namespace and token."""

    def __init__(self) -> None:
        self._queues: OrderedDict[tuple[str, Token], str] = OrderedDict()

    def add(self, namespace: str, leases: Iterable[Lease]) -> None:
        """These were given out."""
        for lease in leases:
            self._queues[namespace, lease.token] = lease.queue
        while len(self._queues) > MAX_KNOWN_LEASES:
            self._queues.popitem(last=False)

    def queue_of(self, namespace: str, token: Token) -> str | None:
        """The queue of a lease; None where that is not known here."""
        return self._queues.get((namespace, token))


class Caller(msgspec.Struct, frozen=True, gc=False):
    """A principal in a namespace of a store. All that `redrive.auth` does is done for one."""

    principal: Principal
    namespace: str
    core: Core
    leases: KnownLeases
    redaction: Redaction | None = None
    """By which secrets are hidden from the caller, where the rules of queues were read."""

    @property
    def may_do_everything(self) -> bool:
        """Whether no call is refused, and nothing is hidden. Its name stands in the audit all the same."""
        principal = self.principal
        return Role.ADMIN in principal.roles and principal.in_all_queues and principal.may_enter(self.namespace)

    @property
    def sees_all_payloads(self) -> bool:
        """Whether nothing that is in items is hidden."""
        return self.principal.may(Permission.READ_PAYLOADS, self.namespace)

    def may(self, rights: Iterable[Permission], queue: str | None) -> bool:
        """Whether the caller has one of these rights in a queue; None stands for every one."""
        return not self.principal.rights.isdisjoint(rights) and self.principal.is_for(self.namespace, queue)

    def may_everywhere(self, rights: Iterable[Permission]) -> bool:
        """Whether no queue need be known to say yes."""
        return self.may(rights, None)

    def may_somewhere(self, rights: Iterable[Permission]) -> bool:
        """Whether the caller has one of these rights in some queue of the namespace."""
        return not self.principal.rights.isdisjoint(rights) and self.principal.may_enter(self.namespace)

    def check_somewhere(self, rights: Sequence[Permission]) -> None:
        """Raise unless the caller has one of these rights in some queue of the namespace."""
        if not self.may_somewhere(rights):
            raise Forbidden(rights[0], self.namespace, None)

    def remember(self, leases: Iterable[Lease]) -> None:
        """These are given out to the caller: settling them takes no query. For who is let into every queue
        nothing ever is."""
        if not self.principal.in_all_queues:
            self.leases.add(self.namespace, leases)
