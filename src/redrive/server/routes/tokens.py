"""`tokens.create`, `tokens.list` and `tokens.revoke`: for whoever may let others in."""

from __future__ import annotations

from typing import Annotated

import msgspec

from redrive.auth import token_store
from redrive.auth.principal import ANY, TOKENS_NAMESPACE, Permission, Role
from redrive.auth.token_store import ANONYMOUS, MAX_PATTERNS, AccessToken
from redrive.broker.async_broker import AsyncBroker
from redrive.errors import NotFound
from redrive.model.limits import MAX_NAME_CHARS
from redrive.model.text import to_rfc3339
from redrive.server.field_types import DurationInput, instant_text_or_none
from redrive.server.request import Request
from redrive.server.route import Route
from redrive.wire.json_views import InstantText

_Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS, description="Of the token; it stands in the audit.")]
_Patterns = Annotated[
    tuple[str, ...],
    msgspec.Meta(min_length=1, max_length=MAX_PATTERNS, description="Names, or patterns such as `team-*`."),
]


class CreateTokenCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Make a token."""

    name: _Name
    roles: Annotated[list[Role], msgspec.Meta(min_length=1)]
    namespaces: _Patterns = ANY
    queues: _Patterns = ANY
    expires_in: Annotated[DurationInput | None, msgspec.Meta(description="From now. Not given: never.")] = None


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
    """A token that was made. Its text is shown this once."""

    token: Annotated[str, msgspec.Meta(description="For the header Authorization: Bearer …")]


class ListTokensCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All tokens."""


class TokenList(msgspec.Struct, frozen=True):
    """All tokens, by name."""

    tokens: list[TokenForm]


class RevokeTokenCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token lets nobody in any more."""

    name: _Name


class RevokedToken(msgspec.Struct, frozen=True):
    """It is refused from now on; by other servers on the same store, a second from now at the latest."""

    name: str


async def create(request: Request, call: CreateTokenCall) -> CreatedToken:
    """Make a token."""
    broker = request.broker
    made = await broker.run_flow(
        token_store.create(
            broker.core.clock,
            call.name,
            call.roles,
            namespaces=call.namespaces,
            queues=call.queues,
            expires=call.expires_in,
            created_by=request.principal.name or ANONYMOUS,
        )
    )
    return CreatedToken(token=made.text, **msgspec.structs.asdict(_form(broker, made.token)))


async def list_all(request: Request, call: ListTokensCall) -> TokenList:
    """All tokens."""
    return TokenList([_form(request.broker, token) for token in await request.broker.run_flow(token_store.list_all())])


async def revoke(request: Request, call: RevokeTokenCall) -> RevokedToken:
    """Let nobody in with it any more."""
    if not await request.broker.run_flow(token_store.revoke(call.name, request.principal.name or ANONYMOUS)):
        raise NotFound(f"there is no token called {call.name!a:.80}; tokens.list has those there are")
    return RevokedToken(call.name)


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


ROUTES = (
    Route(
        name="tokens.create",
        summary="Make a token",
        request_type=CreateTokenCall,
        response_type=CreatedToken,
        permission=Permission.MANAGE_TOKENS,
        namespace=TOKENS_NAMESPACE,
        handler=create,
        example={"name": "billing", "roles": ["producer"], "queues": ["invoices"], "expires_in": "90d"},
    ),
    Route(
        name="tokens.list",
        summary="All tokens, without their secrets",
        request_type=ListTokensCall,
        response_type=TokenList,
        permission=Permission.MANAGE_TOKENS,
        namespace=TOKENS_NAMESPACE,
        handler=list_all,
    ),
    Route(
        name="tokens.revoke",
        summary="Refuse a token from now on",
        request_type=RevokeTokenCall,
        response_type=RevokedToken,
        permission=Permission.MANAGE_TOKENS,
        namespace=TOKENS_NAMESPACE,
        handler=revoke,
        example={"name": "billing"},
    ),
)
