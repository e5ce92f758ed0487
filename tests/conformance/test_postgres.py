from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.servers.postgres import Server

from redrive.testing.conformance import StoreConformance

SCHEMA = "conformance"


class TestPostgres(StoreConformance):
    supports_transactions = True

    @pytest.fixture
    def url(self, postgres: Server) -> Iterator[str]:
        """One schema for all tests of a process, emptied after each."""
        yield f"{postgres.url}?schema={SCHEMA}"
        postgres.empty(SCHEMA)

    @pytest.fixture
    def own_connection(self, postgres: Server) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            yield connection
