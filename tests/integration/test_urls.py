"""Every form of URL that the documentation names, on real servers."""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from tests.servers.certificates import make_certificate
from tests.servers.postgres import Server as PostgresServer
from tests.servers.proxy import RedisProxy
from tests.servers.redis import Cluster, Server

from redrive import connect
from redrive.errors import InvalidInput, StoreUnavailable

PASSWORD = "s3cr3t"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    """A server with a socket and a password."""
    server = Server()
    server.stop()
    server.settings["unixsocket"] = os.fspath(server.folder / "redis.sock")
    server.start()
    with server.client() as client:
        client.config_set("requirepass", PASSWORD)
    yield server
    server.destroy()


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """A certificate of this machine, and what a server needs of it. Not every Redis speaks TLS by itself."""
    certificate, key = make_certificate(tmp_path, "localhost")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return certificate, context


def check(url: str) -> None:
    """A queue can be made there, and what one connection puts another one leases."""
    name = f"jobs-{uuid4().hex}"
    with connect(url, maintenance=False) as broker, connect(url, maintenance=False) as other:
        broker.create_queue(name)
        broker.put(name, 1)
        assert [lease.payload for lease in other.lease(name)] == [b"1"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:{password}@127.0.0.1:{port}/0",
        "redis://default:{password}@127.0.0.1:{port}",
        "valkey://:{password}@127.0.0.1:{port}/1",
        "unix:///{socket}?db=0&password={password}",
        "unix://:{password}@/{socket}?db=2",
        "unix://:{password}@/{socket}",
        "unix://default:{password}@/{socket}?prefix=mine",
    ],
)
def test_redis(url: str, guarded: Server) -> None:
    check(url.format(password=PASSWORD, port=guarded.port, socket=guarded.settings["unixsocket"].lstrip("/")))


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_redis_with_tls(scheme: str, guarded: Server, authority: tuple[Path, ssl.SSLContext]) -> None:
    proxy = RedisProxy(guarded.port, authority[1])
    try:
        check(f"{scheme}://:{PASSWORD}@localhost:{proxy.port}/0?ssl_ca_certs={authority[0]}&prefix=mine")
    finally:
        proxy.close()


def test_database_that_a_socket_url_names_is_the_one_used(guarded: Server) -> None:
    socket = guarded.settings["unixsocket"]
    with connect(f"unix://{socket}?db=3&password={PASSWORD}", maintenance=False) as broker:
        broker.create_queue("jobs")
    with guarded.client(db=3, password=PASSWORD) as client:
        assert client.exists("{redrive:default}:meta")


def test_password_of_a_socket_url_is_not_shown(guarded: Server) -> None:
    for url in (
        f"unix://:not-{PASSWORD}@{guarded.settings['unixsocket']}",
        f"unix://{guarded.settings['unixsocket']}?password=not-{PASSWORD}",
    ):
        with pytest.raises(StoreUnavailable, match=r"unix:///.*correct user and password") as refused:
            connect(url)
        assert PASSWORD not in str(refused.value)


def test_redis_cluster(redis_cluster: Cluster) -> None:
    port = redis_cluster.servers[0].port
    check(f"redis+cluster://127.0.0.1:{port}")
    check(f"valkey+cluster://127.0.0.1:{port}")


@pytest.mark.parametrize("scheme", ["rediss+cluster", "valkeys+cluster"])
def test_redis_cluster_with_tls(scheme: str, authority: tuple[Path, ssl.SSLContext]) -> None:
    """One server that has all slots, and names the proxy as its address."""
    cluster = Cluster(1)
    proxy = RedisProxy(cluster.servers[0].port, authority[1])
    try:
        with cluster.servers[0].client() as client:
            client.config_set("cluster-announce-port", proxy.port)
            client.config_set("cluster-announce-hostname", "localhost")
            client.config_set("cluster-preferred-endpoint-type", "hostname")
        check(f"{scheme}://localhost:{proxy.port}?ssl_ca_certs={authority[0]}")
    finally:
        proxy.close()
        cluster.destroy()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://postgres@127.0.0.1:{port}/postgres",
        "postgres://postgres@127.0.0.1:{port}/postgres",
        "postgresql://postgres:{password}@127.0.0.1:{port}/postgres?schema=mine",
        "postgresql:///postgres?host={folder}&port={port}&user=postgres",
        "postgresql://postgres@/postgres?host={folder}&port={port}&schema=mine",
    ],
)
def test_postgres(url: str, postgres: PostgresServer) -> None:
    check(url.format(port=postgres.port, folder=postgres.folder, password=PASSWORD))


def test_options_reach_the_driver_as_they_were_written(postgres: PostgresServer) -> None:
    """libpq takes `+` for a plus, where others take it for a blank."""
    with connect(f"{postgres.url}?options=-c%20deadlock_timeout%3D1234ms&schema=other", maintenance=False):
        pass
    with psycopg.connect(postgres.url) as admin:
        assert admin.execute("SELECT to_regclass('other.redrive_meta') IS NOT NULL").fetchone() == (True,)


@pytest.mark.parametrize("url", ["redis://127.0.0.1?prefix=a&prefix=b", "postgresql://127.0.0.1?schema=a&schema=b"])
def test_option_of_ours_that_is_given_twice_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="more than one"):
        connect(url)
