"""Rows of the table of routes: what is made of a function, and what holds of every call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from tests.servers.asgi import Client

from redrive.auth.principal import Permission
from redrive.server.application import application
from redrive.server.openapi import encoded
from redrive.server.request import Request
from redrive.server.request_limits import Limits
from redrive.server.route import Route
from redrive.server.routes import derivation
from redrive.server.routes.derivation import number, row
from redrive.server.routes.table import ROUTES

DOCUMENT = json.loads(encoded(ROUTES))
ID = "4f0c91a27b3d000000068f1c2a3b4800"
LIMITS = Limits(batch=2, page=2)
COUNTED = number("counted", "Counted", "How many.")
BOUNDS = {"maxLength", "pattern", "enum", "const"}
UNBOUNDED = {
    *("extra", "metadata", "task", "payload", "new_payload", "patch", "headers", "new_headers", "queues", "namespaces"),
    *("settings", "retry"),
    *("wait", "priority"),
}
"""Values of programs, patterns of tokens, tables, and words that are parsed: the size of the body bounds them."""

WRITTEN = {"queues.list", "queues.stats", "queues.info", "queue.clear", "items.result"}
"""Rows that are functions of the server, beside those of capture and of tokens."""
FORWARDS = [
    route
    for route in ROUTES
    if route.request_type.__module__ == derivation.__name__  # type: ignore[union-attr]
    and route.name not in WRITTEN
    and not route.name.startswith(("capture.", "tokens."))
]
SAID: dict[str, Any] = {
    **{"delay": "5m", "enqueue_at": "2100-01-01T00:00:00Z"},
    **{"actor": "ann", "before": "12", "confirm": 3, "error": "no", "force": True, "held_by": "bob", "id": ID},
    **{"ids": [ID, ID], "keys": ["k"], "kind": "network", "lasting": True, "limit": 2, "name": "jobs", "note": "why"},
    **{"open_for": "5m", "queue": "jobs", "rate": 4.5, "redacted": False, "settings": {"max_attempts": 3}},
    **{"skip_canaries": True, "to": "slow", "unfinished": True},
}
"""Every word of the calls that forward to the broker, with a value that is no default."""
Mood = Annotated[str, msgspec.Meta(max_length=9)]


async def example(
    request: Request,
    queue: str,
    mood: Annotated[Mood | None, msgspec.Meta(description="How it is.")] = None,
    *,
    limit: int = 7,
    actor: str | None = None,
    **settings: Any,
) -> int:
    """Count things: all of them. Slowly.

    Not for the document.
    """
    return len(f"{queue}{mood}{limit}{actor}{settings}")


def made(function: Any = example, **more: Any) -> Route:
    return row("things.count_all", function, Permission.READ, COUNTED, **more)


def test_row_describes_the_call_by_the_docstring_and_the_signature() -> None:
    route = made(example={"limit": 3})
    assert (route.name, route.summary) == ("things.count_all", "Count things")
    assert route.request_type is not None
    assert route.request_type.__name__ == "ThingsCountAllCall"
    assert route.request_type.__doc__ == "Count things: all of them. Slowly."
    assert route.example == {"queue": "emails", "limit": 3}
    fields = {field.name: field for field in msgspec.structs.fields(route.request_type)}
    assert list(fields) == ["queue", "mood", "limit", "actor", "settings"]
    assert [name for name, field in fields.items() if field.required] == ["queue"]
    assert (fields["limit"].default, fields["actor"].default) == (7, None)


@pytest.mark.parametrize(
    "wrong", [{}, {"queue": None}, {"queue": "x" * 129}, {"queue": "x", "mood": "x" * 10}, {"queue": "x", "limit": 0}]
)
def test_row_has_the_bounds_of_its_words(wrong: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, made().request_type)


async def test_row_passes_on_all_that_is_given() -> None:
    given: list[Any] = []

    async def taken(request: Request, queue: str, *, limit: int = 7, actor: str | None = None, **settings: Any) -> int:
        """Count."""
        given.extend([queue, limit, actor, settings])
        return 5

    route = made(taken)
    request = Request(None, None, "default", {}, b"", LIMITS)  # type: ignore[arg-type]  # the function asks for neither
    call = msgspec.convert({"queue": "a", "limit": 2, "actor": "b", "settings": {"c": 1}}, route.request_type)
    assert await route.handler(request, call) == {"counted": 5}
    assert given == ["a", 2, "b", {"c": 1}]


class Asked(Exception):
    """A method of the broker was called."""


class Listener:
    """In place of a broker: raises what a method was called with."""

    def __getattr__(self, name: str) -> Any:
        async def method(**given: Any) -> None:
            raise Asked(given)

        return method


@pytest.mark.parametrize("route", FORWARDS, ids=lambda route: route.name)
async def test_every_field_of_a_call_reaches_the_broker(route: Route) -> None:
    request = Request(Listener(), None, "default", {}, b"", LIMITS)  # type: ignore[arg-type]
    said = {name: SAID[name] for name in route.request_type.__struct_fields__}  # type: ignore[union-attr]
    with pytest.raises(Asked) as asked:
        await route.handler(request, msgspec.convert(said, route.request_type))
    read = {"before": 12, "enqueue_at": datetime(2100, 1, 1, tzinfo=UTC)}
    expected = {**said, **{name: read[name] for name in read if name in said}, **said.get("settings", {})}
    expected.pop("settings", None)
    assert asked.value.args == (expected,)


def test_parameter_without_a_word_is_refused_where_the_row_is_made() -> None:
    async def odd(request: Request, queue: str, colour: str) -> int:
        """Count."""
        return 0

    with pytest.raises(TypeError, match="odd: the vocabulary of calls in JSON has no word 'colour'"):
        made(odd)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    app = application(f"sqlite:///{tmp_path}/jobs.db", maintenance=False, limits=LIMITS)
    yield Client(app)
    await app.close()


def with_field(name: str) -> list[Route]:
    return [route for route in ROUTES if name in route.request_type.__struct_fields__]  # type: ignore[union-attr]


def least(route: Route) -> dict[str, Any]:
    """What a call must say, as the example says it."""
    fields = msgspec.structs.fields(route.request_type)  # type: ignore[arg-type]
    return {field.name: route.example.get(field.name, [ID]) for field in fields if field.required}


@pytest.mark.parametrize(
    "route",
    [r for r in with_field("limit") if r.name != "queue.lease" and r not in with_field("dry_run")],
    ids=lambda r: r.name,
)
async def test_page_is_as_large_as_the_server_allows_at_most(route: Route, client: Client) -> None:
    answer = await client.call(route.name, **least(route), limit=LIMITS.page + 1)
    assert (answer.status, answer.json["details"]) == (413, {"what": "the limit of the page", "limit": LIMITS.page})


@pytest.mark.parametrize(
    "route", [r for r in with_field("ids") if r.name not in ("dead.find", "operations.start")], ids=lambda r: r.name
)
async def test_batch_is_as_large_as_the_server_allows_at_most(route: Route, client: Client) -> None:
    answer = await client.call(route.name, **{**least(route), "ids": [ID] * (LIMITS.batch + 1)})
    assert (answer.status, answer.json["details"]) == (413, {"what": "the number of items", "limit": LIMITS.batch})


def unbounded(schema: Any, path: str) -> Iterator[str]:
    """Texts in a schema that may have any length."""
    if isinstance(schema, list):
        for each in schema:
            yield from unbounded(each, path)
    elif isinstance(schema, dict):
        if "$ref" in schema:
            schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        if schema.get("type") == "string" and not BOUNDS & schema.keys():
            yield path
        for key in ("anyOf", "items"):
            if "enum" not in schema and not str(schema.get("description", "")).startswith(("A duration", "An instant")):
                yield from unbounded(schema.get(key), path)
        for name, field in schema.get("properties", {}).items():
            if name not in UNBOUNDED:
                yield from unbounded(field, f"{path}.{name}")


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_text_of_a_call_is_bounded(route: Route) -> None:
    body = DOCUMENT["paths"][f"/v1/{route.name}"]["post"]["requestBody"]["content"]["application/json"]
    assert list(unbounded(body["schema"], route.name)) == []
