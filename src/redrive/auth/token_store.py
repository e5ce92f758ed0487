"""Access tokens: create, list and revoke. The store keeps each as a registration, with only a digest of its secret.

redrive_3f9a1c02_5b1e…    the id, for the lookup, and the secret
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable
from hashlib import sha256
from typing import TypeVar

import msgspec

from redrive.auth.principal import ANY, Principal, Role
from redrive.broker.flow import Flow, commit_call, run_query
from redrive.broker.flows.canaries import ACTOR as CANARY_ACTOR
from redrive.broker.maintenance import ACTOR as LIFECYCLE_ACTOR
from redrive.broker.validation import check_positive
from redrive.clock import Clock, Instant
from redrive.contract.admin_calls import AuditNote, Register, Registration, Unregister, VersionConflict
from redrive.contract.base import DROP_ACTOR, RETENTION_ACTOR
from redrive.contract.queries import ListRegistrations
from redrive.errors import InvalidInput
from redrive.model.duration import DurationInput
from redrive.model.limits import check_label, check_name

TOKEN_KIND = "token"
"""The kind of the registration of a token."""
CREATED, REVOKED = "create_token", "revoke_token"
"""Verbs in the audit."""
ID_BYTES = 4
SECRET_BYTES = 24
"""192 bits: too many to guess, so that a plain digest is safe to store."""
RESERVED = frozenset({RETENTION_ACTOR, DROP_ACTOR, LIFECYCLE_ACTOR, CANARY_ACTOR})
"""Actors in the audit for automatic changes."""
ANONYMOUS = "anonymous"
"""The actor in the audit for a call that names none, on a server without tokens."""
MAX_PATTERNS = 100
MAX_PATTERN_CHARS = 128

_SHAPE = re.compile(rf"redrive_([0-9a-f]{{{2 * ID_BYTES}}})_([0-9a-f]{{{2 * SECRET_BYTES}}})")
_PATTERN = re.compile(r"[A-Za-z0-9._:*?\[\]!-]+")
_encode = msgspec.json.Encoder().encode
_TokenCall = TypeVar("_TokenCall", Register, Unregister)


class AccessToken(msgspec.Struct, frozen=True, omit_defaults=True):
    """A token as the store keeps it. It contains nothing that grants access."""

    id: str
    name: str
    """Unique. The audit records it."""
    digest: str
    """SHA-256 of the secret, in hexadecimal digits."""
    roles: tuple[Role, ...]
    namespaces: tuple[str, ...] = ANY
    queues: tuple[str, ...] = ANY
    created_at: Instant = Instant(0)
    created_by: str = ""
    expires_at: Instant | None = None

    @property
    def principal(self) -> Principal:
        """The principal of a caller with this token."""
        return Principal(self.name, frozenset(self.roles), self.namespaces, self.queues)

    def is_over(self, now: Instant) -> bool:
        """Return whether it has expired. It stays stored, so that a server whose last token has expired admits none."""
        return self.expires_at is not None and self.expires_at <= now


class NewToken(msgspec.Struct, frozen=True):
    """A token just created, with its text, which is shown only once."""

    text: str
    token: AccessToken

    def __repr__(self) -> str:
        return f"NewToken({self.token.name!r})"  # without the secret, in case it is printed by mistake


_decode = msgspec.json.Decoder(AccessToken).decode
_NO_DIGEST = "0" * 64


def create(
    clock: Clock,
    name: str,
    roles: Iterable[str],
    *,
    namespaces: Iterable[str] = ANY,
    queues: Iterable[str] = ANY,
    expires: DurationInput | None = None,
    created_by: str,
) -> Flow[NewToken]:
    """Create a token. Only the result contains its text. Runs in the namespace of tokens."""
    if name in RESERVED:
        raise InvalidInput(f"'{name}' is reserved for Redrive itself; choose another name")
    now = clock.now()
    secret = secrets.token_hex(SECRET_BYTES)
    token = AccessToken(
        id=secrets.token_hex(ID_BYTES),
        name=check_name("token", name),
        digest=digest_of(secret),
        roles=_roles(roles),
        namespaces=_patterns("namespace", namespaces),
        queues=_patterns("queue", queues),
        created_at=now,
        created_by=check_label("created_by", created_by),
        expires_at=None if expires is None else Instant(now + check_positive("expires", expires)),
    )
    call = Register(TOKEN_KIND, token.name, _encode(token), version=0)
    written = yield from commit_call(with_audit_note(call, token.created_by))
    if isinstance(written, VersionConflict):
        raise InvalidInput(f"there is a token called '{name}'; revoke it first, or choose another name")
    return NewToken(f"redrive_{token.id}_{secret}", token)


def list_all() -> Flow[tuple[AccessToken, ...]]:
    """Return all tokens by name, including expired ones."""
    found: tuple[Registration, ...] = yield from run_query(ListRegistrations(TOKEN_KIND))
    return read(found)


def revoke(name: str, revoked_by: str) -> Flow[bool]:
    """Revoke a token, effective within one second. Returns whether a token of that name existed."""
    call = Unregister(TOKEN_KIND, check_label("token", name))
    removed: bool = yield from commit_call(with_audit_note(call, check_label("revoked_by", revoked_by)))
    return removed


def with_audit_note(call: _TokenCall, actor: str) -> _TokenCall:
    """Return the call that creates or revokes a token with its audit note: the actor, the token, and its roles."""
    if isinstance(call, Unregister):
        return msgspec.structs.replace(call, audit=AuditNote(actor, REVOKED, call.name))
    roles = ", ".join(_token(call.name, call.value).roles) or "no role"
    return msgspec.structs.replace(call, audit=AuditNote(actor, CREATED, f"{call.name}: {roles}"))


def read(registrations: Iterable[Registration]) -> tuple[AccessToken, ...]:
    """Return the registered tokens. One that cannot be decoded stays in the list, but grants no access."""
    return tuple(_token(each.name, each.value) for each in registrations)


def parse(text: str) -> tuple[str, str] | None:
    """Return the id and the secret of a token; None if the text is not a token."""
    match = _SHAPE.fullmatch(text)
    return None if match is None else (match[1], match[2])


def digest_of(secret: str) -> str:
    """Return the digest of a secret that the store keeps."""
    return sha256(secret.encode()).hexdigest()


def verify_secret(token: AccessToken | None, secret: str) -> bool:
    """Return whether this is the secret of the token. Takes the same time if it is not, or if there is no token."""
    kept = _NO_DIGEST if token is None else token.digest
    return hmac.compare_digest(digest_of(secret), kept) and token is not None


def _token(name: str, value: bytes) -> AccessToken:
    try:
        token = _decode(value)
    except ValueError:  # also for texts that are not UTF-8
        return AccessToken("", name, _NO_DIGEST, ())
    return msgspec.structs.replace(token, name=name)


def _roles(given: Iterable[str]) -> tuple[Role, ...]:
    wanted = (given,) if isinstance(given, str) else tuple(given)
    if not wanted or not set(wanted) <= set(Role):
        raise InvalidInput(f"a token has one role or several of {', '.join(Role)}, not {', '.join(wanted) or 'none'}")
    return tuple(role for role in Role if role in wanted)


def _patterns(what: str, given: Iterable[str]) -> tuple[str, ...]:
    patterns = (given,) if isinstance(given, str) else tuple(dict.fromkeys(given))
    if not 1 <= len(patterns) <= MAX_PATTERNS:
        raise InvalidInput(f"a token is for 1 to {MAX_PATTERNS} patterns of {what}s, not {len(patterns)}; * is for all")
    for pattern in patterns:
        if len(pattern) > MAX_PATTERN_CHARS or _PATTERN.fullmatch(pattern) is None:
            raise InvalidInput(f"{pattern!a:.60} is no pattern of {what}s; write it as in team-* or orders")
    return ANY if "*" in patterns else patterns
