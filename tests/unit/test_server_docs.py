"""The page about HTTP is true: every call, with its right, and every code, with its status."""

from __future__ import annotations

import re
from pathlib import Path

from tests.terminal import reference
from tests.unit import http_reference

from redrive import Broker
from redrive.server.request_limits import Limits
from redrive.server.routes.table import ROUTES
from redrive.wire.error_codec import HTTP_ONLY_CODES, STATUS_BY_CODE

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reference/http.md").read_text()
OF_PAGES = {"not_installed": 501}
TO_OUR_CLIENT = {"misdirected"}


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_page_lists_every_call() -> None:
    assert rows("Calls") == [[f"`{route.name}`", route.permission.value, route.summary] for route in ROUTES]
    assert http_reference.text() == PAGE, "python -m tests.unit.http_reference"


def test_page_lists_every_code_with_its_status() -> None:
    listed = {code: int(status) for status, codes in rows("Errors") for code in re.findall(r"`(\w+)`", codes)}
    said = {**STATUS_BY_CODE, **HTTP_ONLY_CODES, **OF_PAGES}
    assert listed == {code: status for code, status in said.items() if code not in TO_OUR_CLIENT}


def test_words_are_those_of_the_broker_the_server_and_the_command_line() -> None:
    routes = {route.name for route in ROUTES}
    commands = {name.removeprefix("redrive ") for name, _ in reference.helps()}
    for python, http, command in rows("Words"):
        assert all(hasattr(Broker, name) for name in re.findall(r"`(\w+)[(`]", python.partition(":")[0])), python
        assert set(re.findall(r"`(\w+\.\w+)`", http)) <= routes, http
        named = re.findall(r"`([a-z ]+)(?: QUEUE)?`", command)
        assert set(named) <= commands, command


def test_page_has_the_limits_there_are() -> None:
    limits = Limits()
    text = str(rows("Limits"))
    for shown in (
        f"{limits.max_body_bytes >> 20} MiB",
        f"{limits.batch:,}",
        f"{limits.wait_seconds:g} s",
        f"{limits.max_long_polls:,}",
        f"{limits.max_total_body_bytes >> 20} MiB",
        f"{limits.body_seconds:g} s",
        f"{limits.answer_seconds:g} s",
    ):
        assert shown in text
