"""Whatever is sent, the server answers, never with a mistake of its own, and as its OpenAPI document says.

REDRIVE_THOROUGH=1: about 100,000 requests. REDRIVE_FUZZ_EXAMPLES: so many of each call.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.servers.http import HttpServer
from tests.sizes import THOROUGH

EXAMPLES = int(os.environ.get("REDRIVE_FUZZ_EXAMPLES", 2000 if THOROUGH else 4))
ANSWER_SECONDS = 20.0
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    folder: Path = tmp_path_factory.mktemp("fuzz")
    server = HttpServer(f"sqlite:///{folder}/jobs.db", folder, "--max-wait", "100ms", "--max-body", "1")
    for name in ("emails", "slow-emails"):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port)) as connection:
            connection.request("POST", "/v1/queues.create", json.dumps({"name": name}))
            assert connection.getresponse().status == 200
    yield server
    assert server.stop() == 0
    assert "request_internal_error" not in server.log.read_text()


def _aim(case: Any) -> None:
    """Let most requests be about something that is there: else nearly all would be refused for the same reason."""
    chance = len(repr(case.body)) + len(repr(case.headers))
    if chance % 8:
        case.headers["Redrive-Namespace"] = "default"
    if isinstance(case.body, dict) and chance % 4:
        for name in ("queue", "name", "to"):
            if isinstance(case.body.get(name), str):
                case.body[name] = "emails"


DOCUMENT = schemathesis.openapi.from_path(Path(__file__).resolve().parents[2] / "docs/reference/openapi.json")


@DOCUMENT.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not THOROUGH,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@pytest.mark.timeout(600 + 2 * EXAMPLES)
def test_every_call_answers_as_the_document_says(case: Any, server: HttpServer) -> None:
    _aim(case)
    response = case.call(base_url=server.url, timeout=ANSWER_SECONDS)
    case.validate_response(response, checks=CHECKS)
