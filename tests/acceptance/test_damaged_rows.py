"""A value that changes in PostgreSQL or Redis: damage is named, or nothing is missing. Never silently fewer."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import random
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.acceptance.test_flipped_bits import fill, inventory, opened
from tests.servers.redis import Server
from tests.sizes import THOROUGH
from tests.terminal.cli import Cli
from tests.until import until

from redrive import connect, new_item
from redrive.cli.commands import doctor
from redrive.errors import OutcomeUnknown, QueueNotFound, StoreError

CHANGES = 150 if THOROUGH else 25
FLIPS = 150 if THOROUGH else 12
LOOKS = 1_000 if THOROUGH else 200
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


def key(client: Any, url: str, kind: str) -> bytes:
    """The first key of this kind that a store has."""
    found: list[bytes] = sorted(client.scan_iter(f"*{url.partition('prefix=')[2]}:default}}:{kind}*", count=1000))
    return found[0]


def rename_member(client: Any, sorted_set: bytes) -> None:
    ((member, score),) = client.zrange(sorted_set, 0, 0, withscores=True)
    client.zrem(sorted_set, member)
    client.zadd(sorted_set, {flipped(member, len(member) - 16, 1): score})


@pytest.mark.parametrize(
    ("kind", "damage", "problem"),
    [
        ("c:", lambda client, at: client.delete(at), "1 item without content"),
        ("s:", lambda client, at: client.delete(at), "1 item missing in an index"),
        ("s:", lambda client, at: client.set(at, b"\xc1"), "1 item whose state cannot be read"),
        ("all:retried", rename_member, "1 item without content"),
        ("all:retried", lambda client, at: client.zpopmin(at), "'retried' counts 33 items, and has 32"),
        ("ready:retried", rename_member, "1 item without content"),
        ("ready:retried", lambda client, at: client.delete(at), "missing in an index"),
        ("waiting:retried", lambda client, at: client.zpopmin(at), "1 item missing in an index"),
        ("leases:retried", rename_member, "1 item missing in an index"),
        ("completed:fatal", lambda client, at: client.zpopmin(at), "1 item missing in an index"),
        ("dead:fatal", lambda client, at: client.zpopmin(at), "1 item missing in an index"),
        ("dead_letters:fatal", lambda client, at: client.zpopmin(at), "dead letters, and has"),
        ("group:fatal", lambda client, at: client.zpopmin(at), "1 item missing in an index"),
        ("groups:fatal", lambda client, at: client.delete(at), "counts 0 dead letters in groups"),
        ("counts:retried", lambda client, at: client.hincrby(at, "pending", 64), "counts 97 items, and has 33"),
        ("counts:retried", lambda client, at: client.hincrby(at, "active", -4), "active items, and has"),
        ("info", lambda client, at: client.hdel(at, "retried"), "only one of its two values"),
    ],
)
def test_items_counts_and_indexes_that_differ_in_redis_are_named(
    redis_server: Server, redis_url: str, kind: str, damage: Callable[[Any, bytes], object], problem: str
) -> None:
    fill(redis_url)
    with opened(redis_url) as broker, contextlib.closing(redis_server.client()) as client:
        assert broker.core.store.examine() == ()
        damage(client, key(client, redis_url, kind))
        assert any(problem in each for each in broker.core.store.examine()), broker.core.store.examine()
    assert problem in str(Cli(redis_url).json("doctor", exits=1)["checks"])


def flipped(raw: bytes, at: int, bit: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]


def parts(log: bytes) -> Iterator[tuple[int, int, int]]:
    """The parts of all commands of an append-only file: number in the command, first byte, end."""
    at = number = 0
    while at < len(log):
        end = log.index(b"\n", at) + 1
        if log[at : at + 1] == b"$":
            size = int(log[at + 1 : end])
            yield number, end, end + size
            number, end = number + 1, end + size + 2
        else:  # the number of parts of a command, or a comment
            number = 0
        at = end


def test_flipped_bit_in_an_append_only_file_is_named_or_no_item_is_missing() -> None:
    """In the name of a command, in its key, in a value."""
    chance, missed, server = random.Random(FLIPS), [], Server()
    try:
        fill(server.url)
        server.stop()
        (path,) = server.folder.glob("appendonlydir/*.incr.aof")
        log = path.read_bytes()
        server.start()
        whole = inventory(server.url)
        server.stop()
        for number in range(FLIPS):
            places = [(first, end) for at, first, end in parts(log) if min(at, 2) == number % 3 and first < end]
            at, bit = chance.randrange(*chance.choice(places)), chance.randrange(8)
            path.write_bytes(flipped(log, at, bit))
            try:
                server.start()
            except AssertionError:  # it refuses the file
                continue
            if is_missed(server.url, whole):
                missed.append((at, bit, log[at - 50 : at + 50]))
            server.stop(signal.SIGKILL)
    finally:
        server.destroy()
    assert missed == []


def test_nothing_is_named_in_redis_beside_other_work(redis_url: str) -> None:
    """Items are put, held, leased, completed, redriven, die and expire meanwhile."""
    with connect(redis_url) as broker, connect(redis_url) as other:
        broker.create_queue("jobs", retry={"attempts": 1}, keep_completed="1h")
        done = threading.Event()

        def work() -> None:
            for number in itertools.count():
                if done.is_set():
                    return
                expiry = "1ms" if number % 5 == 0 else None
                put = broker.put_many("jobs", [new_item(each, expire_timeout=expiry) for each in range(20)])
                broker.hold([receipt.id for receipt in put[:2]], "ann")
                for lease in broker.lease("jobs", 15):
                    broker.complete(lease) if number % 3 else broker.fail(lease, ValueError("boom"))
                broker.unhold("ann")
                broker.redrive([item.id for item in broker.find(queue="jobs", status="dead", limit=5).items])

        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            working = pool.submit(work)
            try:
                until(lambda: other.stats("jobs").dead_total)
                found = [problem for _ in range(LOOKS) for problem in other.core.store.examine()]
            finally:
                done.set()
            working.result()
        assert found == []
        assert other.core.store.examine() == ()
