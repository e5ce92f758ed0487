# /// script
# dependencies = ["asyncpg==0.32.0", "msgspec==0.22.0", "psycopg[binary]==3.3.9", "redis==8.1.0", "sqlalchemy==2.1.8"]
# ///
"""Errors of clients of databases, each raised by a real one. Arguments: the URL of a PostgreSQL, the port of a Redis
that may be left in any state, and a folder for files.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import redis
import sqlalchemy
from tests.clients.answers import closed_port
from tests.clients.report import awaits, calls, write

SCHEMA = """
    CREATE TABLE account (id int PRIMARY KEY, name varchar(5));
    INSERT INTO account VALUES (1, 'ann');
    CREATE ROLE full_up LOGIN CONNECTION LIMIT 0;
    CREATE ROLE guest LOGIN"""
STATEMENTS = {
    "unique": "INSERT INTO account VALUES (1, 'ben')",
    "too long": "INSERT INTO account VALUES (2, 'somebody')",
    "denied": "SET LOCAL ROLE guest; DELETE FROM account",
    "cancelled": "SET LOCAL statement_timeout = '10ms'; SELECT pg_sleep(30)",
    "terminated": "SELECT pg_terminate_backend(pg_backend_pid())",
    "no table": "SELECT * FROM nowhere",
    # What a server says that has no space left, and what it says of transactions that were in each other's way.
    "disk full": "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '53100'; END $$",
    "deadlock": "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40P01'; END $$",
    "serialization": "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END $$",
    "system": "DO $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '58030'; END $$",
}
LOCKED = "SELECT * FROM account FOR UPDATE NOWAIT"


@contextmanager
def own_database(url: str) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE DATABASE clients")
        try:
            database = f"{url.removesuffix('postgres')}clients"
            with psycopg.connect(database) as made:
                made.execute(SCHEMA)
            yield database
        finally:
            connection.execute("DROP DATABASE clients WITH (FORCE)")
            connection.execute("DROP ROLE IF EXISTS full_up, guest")


@contextmanager
def locked_account(url: str) -> Iterator[None]:
    with psycopg.connect(url) as other:
        other.execute("SELECT * FROM account FOR UPDATE")
        yield


def psycopg_errors(url: str) -> None:
    def execute(statement: str, at: str = url) -> None:
        with psycopg.connect(at) as connection:
            connection.execute(statement)

    for name, statement in STATEMENTS.items():
        calls(f"psycopg {name}", lambda statement=statement: execute(statement))
    with locked_account(url):
        calls("psycopg locked", lambda: execute(LOCKED))
    calls("psycopg refused", lambda: execute("SELECT 1", f"postgresql://postgres@127.0.0.1:{closed_port()}/postgres"))


def asyncpg_errors(url: str) -> None:
    async def execute(statement: str, at: str = url) -> None:
        connection = await asyncpg.connect(at)
        try:
            async with connection.transaction():
                await connection.execute(statement)
        finally:
            connection.terminate()

    for name, statement in STATEMENTS.items():
        awaits(f"asyncpg {name}", lambda statement=statement: execute(statement))
    with locked_account(url):
        awaits("asyncpg locked", lambda: execute(LOCKED))
    for role in ("full_up", "unknown"):
        awaits(f"asyncpg {role}", lambda role=role: execute("SELECT 1", url.replace("postgres@", f"{role}@")))
    refused = f"postgresql://postgres@127.0.0.1:{closed_port()}/postgres"
    awaits("asyncpg refused", lambda: execute("SELECT 1", refused))


def sqlite_errors(folder: Path) -> None:
    path = folder / "some.db"
    with closing(sqlite3.connect(path)) as made:
        made.executescript("CREATE TABLE account (id INTEGER PRIMARY KEY); INSERT INTO account VALUES (1)")

    def execute(*statements: str, database: str = str(path), **options: Any) -> None:
        with closing(sqlite3.connect(database, timeout=0, **options)) as connection:
            for statement in statements:
                connection.execute(statement)

    with closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN EXCLUSIVE")
        calls("sqlite3 locked", lambda: execute("SELECT * FROM account"))
        engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": 0})
        calls("sqlalchemy locked", lambda: _run(engine, "SELECT * FROM account"))
    calls("sqlite3 unique", lambda: execute("INSERT INTO account VALUES (1)"))
    calls("sqlite3 full", lambda: execute("PRAGMA max_page_count = 2", "CREATE TABLE other (a TEXT PRIMARY KEY)"))
    calls("sqlite3 read-only", lambda: execute("DELETE FROM account", database=f"file:{path}?mode=ro", uri=True))
    calls("sqlite3 no table", lambda: execute("SELECT * FROM nowhere"))
    calls("sqlite3 nowhere", lambda: execute("SELECT 1", database=str(folder / "no/such/folder.db")))
    (folder / "text.db").write_text("not a database, however long one looks at it" * 100)
    calls("sqlite3 text", lambda: execute("SELECT * FROM account", database=str(folder / "text.db")))


def sqlalchemy_errors(url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    for name, statement in STATEMENTS.items():
        calls(f"sqlalchemy {name}", lambda statement=statement: _run(engine, statement))
    gone = sqlalchemy.create_engine(f"postgresql+psycopg://postgres@127.0.0.1:{closed_port()}/postgres")
    calls("sqlalchemy refused", lambda: _run(gone, "SELECT 1"))


def _run(engine: sqlalchemy.Engine, statement: str) -> None:
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def redis_errors(port: int) -> None:
    def client(**options: Any) -> redis.Redis:
        return redis.Redis(port=options.pop("port", port), retry=None, **options)

    def watch() -> None:
        with client() as one, client() as other, one.pipeline() as pipeline:
            pipeline.watch("key")
            other.delete("key")
            pipeline.multi()
            pipeline.get("key")
            pipeline.execute()

    with client() as admin:
        admin.config_set("maxmemory", 0)
        admin.set("key", "text")
        admin.acl_setuser("guest", enabled=True, nopass=True, commands=["+get"], keys=["other*"])
        calls("redis wrong type", lambda: client().lpush("key", 1))
        calls("redis watch", watch)
        admin.set("key", "text")
        admin.config_set("maxmemory", 1)
        calls("redis memory", lambda: client().set("key", "x"))
        calls("redis denied", lambda: client(username="guest").set("key", "x"))
        calls("redis password", lambda: client(username="ann", password="x").get("key"))
        calls("redis slow", lambda: client(socket_timeout=0.05).blpop("none", 10))
        calls("redis refused", lambda: client(port=closed_port()).get("key"))
        admin.replicaof("127.0.0.1", closed_port())
        calls("redis replica", lambda: client().delete("key"))


if __name__ == "__main__":
    url, port, folder = sys.argv[1:]
    with own_database(url) as database:
        for errors in (psycopg_errors, asyncpg_errors, sqlalchemy_errors):
            errors(database)
    sqlite_errors(Path(folder))
    redis_errors(int(port))
    write()
