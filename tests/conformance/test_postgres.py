from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import Server

from redrive.testing.conformance import StoreConformance


class TestPostgres(StoreConformance):
    transactions = True

    @pytest.fixture
    def url(self, postgres: Server, request: pytest.FixtureRequest) -> Iterator[str]:
        schema = f"test_{abs(hash(request.node.nodeid)):x}"
        yield f"{postgres.url}?schema={schema}"
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f'DROP SCHEMA IF EXISTS "{schema}" CASCADE')

    @pytest.fixture
    def own_connection(self, postgres: Server) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            yield connection
