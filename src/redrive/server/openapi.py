"""The OpenAPI document, generated from the table of routes. `python -m redrive.server.openapi` prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import msgspec

from redrive import __version__
from redrive.model.limits import MAX_NAME_CHARS
from redrive.server.field_types import SCHEMA_REFERENCE
from redrive.server.route import Route
from redrive.wire.error_codec import ErrorBody

_ERRORS = {
    400: "The call itself is wrong. Nothing was changed.",
    401: "There is no token, or one that is unknown, expired or revoked.",
    403: "The token is not for this; or the request comes from another site.",
    404: "What the call names does not exist.",
    408: "The request took too long to arrive.",
    409: "Conflict with the current state. Of several items, `results` has the outcome of each.",
    413: "More than the server, or the queue, accepts in one request.",
    415: "The body is not JSON.",
    429: "The queue is full, or the server is overloaded: retry after `Retry-After` seconds.",
    500: "An internal error of the server. The id in `details` is in its log.",
    503: "The store cannot serve the call, or the server is about to stop.",
}
_TAGS = {
    "queues": "Queues and their settings.",
    "queue": "What producers and workers do.",
    "items": "Single items, as they are kept.",
    "dead": "What died, why, and how it comes back.",
    "operations": "Changes of many items.",
    "breakers": "Circuit breakers: what waits until a dependency is back.",
    "capture": "Tasks that failed outside a queue.",
    "feed": "What happens.",
    "audit": "Who changed what.",
    "workers": "Who works.",
    "moves": "Items that are moving to other stores.",
    "tokens": "Who may call.",
    "server": "How the server is doing.",
}


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of these routes. It omits those that take no JSON."""
    described = [route for route in routes if route.request_type is not None]
    kinds = [kind for route in described for kind in (route.request_type, route.response_type)]
    schemas, components = msgspec.json.schema_components([*kinds, ErrorBody], ref_template=SCHEMA_REFERENCE)
    for schema in components.values():
        if "description" in schema:
            schema["description"] = _one_line(schema["description"])
    _drop_defaults(components)
    refs = iter(schemas)
    paths = {f"/v1/{route.name}": {"post": _call(route, next(refs), next(refs))} for route in described}
    used = {_tag(route) for route in described} | {"server"}
    components["ErrorBody"]["properties"]["results"] = {
        "type": "array",
        "description": "Of several items: what became of each, in the order of the request.",
        "items": {"type": "object"},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Redrive",
            "version": __version__,
            "description": "Durable queues with dead letters. Every call is POST /v1/NAME with a JSON object.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items() if name in used],
        "security": [{"token": []}, {}],
        "paths": {**paths, **_pages()},
        "components": {
            "schemas": dict(sorted(components.items())),
            "responses": {str(status): _error(status, text) for status, text in _ERRORS.items()},
            "parameters": {"Namespace": _NAMESPACE},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `redrive token create`. Without tokens the server asks for none.",
                }
            },
        },
    }


def _drop_defaults(schema: Any) -> None:
    """Drop defaults that generators of clients write as code that does not compile: of references, of alternatives, and
    objects and lists. Descriptions and the reference of settings have them."""
    if isinstance(schema, list):
        for each in schema:
            _drop_defaults(each)
    elif isinstance(schema, dict):
        if "$ref" in schema or "anyOf" in schema or isinstance(schema.get("default"), dict | list | tuple):
            schema.pop("default", None)
        for each in schema.values():
            _drop_defaults(each)


def encoded(routes: Iterable[Route]) -> bytes:
    """Return the encoded document, as served and as checked in."""
    return msgspec.json.format(msgspec.json.encode(document(routes)), indent=1) + b"\n"


_NAMESPACE = {
    "name": "Redrive-Namespace",
    "in": "header",
    "description": "Where the queues are.",
    "schema": {
        "type": "string",
        "default": "default",
        "minLength": 1,
        "maxLength": MAX_NAME_CHARS,
        "pattern": "^[A-Za-z0-9_][A-Za-z0-9._:-]*$",
    },
}


def _tag(route: Route) -> str:
    return route.name.partition(".")[0]


def _call(route: Route, takes: dict[str, Any], gives: dict[str, Any]) -> dict[str, Any]:
    assert route.request_type is not None
    return {
        "operationId": route.name,
        "summary": route.summary,
        "description": f"{_text(route.request_type)}\n\nNeeds the right `{route.permission}`.",
        "tags": [_tag(route)],
        "parameters": [{"$ref": "#/components/parameters/Namespace"}],
        "requestBody": {
            "required": bool(_required(route.request_type)),
            "content": {"application/json": {"schema": takes, "example": dict(route.example)}},
        },
        "responses": {
            "200": {"description": _text(route.response_type), "content": {"application/json": {"schema": gives}}},
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in _ERRORS},
        },
    }


def _required(kind: Any) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


def _text(kind: Any) -> str:
    return _one_line(kind.__doc__ or "")


def _one_line(text: str) -> str:
    """Join a docstring to one line: some versions of Python leave the indentation in it."""
    return " ".join(text.split())


def _error(status: int, text: str) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}},
    }
    if status in (429, 503):
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    return answer


def _pages() -> dict[str, Any]:
    def page(id: str, summary: str, media: str = "application/json", *, fails: bool = False) -> dict[str, Any]:
        content = {media: {"schema": {"type": "object"} if media == "application/json" else {"type": "string"}}}
        answers: dict[str, Any] = {"200": {"description": summary, "content": content}}
        if fails:
            answers["503"] = {"description": "Not now.", "content": content}
        for status in (401, 403):
            answers[str(status)] = {"$ref": f"#/components/responses/{status}"}
        return {"get": {"operationId": id, "summary": summary, "tags": ["server"], "responses": answers}}

    return {
        "/health": page("health", "How the server and its stores are doing", fails=True),
        "/health/live": page("live", "Whether the process is alive; needs no token"),
        "/health/ready": page("ready", "Whether calls can be served now; needs no token", fails=True),
        "/metrics": page("metrics", "Metrics for Prometheus; needs the permission `read`", "text/plain"),
        "/openapi.json": page("openapi", "This document"),
    }


def main() -> None:
    """Print the document."""
    from redrive.server.routes.table import ROUTES

    sys.stdout.buffer.write(encoded(ROUTES))


if __name__ == "__main__":
    main()
