"""Who calls, and what they may do. Pure."""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cache, lru_cache

import msgspec

from redrive.model.limits import is_remote

TOKENS_NAMESPACE = "redrive-tokens"
"""Where tokens are kept. Whoever can write there can do everything, so nobody enters it but who may let others into
every namespace and every queue."""


class Permission(StrEnum):
    """What a call needs. Each route, and each call of a remote client, names one."""

    PUT = "put"
    CAPTURE = "capture"
    """Put what failed elsewhere, with its error; see how full the queue is."""
    CONSUME = "consume"
    """Lease, settle, extend, and say that one works."""
    READ_RESULTS = "read_results"
    """Learn what became of an item whose id one knows: its result, or what it died of."""
    READ = "read"
    """Everything that can be seen of queues and items, but payloads."""
    READ_PAYLOADS = "read_payloads"
    """See payloads, headers and results without a lease."""
    OPERATE = "operate"
    """Retry, redrive, archive, bury, pause: what somebody on call does. Nothing of it loses an item."""
    MANAGE = "manage"
    """Create, update and delete queues, purge, drop, import."""
    MANAGE_TOKENS = "manage_tokens"
    """Create and revoke tokens."""


class Role(StrEnum):
    """What a token was made for."""

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
"""What each role may do. A consumer may put and capture: work may make more work, and fail outside a queue. A producer
is not told how its items end: whoever names the idempotency key of another's item learns the id of that, and would
learn its result."""

ANY = ("*",)


class Principal(msgspec.Struct, frozen=True):
    """Who calls: a name for the audit, roles, and where they hold."""

    name: str | None
    """None: nobody in particular, on a server that asks for no token. Then a call's own actor stands."""
    roles: frozenset[Role]
    namespaces: tuple[str, ...] = ANY
    """Patterns, as in `team-*`."""
    queues: tuple[str, ...] = ANY

    @property
    def in_all_queues(self) -> bool:
        """Whether what they may do, they may do in every queue."""
        return self.queues == ANY

    @property
    def rights(self) -> frozenset[Permission]:
        """What the roles give, wherever that is."""
        return _rights_of(self.roles)

    def may_somewhere(self, right: Permission, namespace: str) -> bool:
        """Whether they may do that in some queue of the namespace, or would if there were one."""
        return right in self.rights and self.may_enter(namespace)

    def may(self, right: Permission, namespace: str, queue: str | None = None) -> bool:
        """Whether they may do that there. Without a queue: in every queue of the namespace."""
        return right in self.rights and self.is_for(namespace, queue)

    def is_for(self, namespace: str, queue: str | None) -> bool:
        """Whether what they may do, they may do there. Without a queue: in every queue of the namespace.

        A queue of another store (`name@store`) is none that a pattern means.
        """
        if not self.may_enter(namespace):
            return False
        if self.in_all_queues:
            return True
        return queue is not None and not is_remote(queue) and _is_meant(queue, self.queues)

    def worker(self, given: str | None) -> str | None:
        """Under what a worker leases: its name behind that of the token, so that nobody can pass for another."""
        if given is None or self.name is None or given.startswith(f"{self.name}/"):
            return given
        return f"{self.name}/{given}"

    def may_enter(self, namespace: str) -> bool:
        """Whether anything of theirs is in that namespace. No pattern means the one that tokens are kept in."""
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
"""Whoever calls a server that asks for no token."""
