"""The same workers, in threads and in processes, whose store is a server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.test_workers import (  # noqa: F401 # pytest finds them here
    broker,
    test_killers_die_alone,
    test_stops_in_the_middle_charge_nothing_and_do_nothing_twice,
)
from tests.servers.http import HttpServer


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    server = HttpServer(f"sqlite:///{tmp_path / 'jobs.db'}", tmp_path)
    yield server.url
    server.stop()
