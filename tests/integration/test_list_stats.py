"""Stats of all queues are one statement on the SQL stores, however many queues there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import connect
from redrive.stores.postgres.session import Session as PostgresSession
from redrive.stores.sqlite.session import Session as SQLiteSession

QUEUES = 50
BOUNDARIES = ("BEGIN", "ROLLBACK")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The statements of queries from now on, in order."""
    seen: list[str] = []

    def watched(execute: Any) -> Any:
        def noted(statement: str, values: Any = ()) -> Any:
            if not statement.startswith(BOUNDARIES):
                seen.append(statement)
            return execute(statement, values)

        return noted

    class Watched(SQLiteSession):
        __slots__ = ()

        def __init__(self, connection: Any) -> None:
            super().__init__(connection)
            self.execute = watched(self.execute)

    monkeypatch.setattr("redrive.stores.sqlite.store.Session", Watched)
    execute = PostgresSession.execute
    monkeypatch.setattr(PostgresSession, "execute", lambda self, *given: watched(execute.__get__(self))(*given))
    return seen


def test_all_queues_are_one_statement(url: str, statements: list[str]) -> None:
    with connect(url, maintenance=False) as broker:
        names = [f"q{number:02}" for number in range(QUEUES)]
        for name in names:
            broker.create_queue(name)
        broker.put("q07", 1)
        for asked in (None, names[:3]):
            statements.clear()
            assert [stats.queue for stats in broker.list_stats(asked)] == (asked or names)
            assert len(statements) == 1
