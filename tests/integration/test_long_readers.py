"""Somebody who reads for too long is told of, before the store suffers from it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import psycopg
import pytest
from tests.servers.postgres import Server

from redrive import connect


def test_log_of_a_file_that_a_reader_holds_up_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redrive.stores.sqlite.store.LARGE_LOG_BYTES", 1_000_000)
    path = tmp_path / "store.db"
    with connect(f"sqlite:///{path}") as broker:
        broker.create_queue("jobs")
        assert broker.health().is_healthy
        reader = apsw.Connection(str(path))
        assert reader.execute("BEGIN; SELECT count(*) FROM redrive_item").get == 0
        for _ in range(20):
            broker.put_many("jobs", [b"x" * 1_000] * 100)
        (warning,) = broker.health().warnings
        reader.close()
    assert "a program reads in one long transaction" in warning
    assert str(path) in warning


def test_long_transaction_on_the_server_is_told_of(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres_url.partition("?")[0]) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")  # older than any transaction of the broker
        with connect(postgres_url) as broker:
            assert broker.health().is_healthy
            monkeypatch.setattr("redrive.stores.postgres.store.LONG_TRANSACTION", 0)
            (warning,) = broker.health().warnings
            assert f"pg_terminate_backend({connection.info.backend_pid})" in warning


def test_long_transaction_that_wrote_is_named(
    postgres: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads nothing now, so it holds no snapshot; it may be in another database of the server."""
    with psycopg.connect(postgres.url, dbname="template1", application_name="migration") as connection:
        connection.execute("SELECT pg_current_xact_id()")
        with connect(postgres_url, maintenance=False) as broker:
            monkeypatch.setattr("redrive.stores.postgres.store.LONG_TRANSACTION", 0)
            (warning,) = broker.health().warnings
            assert f"process {connection.info.backend_pid} of the server (application 'migration')" in warning
            assert "cannot be cleaned up" in warning


def test_prepared_transaction_is_named(postgres: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(postgres.url) as connection, connect(postgres_url, maintenance=False) as broker:
        broker.create_queue("jobs")
        gid = f"order-{uuid4()}"
        connection.tpc_begin(gid)
        connection.execute("SELECT pg_current_xact_id()")
        connection.tpc_prepare()
        try:
            monkeypatch.setattr("redrive.stores.postgres.store.LONG_TRANSACTION", 0)
            (warning,) = broker.health().warnings
            assert f"prepared transaction {gid!r}" in warning
        finally:
            connection.tpc_rollback()


@pytest.mark.parametrize("in_savepoint", [False, True])
def test_transaction_that_put_and_stays_open_is_named(
    postgres: Server, postgres_url: str, monkeypatch: pytest.MonkeyPatch, in_savepoint: bool
) -> None:
    with (
        connect(postgres_url, maintenance=False) as broker,
        psycopg.connect(postgres.url, application_name="shop") as shop,
    ):
        broker.create_queue("jobs")
        shop.execute("SELECT 1")
        with shop.transaction() if in_savepoint else contextlib.nullcontext():
            broker.put("jobs", 1, transaction=shop)
        assert broker.health().is_healthy
        monkeypatch.setattr("redrive.stores.postgres.store.LONG_PUT", 0)
        (warning,) = broker.health().warnings
        assert f"process {shop.info.backend_pid} of the server (application 'shop')" in warning
        assert "leases get slower" in warning
        shop.rollback()
        assert broker.health().is_healthy


@pytest.mark.parametrize("options", [{}, {"delay": "1h"}])
def test_transaction_that_put_cannot_be_prepared(postgres: Server, postgres_url: str, options: dict[str, Any]) -> None:
    """It has sent a notification, which PostgreSQL refuses."""
    with psycopg.connect(postgres.url) as shop, connect(postgres_url, maintenance=False) as broker:
        broker.create_queue("jobs")
        shop.execute("SELECT 1")
        broker.put("jobs", 1, transaction=shop, **options)
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="NOTIFY"):
            shop.execute("PREPARE TRANSACTION 'orders'")
        assert broker.stats("jobs").pending == 0
