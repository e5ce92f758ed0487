from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from tests.servers.postgres import Server

from redrive.testing.conformance import StoreConformance

_EMPTY = """
    SELECT string_agg(format('DELETE FROM %%I.%%I', schemaname, tablename), ';') FROM pg_tables
    WHERE schemaname = %s AND tablename <> 'redrive_meta'"""


@pytest.fixture(scope="session")
def schema_url(postgres: Server) -> str:
    """One schema for all tests of a process: making one takes longer than most tests."""
    return f"{postgres.url}?schema=test_{uuid4().hex}"


class TestPostgres(StoreConformance):
    transactions = True

    @pytest.fixture
    def url(self, schema_url: str) -> Iterator[str]:
        yield schema_url
        server, _, schema = schema_url.partition("?schema=")
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("SET lock_timeout = '10s'")
            (statements,) = connection.execute(_EMPTY, (schema,)).fetchone() or (None,)
            if statements:
                connection.execute(statements)

    @pytest.fixture
    def own_connection(self, postgres: Server) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            yield connection
