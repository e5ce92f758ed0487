"""Somebody who reads for too long is told of, before the store suffers from it."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg
import pytest

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
