"""The OpenAPI document: checked in, complete, and true of the routes."""

from __future__ import annotations

import json
import re
from pathlib import Path

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
