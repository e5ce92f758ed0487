"""Principals, their roles, and the permissions of each role. Pure."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import msgspec

from redrive.model.limits import is_remote

TOKENS_NAMESPACE = "redrive-tokens"
"""The namespace of tokens. Write access to it grants access to everything, so only a principal that may manage tokens
of every namespace and every queue enters it."""


class Permission(StrEnum):
    """A right that a call needs. Each route, and each call of a remote client, names one."""

    PUT = "put"
    CAPTURE = "capture"
    """Capture tasks that failed outside a queue, with their errors, and read the counts of the queue."""
    CONSUME = "consume"
    """Lease, settle and extend items, and register as a worker."""
    READ_RESULTS = "read_results"
    """Read the outcome of an item whose id is known: its result, or its cause of death."""
    READ = "read"
    """Read queues and items, except payloads."""
    READ_PAYLOADS = "read_payloads"
    """Read payloads, headers and results without a lease."""
    OPERATE = "operate"
    """Retry, redrive, archive, bury, pause: the tasks of an operator on call. None of them loses an item."""
    MANAGE = "manage"
    """Create, update and delete queues, purge, drop, import."""
    MANAGE_TOKENS = "manage_tokens"
    """Create and revoke tokens."""


class Role(StrEnum):
    """The role of a token: a set of rights."""

    PRODUCER = "producer"
    REQUESTER = "requester"
    CAPTURER = "capturer"
    CONSUMER = "consumer"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


PERMISSIONS_BY_ROLE: dict[Role, frozenset[Permission]] = {
    Role.PRODUCER: frozenset({Permission.PUT}),
    Role.REQUESTER: frozenset({Permission.PUT, Permission.READ_RESULTS}),
    Role.CAPTURER: frozenset({Permission.CAPTURE}),
    Role.CONSUMER: frozenset({Permission.CONSUME, Permission.PUT, Permission.CAPTURE}),
    Role.VIEWER: frozenset({Permission.READ}),
    Role.OPERATOR: frozenset({Permission.READ_RESULTS, Permission.READ, Permission.READ_PAYLOADS, Permission.OPERATE}),
    Role.ADMIN: frozenset(Permission),
}
"""The rights of each role. A consumer may put and capture: its work can create items, and fail outside a queue. A
producer cannot read outcomes: a put with the idempotency key of another caller's item returns the id of that item,
and with it its result would be readable."""

ANY = ("*",)


class Principal(msgspec.Struct, frozen=True):
    """A caller: its name for the audit, its roles, and the namespaces and queues in which they apply."""

    name: str | None
    """None for an anonymous caller, on a server without tokens. The audit then records the actor named by the call."""
    roles: frozenset[Role]
    namespaces: tuple[str, ...] = ANY
    """Patterns, as in `team-*`."""
    queues: tuple[str, ...] = ANY

    @property
    def in_all_queues(self) -> bool:
        """True if the rights apply in every queue."""
        return self.queues == ANY

    @property
    def rights(self) -> frozenset[Permission]:
        """The rights of the roles, regardless of where they apply."""
        return _rights_of(self.roles)

    def may_somewhere(self, right: Permission, namespace: str) -> bool:
        """Return whether the principal has the right in some queue of the namespace, even if it has no queues yet."""
        return right in self.rights and self.may_enter(namespace)

    def may(self, right: Permission, namespace: str, queue: str | None = None) -> bool:
        """Return whether the principal has the right in a queue; without a queue, in every queue of the namespace."""
        return right in self.rights and self.is_for(namespace, queue)

    def is_for(self, namespace: str, queue: str | None) -> bool:
        """Return whether the rights apply in a queue; without a queue, in every queue of the namespace.

        No pattern matches a queue of another store (`name@store`).
        """
        if not self.may_enter(namespace):
            return False
        if self.in_all_queues:
            return True
        return queue is not None and not is_remote(queue) and _is_meant(queue, self.queues)

    def worker(self, given: str | None) -> str | None:
        """Return the worker's name, prefixed with the token's name, so that no caller can impersonate another one."""
        if given is None or self.name is None or given.startswith(f"{self.name}/"):
            return given
        return f"{self.name}/{given}"

    def may_enter(self, namespace: str) -> bool:
        """Return whether the principal may use that namespace. No pattern matches the namespace of tokens."""
        if namespace == TOKENS_NAMESPACE:
            return Permission.MANAGE_TOKENS in self.rights and self.namespaces == ANY and self.in_all_queues
        return self.namespaces == ANY or any(fnmatchcase(namespace, pattern) for pattern in self.namespaces)


@lru_cache(maxsize=4096)
def _is_meant(queue: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(queue, pattern) for pattern in patterns)


@cache
def _rights_of(roles: frozenset[Role]) -> frozenset[Permission]:
    return frozenset().union(*(PERMISSIONS_BY_ROLE[role] for role in roles))


UNAUTHENTICATED_ADMIN = Principal(None, frozenset({Role.ADMIN}))
"""The principal of every caller of a server without tokens."""
