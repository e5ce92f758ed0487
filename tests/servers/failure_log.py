"""The report of a failed test ends with what its PostgreSQL and Redis servers logged last.

They may have crashed, or have ended a connection, and say why there.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

import pytest
from tests.servers import postgres, redis

LINES = 40


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if report.failed:
        for server in _servers(item):
            log = server.folder / "log"
            lines = log.read_text(errors="replace").splitlines() if log.exists() else ["it is gone"]
            report.sections.append((f"log of {server.url}", "\n".join(lines[-LINES:])))
    return report


def _servers(item: pytest.Item) -> Iterator[postgres.Server | redis.Server]:
    """Those of all fixtures that the test has, also of those that it asked for by name while it ran."""
    request: Any = getattr(item, "_request", None)
    for fixture in request._fixture_defs.values() if request else ():
        match fixture.cached_result:
            case [postgres.Server() | redis.Server() as server, *_]:
                yield server
            case [redis.Cluster() as cluster, *_]:
                yield from cluster.servers
