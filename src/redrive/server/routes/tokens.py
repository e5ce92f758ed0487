"""`tokens.create`, `tokens.list` and `tokens.revoke`, for callers that may manage tokens."""

from __future__ import annotations

from typing import Annotated

import msgspec

from redrive.auth import token_store
from redrive.auth.principal import ANY, Role
from redrive.auth.token_store import ANONYMOUS, MAX_PATTERNS, AccessToken
from redrive.broker.async_broker import AsyncBroker
from redrive.errors import NotFound
from redrive.model.limits import MAX_NAME_CHARS
from redrive.model.text import to_rfc3339
from redrive.server.field_types import DurationInput, instant_text_or_none
from redrive.server.request import Request
from redrive.wire.json_views import InstantText

TokenName = Annotated[
    str, msgspec.Meta(max_length=MAX_NAME_CHARS, description="The name of the token, recorded in the audit.")
]
Patterns = Annotated[
    tuple[str, ...],
    msgspec.Meta(min_length=1, max_length=MAX_PATTERNS, description="Names, or patterns such as `team-*`."),
]


class TokenForm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token, without the secret."""

    name: str
    id: str
    roles: list[Role]
    namespaces: list[str]
    queues: list[str]
    created_at: InstantText
    created_by: str
    expires_at: InstantText | None = None
    expired: bool = False


class CreatedToken(TokenForm, frozen=True, kw_only=True):
    """A new token. Its text is shown only once."""

    token: Annotated[str, msgspec.Meta(description="For the header Authorization: Bearer …")]


class TokenList(msgspec.Struct, frozen=True):
    """All tokens, by name."""

    tokens: list[TokenForm]


class RevokedToken(msgspec.Struct, frozen=True):
    """A revoked token. This server refuses it from now on; other servers on the same store, within one second."""

    name: str


async def create_token(
    request: Request,
    name: TokenName,
    roles: Annotated[list[Role], msgspec.Meta(min_length=1)],
    namespaces: Patterns = ANY,
    queues: Patterns = ANY,
    expires_in: Annotated[DurationInput | None, msgspec.Meta(description="From now. Not given: never.")] = None,
) -> CreatedToken:
    """Create a token."""
    broker = request.broker
    made = await broker.run_flow(
        token_store.create(
            broker.core.clock,
            name,
            roles,
            namespaces=namespaces,
            queues=queues,
            expires=expires_in,
            created_by=request.principal.name or ANONYMOUS,
        )
    )
    return CreatedToken(token=made.text, **msgspec.structs.asdict(_form(broker, made.token)))


async def list_tokens(request: Request) -> TokenList:
    """List all tokens, without their secrets."""
    return TokenList([_form(request.broker, token) for token in await request.broker.run_flow(token_store.list_all())])


async def revoke_token(request: Request, name: TokenName) -> RevokedToken:
    """Refuse a token from now on."""
    if not await request.broker.run_flow(token_store.revoke(name, request.principal.name or ANONYMOUS)):
        raise NotFound(f"there is no token called {name!a:.80}; tokens.list has those there are")
    return RevokedToken(name)


def _form(broker: AsyncBroker, token: AccessToken) -> TokenForm:
    return TokenForm(
        name=token.name,
        id=token.id,
        roles=list(token.roles),
        namespaces=list(token.namespaces),
        queues=list(token.queues),
        created_at=to_rfc3339(token.created_at),
        created_by=token.created_by,
        expires_at=instant_text_or_none(token.expires_at),
        expired=token.is_over(broker.core.clock.now()),
    )
