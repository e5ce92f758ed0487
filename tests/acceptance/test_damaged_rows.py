"""A value that changes in PostgreSQL or Redis: damage is named, or nothing is missing. Never silently fewer."""

from __future__ import annotations

import random
from typing import Any

import psycopg
from psycopg import sql
from tests.acceptance.test_flipped_bits import fill, inventory, opened
from tests.servers.redis import Server
from tests.sizes import THOROUGH

from redrive.cli.commands import doctor
from redrive.errors import OutcomeUnknown, QueueNotFound, StoreError

CHANGES = 150 if THOROUGH else 25
_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = %s ORDER BY 1"
_COLUMNS = """
    SELECT table_name, column_name, data_type FROM information_schema.columns
    WHERE table_schema = %s AND data_type IN ('bigint', 'text', 'bytea') AND column_name <> 'payload'
        AND table_name NOT IN ('redrive_meta', 'redrive_low_water_mark') ORDER BY 1, 2"""


def named(url: str) -> bool:
    with opened(url) as broker:
        store = broker.core.store
        checks = (*doctor.damage(broker), *doctor.queues(broker))
        return bool(store.examine()) or not broker.health().is_healthy or any(c.state == "fail" for c in checks)


def is_missed(url: str, whole: tuple[Any, ...]) -> bool:
    """Whether something is missing, and no error or check names it."""
    try:
        return not named(url) and fewer(inventory(url), whole)
    except (StoreError, OutcomeUnknown, QueueNotFound):  # the name of a queue may be what changed
        return False


def fewer(found: tuple[Any, ...], whole: tuple[Any, ...]) -> bool:
    """Whether there are fewer items in all, by `find` or by the counts."""
    return found[0].total() < whole[0].total() or _counted(found) < _counted(whole)


def _counted(found: tuple[Any, ...]) -> int:
    return sum(sum(numbers) for _, *numbers in found[2])


def changed(value: Any, chance: random.Random) -> Any:
    """A value with one bit changed, that the type of its column still allows."""
    if isinstance(value, int):
        return value ^ 1 << chance.randrange(40)
    raw = bytearray(value.encode() if isinstance(value, str) else value)
    raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(7)
    return raw.decode("ascii", "replace").replace("\0", "") if isinstance(value, str) else bytes(raw)


def test_changed_value_of_a_row_in_postgres_is_named_or_no_item_is_missing(postgres_url: str) -> None:
    fill(postgres_url)
    url, _, schema = postgres_url.partition("?schema=")
    chance, missed = random.Random(CHANGES), []
    with psycopg.connect(url, autocommit=True, options=f"-c search_path={schema}") as connection:
        columns = connection.execute(_COLUMNS, (schema,)).fetchall()
        tables = [sql.Identifier(name) for (name,) in connection.execute(_TABLES, (schema,))]
        copy = sql.SQL("SELECT {0}::text FROM {0}")
        stored = [connection.execute(copy.format(table)).fetchall() for table in tables]

        def restore() -> None:
            with connection.transaction():
                for table, rows in zip(tables, stored, strict=True):
                    connection.execute(sql.SQL("DELETE FROM {}").format(table))
                    with connection.cursor() as cursor:
                        cursor.executemany(sql.SQL("INSERT INTO {0} SELECT (%s::{0}).*").format(table), rows)

        whole = inventory(postgres_url)
        for _ in range(CHANGES):
            restore()
            table, column, _ = chance.choice(columns)
            name, place = sql.Identifier(table), sql.Identifier(column)
            read = sql.SQL("SELECT ctid::text, {} FROM {} ORDER BY 2").format(place, name)
            rows = [row for row in connection.execute(read) if row[1] not in (None, "", b"")]
            if not rows:
                continue
            at, value = chance.choice(rows)
            new = changed(value, chance)
            try:
                connection.execute(sql.SQL("UPDATE {} SET {} = %s WHERE ctid = %s::tid").format(name, place), (new, at))
            except psycopg.IntegrityError:
                continue
            if is_missed(postgres_url, whole):
                missed.append((table, column, value, new))
    assert missed == []


def test_changed_value_in_redis_is_named_or_no_item_is_missing(redis_server: Server, redis_url: str) -> None:
    fill(redis_url)
    prefix = redis_url.partition("prefix=")[2]
    chance, missed = random.Random(CHANGES), []
    with redis_server.client() as client:
        keys = sorted(client.scan_iter(f"*{prefix}*", count=1000))
        stored = {key: client.dump(key) for key in keys}

        def restore() -> None:
            redis_server.remove(prefix)
            for key, value in stored.items():
                client.restore(key, 0, value)

        whole = inventory(redis_url)
        for _ in range(CHANGES):
            restore()
            key = chance.choice(keys)
            change = change_key(client, key, chance)
            if change is not None and is_missed(redis_url, whole):
                missed.append((key, change))
    assert missed == []


def change_key(client: Any, key: bytes, chance: random.Random) -> Any:
    """Change a bit of one value. Scores and members of indexes stay: they are numbers of the server."""
    if key.endswith((b":lock", b":meta")):
        return None
    match client.type(key):
        case b"string":
            value = client.get(key)
            client.set(key, new := changed(value, chance), keepttl=True)
        case b"list":
            at = chance.randrange(client.llen(key))
            client.lset(key, at, new := changed(client.lindex(key, at), chance))
        case b"hash":
            field = chance.choice(sorted(client.hkeys(key)))
            value = client.hget(key, field)
            client.hset(key, field, new := changed(value, chance))
        case _:
            return None
    return new
