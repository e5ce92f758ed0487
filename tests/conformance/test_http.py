"""The suite over HTTP: our client, a real server in a thread, and a store behind it.

REDRIVE_HTTP_STORE chooses that store: sqlite (by default), memory, postgres or redis.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mounted import Mounts, Uncounted

from redrive import connect, connect_async
from redrive.testing.conformance import StoreConformance
from redrive.testing.fake_clock import FakeClock

STORE = os.environ.get("REDRIVE_HTTP_STORE", "sqlite")


@pytest.fixture(scope="session")
def mounts() -> Iterator[Mounts]:
    mounts = Mounts()
    yield mounts
    mounts.close()


class TestHttp(StoreConformance):
    @pytest.fixture
    def store_url(self, tmp_path: Path, request: pytest.FixtureRequest) -> str:
        match STORE:
            case "sqlite":
                return f"sqlite:///{tmp_path}/redrive.db"
            case "memory":
                return "memory://"
            case "postgres" | "redis":
                url: str = request.getfixturevalue(f"{STORE}_url")
                return url
        raise ValueError(f"REDRIVE_HTTP_STORE={STORE}")

    @pytest.fixture
    def url_of(self, mounts: Mounts, store_url: str, clock: FakeClock) -> Iterator[Callable[[str | None], str]]:
        """The URL of a server whose store has that name, or the one it has by itself."""
        urls: dict[str | None, str] = {}

        def url_of(name: str | None) -> str:
            def open_one(namespace: str) -> Any:
                return connect_async(
                    store_url,
                    namespace=namespace,
                    store_name=name,
                    clock=Uncounted(clock),
                    maintenance=False,
                    redact=False,
                )

            if name not in urls:
                urls[name] = mounts.mount(open_one)
            return urls[name]

        yield url_of
        for url in urls.values():
            mounts.unmount(url)

    @pytest.fixture
    def connect(self, url_of: Callable[[str | None], str]) -> Any:
        return lambda store_name=None, **options: connect(url_of(store_name), store_name=store_name, **options)

    @pytest.fixture
    def connect_async(self, url_of: Callable[[str | None], str]) -> Any:
        return lambda store_name=None, **options: connect_async(url_of(store_name), store_name=store_name, **options)
