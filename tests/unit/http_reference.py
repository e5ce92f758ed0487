"""The table of calls in docs/reference/http.md and the OpenAPI document, made of the table of routes:
`python -m tests.unit.http_reference` writes both."""

from __future__ import annotations

from pathlib import Path

from redrive.server.openapi import encoded
from redrive.server.routes.table import ROUTES

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGE, DOCUMENT = REFERENCE / "http.md", REFERENCE / "openapi.json"
HEAD = "| call | right | what it does |\n|---|---|---|\n"


def text() -> str:
    """The page with the calls there are."""
    before, head, rest = PAGE.read_text().partition(HEAD)
    rows = "\n".join(f"| `{route.name}` | {route.permission} | {route.summary} |" for route in ROUTES)
    return f"{before}{head}{rows}\n\n{rest.partition(chr(10) * 2)[2]}"


if __name__ == "__main__":
    PAGE.write_text(text())
    DOCUMENT.write_bytes(encoded(ROUTES))
