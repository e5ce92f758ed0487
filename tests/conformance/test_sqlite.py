from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from redrive.testing.conformance import StoreConformance


class TestSQLite(StoreConformance):
    supports_transactions = True

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "redrive.db"

    @pytest.fixture
    def url(self, file: Path) -> str:
        return f"sqlite:///{file}"

    @pytest.fixture
    def own_connection(self, file: Path) -> Iterator[apsw.Connection]:
        connection = apsw.Connection(str(file))
        yield connection
        connection.close()
