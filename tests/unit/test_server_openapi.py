"""The OpenAPI document: checked in, complete, and true of the routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from redrive.model.filter import Filter
from redrive.model.queue import QueueSettings, RetryAfter
from redrive.server.field_types import NAMES, FilterFields
from redrive.server.openapi import encoded
from redrive.server.route import Route
from redrive.server.routes.table import ROUTES
from redrive.wire.json_views import view_of

ROOT = Path(__file__).resolve().parents[2]
CHECKED_IN = ROOT / "docs/reference/openapi.json"


DOCUMENT = json.loads(encoded(ROUTES))


def test_document_that_is_checked_in_is_the_one_that_is_served() -> None:
    assert CHECKED_IN.read_bytes() == encoded(ROUTES), "python -m tests.unit.http_reference"


def test_document_has_every_call_and_page() -> None:
    pages = {"/health", "/health/live", "/health/ready", "/metrics", "/openapi.json"}
    assert set(DOCUMENT["paths"]) == {f"/v1/{route.name}" for route in ROUTES} | pages


def test_every_reference_leads_somewhere_and_names_are_short() -> None:
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT))):
        found = DOCUMENT
        for part in reference.split("/"):
            found = found[part]
        assert found
    assert all(re.fullmatch(r"[A-Za-z]+", name) for name in DOCUMENT["components"]["schemas"])


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_example_is_what_the_call_takes(route: Route) -> None:
    assert route.request_type is not None
    msgspec.json.decode(msgspec.json.encode(dict(route.example)), type=route.request_type)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_call_refuses_fields_that_it_does_not_know(route: Route) -> None:
    assert route.request_type is not None
    assert route.request_type.__struct_config__.forbid_unknown_fields


def test_no_two_calls_have_one_name() -> None:
    assert len({route.name for route in ROUTES}) == len(ROUTES)


def test_every_condition_of_a_filter_can_be_given() -> None:
    assert set(NAMES) == set(Filter.__struct_fields__) - {"status"}
    assert set(NAMES) <= set(FilterFields.__struct_fields__)


def test_settings_that_are_told_are_those_there_are() -> None:
    unset = ("max_attempts", "expire_timeout", "max_size", "keep_dead", "archive_after", "keep_archived")
    every = QueueSettings(dead_queue="x", retry_after=RetryAfter.DELAY, **dict.fromkeys(unset, 1))  # type: ignore[arg-type]
    assert set(view_of(every)) == set(QueueSettings.__struct_fields__)


def objects(part: object) -> Iterator[dict[str, Any]]:
    """Every object within a part of the document."""
    if isinstance(part, dict):
        yield part
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from objects(each)


def test_generators_make_clients_that_compile() -> None:
    """Go: `openapi-generator-cli generate -g go --additional-properties=enumClassPrefix=true`, and `go build`."""
    schemas = list(objects(DOCUMENT["components"]["schemas"]))
    defaults = [each for each in schemas if "default" in each and {"type", "$ref", "anyOf", "enum"} & each.keys()]
    assert defaults
    for each in defaults:
        assert not {"$ref", "anyOf"} & each.keys(), each
        assert not isinstance(each["default"], dict | list), each
    for each in schemas:
        names = each.get("properties", {}).keys()
        accessors = {f"{verb}_{name}" for name in names for verb in ("get", "set", "has", "unset")}
        assert not accessors & names, "a field has the name of the accessor of another one"


def test_ids_and_tokens_have_patterns() -> None:
    patterns = {each["pattern"] for each in objects(DOCUMENT["components"]["schemas"]) if "pattern" in each}
    assert {"^[0-9a-f]{32,32}$", "^[0-9a-f]{1,32}$", "^[0-9a-f]{48,48}$"} <= patterns
