"""`redrive token create|list|revoke`: the access tokens of a server."""

from __future__ import annotations

from typing import Any

import click

from redrive.auth import token_store
from redrive.auth.principal import ANY, TOKENS_NAMESPACE, Role
from redrive.auth.token_store import AccessToken
from redrive.cli.common_options import StoreCommand, as_json, command_line
from redrive.cli.output import ago, print_json, print_line, print_note, table
from redrive.cli.store_target import open_target
from redrive.errors import NotFound
from redrive.wire.json_views import view_of

_COLUMNS = {"name": "~", "roles": "~", "namespaces": "~", "queues": "~", "created": ">", "by": "~", "expires": ">"}


@click.group()
def token() -> None:
    """Access tokens: which clients may call a server, with which rights.

    They are kept in the store of the server. As soon as there is one, every request needs a token. Create the first one
    on the store itself, before other machines can reach the server.

    \b
    redrive --url sqlite:///jobs.db token create ann --role admin
    redrive --url http://jobs.example:7272 token create billing --role producer --queue invoices --expires 90d
    """


@token.command("create", cls=StoreCommand)
@click.argument("name")
@click.option("--role", "roles", type=click.Choice([role.value for role in Role]), multiple=True, required=True,
              help="Role, which gives rights; can be repeated.")  # fmt: skip
@click.option("--namespace", "namespaces", multiple=True, default=ANY, metavar="PATTERN",
              help="Namespaces that it may access, as in team-*; default: all. Can be repeated.")  # fmt: skip
@click.option("--queue", "queues", multiple=True, default=ANY, metavar="PATTERN",
              help="Queues that it may access, as in orders-*; default: all. Can be repeated.")  # fmt: skip
@click.option("--expires", metavar="DURATION", help="Time until it expires, as in 30d; default: never.")
def create(
    name: str, roles: tuple[str, ...], namespaces: tuple[str, ...], queues: tuple[str, ...], expires: str | None
) -> None:
    """Create a token called NAME, which is unique and appears in the audit. The token is printed only once."""
    with open_target(create=True, namespace=TOKENS_NAMESPACE) as broker:
        core = broker.core
        made = broker.run_flow(
            token_store.create(
                core.clock,
                name,
                roles,
                namespaces=namespaces,
                queues=queues,
                expires=expires,
                created_by=core.actor(None),
            )
        )
    if as_json():
        print_json({"token": made.text, **_form(made.token, core.clock.now())})
        return
    print_line(made.text)  # alone on stdout, so that it can be piped to a secret store
    print_note("It is not shown again. Give it to a client as the variable REDRIVE_TOKEN.")


@token.command("list", cls=StoreCommand)
def list_() -> None:
    """List all tokens without their secrets, including those that have expired."""
    with open_target(namespace=TOKENS_NAMESPACE) as broker:
        found, now = broker.run_flow(token_store.list_all()), broker.core.clock.now()
    if as_json():
        print_json([_form(each, now) for each in found])
    elif not found:
        print_line("There is no token: on a server of this store every client has all rights.")
    else:
        table(_COLUMNS, [_row(each, now) for each in found], least=("created", "by", "namespaces", "queues"))


@token.command("revoke", cls=StoreCommand)
@click.argument("name")
def revoke(name: str) -> None:
    """Revoke the token called NAME. Servers refuse it after one second at the latest."""
    with open_target(namespace=TOKENS_NAMESPACE) as broker:
        if not broker.run_flow(token_store.revoke(name, broker.core.actor(None))):
            raise NotFound(f"there is no token called {name!a:.80}; {command_line('token list')} shows all tokens")
    if as_json():
        print_json({"revoked": name})
    else:
        print_line(f"token {name} is revoked")


def _form(each: AccessToken, now: Any) -> dict[str, Any]:
    view = view_of(each)
    del view["digest"]
    return {**view, "expired": each.is_over(now)}


def _row(each: AccessToken, now: Any) -> tuple[object, ...]:
    expires = "never" if each.expires_at is None else ago(each.expires_at, now)
    return (
        each.name,
        ", ".join(each.roles),
        ", ".join(each.namespaces),
        ", ".join(each.queues),
        ago(each.created_at, now),
        each.created_by,
        f"expired {expires}" if each.is_over(now) else expires,
    )
