"""What a database holds, read past the store: is each item in exactly one place, and does everything else fit to it?"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import psycopg

from redrive.model.holder import decode_holders
from redrive.stores.sqlite.examination import find_problems

Where = Path | str
"""A file of SQLite, or what `connect` takes: a schema of PostgreSQL, URL?schema=NAME, or Redis, URL?prefix=NAME."""
STATE_TABLES = ("ready", "scheduled", "lease", "finished")
COUNTS = ("pending", "failed", "active", "completed", "dead", "archived", "moving", "dead_letters")
TOTALS = ("put", "completed", "failed", "dead", "redriven", "archived", "exhausted", "captured")
EXHAUSTED = ("retries_exhausted", "max_attempts")


class Broken(AssertionError):
    """The database holds something that must never be."""


class Standing(NamedTuple):
    """Where one item stands."""

    id: str
    queue: str
    status: str
    payload: bytes
    deliveries: int
    attempts: int
    failures: int
    losses: int
    redrives: int
    reason: str | None
    history: int
    deaths: int
    origin_queue: str | None


class State(NamedTuple):
    """All that an operation may change, without what differs from run to run: ids, tokens, times."""

    queues: tuple[tuple[object, ...], ...]
    items: tuple[Standing, ...]
    totals: tuple[tuple[object, ...], ...]
    audit: tuple[tuple[object, ...], ...]
    keys: tuple[tuple[object, ...], ...]
    groups: tuple[tuple[object, ...], ...]
    feed: tuple[tuple[object, ...], ...]
    operations: tuple[tuple[object, ...], ...]
    registrations: tuple[tuple[object, ...], ...]
    results: tuple[tuple[object, ...], ...]


def places(where: Where) -> list[Standing]:
    """Every item. Raises Broken unless each is in exactly one place and all rows belong together."""
    if isinstance(where, str) and where.startswith("redis"):
        from tests.acceptance import redis_places

        return redis_places.places(where)
    with _opened(where) as connection:
        standings = _standings(connection)
        _check_counts(connection)
        _check_totals(connection)
        _check_records(connection)
        _check_letters(connection)
        _check_moving(connection)
        _check_holders(connection)
        _check_operations(connection)
        if isinstance(where, Path) and (found := list(find_problems(connection))):
            raise Broken(f"redrive doctor finds {found}")
        return standings


@contextlib.contextmanager
def _opened(where: Where) -> Iterator[Any]:
    """Something that executes statements: both databases have the same tables."""
    if isinstance(where, Path):
        with contextlib.closing(apsw.Connection(str(where))) as file:
            _check_integrity(file)
            yield file
        return
    url, _, schema = where.partition("?schema=")
    with psycopg.connect(url, options=f"-c search_path={schema}") as server:
        server.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        yield server


_QUEUES = """
    SELECT name, settings, paused, is_dead_queue, breakers, json_extract(gates, '$[0].until'),
        json_array_length(gates, '$[0].leased')
    FROM redrive_queue ORDER BY name"""
"""Ids of what was leased differ between two runs; their number does not."""


def state(path: Path) -> State:
    """What a file holds, comparable between two runs of the same calls. Raises Broken as `places` does."""
    items = tuple(sorted((standing._replace(id="") for standing in places(path)), key=repr))
    connection = apsw.Connection(str(path))
    try:
        return State(
            tuple(connection.execute(_QUEUES)),
            items,
            tuple(connection.execute(_TOTALS)),
            tuple(connection.execute("SELECT actor, verb, queue, count FROM redrive_audit ORDER BY number")),
            tuple(connection.execute("SELECT queue, key FROM redrive_idempotency ORDER BY queue, key")),
            tuple(
                connection.execute("SELECT queue, fingerprint, count FROM redrive_group ORDER BY queue, fingerprint")
            ),
            tuple(connection.execute("SELECT kind, queue FROM redrive_feed ORDER BY number")),
            tuple(connection.execute(_OPERATIONS)),
            tuple(
                connection.execute("SELECT kind, name, version, value FROM redrive_registration ORDER BY kind, name")
            ),
            tuple(connection.execute("SELECT result, result_type, queue, put_to FROM redrive_result ORDER BY item_no")),
        )
    finally:
        connection.close()


_STANDINGS = " UNION ALL ".join(
    f"SELECT item_no, queue, {status} AS status, {reason} AS reason, deliveries, attempts, failures, losses, redrives, "
    f"entries, deaths, death_no FROM redrive_{table}"
    for table, status, reason in (
        ("ready", "'pending'", "NULL"),
        ("scheduled", "status", "NULL"),
        ("lease", "'active'", "dead_reason"),
        ("finished", "CASE status WHEN 'dropped' THEN 'archived' ELSE status END", "dead_reason"),
    )
)
_ITEMS = f"""
    SELECT i.item_no, i.id_suffix, i.queue, q.name, i.payload, i.origin_queue, p.queue, p.status, p.reason,
        p.deliveries,
        p.attempts, p.failures, p.losses, p.redrives, p.entries, p.deaths
    FROM redrive_item AS i LEFT JOIN ({_STANDINGS}) AS p ON p.item_no = i.item_no
    LEFT JOIN redrive_queue AS q ON q.key = i.queue"""
_COUNTED = f"""
    SELECT queue, {", ".join(f"sum({name})" for name in COUNTS)} FROM (
        SELECT queue, {", ".join(COUNTS)} FROM redrive_count
        UNION ALL SELECT queue, {", ".join(COUNTS)} FROM redrive_count_delta) AS counts GROUP BY queue"""
_TOTALS = f"""
    SELECT queue, {", ".join(f"sum({name}_total)" for name in TOTALS)} FROM (
        SELECT queue, {", ".join(f"{name}_total" for name in TOTALS)} FROM redrive_count
        UNION ALL SELECT queue, {", ".join(f"{name}_total" for name in TOTALS)} FROM redrive_count_delta) AS counts
    GROUP BY queue ORDER BY queue"""

_OPERATIONS = """
    SELECT data ->> 'verb', data ->> 'status', data ->> 'steps', data ->> 'changed', data -> 'skipped'
    FROM redrive_operation ORDER BY number"""
_LETTERS = f"""
    SELECT coalesce(l.item_no, p.item_no), p.status, l.section, l.queue = p.queue FROM redrive_dead_letter AS l
        FULL JOIN (SELECT * FROM ({_STANDINGS}) AS every WHERE death_no IS NOT NULL) AS p
        ON p.death_no = l.death_no AND p.item_no = l.item_no"""
_RECOUNTED = """
    SELECT queue, fingerprint, count(*) FROM redrive_dead_letter WHERE section > 0 GROUP BY queue, fingerprint"""


def _check_integrity(connection: apsw.Connection) -> None:
    found = connection.execute("PRAGMA integrity_check").fetchall()
    if found != [("ok",)]:
        raise Broken(f"integrity_check: {found}")


def _standings(connection: Any) -> list[Standing]:
    standings = []
    seen: set[int] = set()
    for n, tail, queue, name, payload, origin, place_queue, status, dead_reason, *counts in connection.execute(_ITEMS):
        if n in seen:
            raise Broken(f"item {n} is in two places")
        seen.add(n)
        if status is None:
            raise Broken(f"item {n} is in no place")
        if name is None or place_queue != queue:
            raise Broken(f"item {n} belongs to queue {queue} and stands in {place_queue}")
        deliveries, attempts, failures, losses, redrives, entries, deaths = counts
        if attempts > deliveries:
            raise Broken(f"item {n} counts {attempts} attempts in {deliveries} deliveries")
        id = f"{tail:016x}{n:016x}"
        counters = (deliveries, attempts, failures, losses, redrives)
        standings.append(Standing(id, name, status, payload, *counters, dead_reason, entries, deaths, origin))
    for table in STATE_TABLES:
        strays = connection.execute(
            f"SELECT item_no FROM redrive_{table} AS t "
            "WHERE NOT EXISTS (SELECT 1 FROM redrive_item AS i WHERE i.item_no = t.item_no)"
        ).fetchall()
        if strays:
            raise Broken(f"redrive_{table} holds {len(strays)} items that do not exist")
    return standings


def _check_counts(connection: Any) -> None:
    """The counts that `stats` shows are what a recount gives."""
    counted = {queue: tuple(counts) for queue, *counts in connection.execute(_COUNTED)}
    recount: Counter[tuple[int, str]] = Counter()
    for queue, status in connection.execute(f"SELECT queue, status FROM ({_STANDINGS}) AS p"):
        recount[queue, status] += 1
    for (queue,) in connection.execute("SELECT queue FROM redrive_dead_letter WHERE section > 0"):
        recount[queue, "dead_letters"] += 1
    for queue in {queue for queue, _ in recount} | set(counted):
        found = tuple(recount[queue, name] for name in COUNTS)
        if counted.get(queue, (0,) * len(COUNTS)) != found:
            raise Broken(f"queue {queue} counts {counted.get(queue)} and holds {found} of {COUNTS}")


def _check_totals(connection: Any) -> None:
    """The totals of deaths and archived items are what the feed tells, where a queue keeps that."""
    told: Counter[tuple[str, str]] = Counter()
    for queue, kind, detail in connection.execute("SELECT queue, kind, detail FROM redrive_feed").fetchall():
        told[queue, kind] += 1
        if detail is not None and json.loads(detail).get("reason") in EXHAUSTED:
            told[queue, "exhausted"] += 1
    queues = connection.execute("SELECT key, name, settings FROM redrive_queue").fetchall()
    names = {key: name for key, name, settings in queues if "feed" not in json.loads(settings)}
    for key, *counts in connection.execute(_TOTALS).fetchall():
        if key in names:
            check_totals(names[key], dict(zip(TOTALS, map(int, counts), strict=True)), told)


def check_totals(queue: str, totals: Mapping[str, int], told: Mapping[tuple[str, str], int]) -> None:
    """Raise Broken unless totals of a queue are those of its feed, and parts are no more than the whole."""
    for name in ("dead", "archived", "exhausted"):
        if totals[name] != told.get((queue, name), 0):
            raise Broken(f"queue {queue} counts {totals}, and the feed tells of {told.get((queue, name), 0)} {name}")
    if totals["exhausted"] > totals["dead"] or totals["captured"] > totals["failed"]:
        raise Broken(f"queue {queue} counts more of a part than of the whole: {totals}")


def _check_holders(connection: Any) -> None:
    """Items with several holders are found by each of them, and no others are."""
    wanted = {
        (item_no, name)
        for table in ("scheduled", "finished")
        for item_no, status, text in connection.execute(f"SELECT item_no, status, held_by FROM redrive_{table}")
        if len(holders := decode_holders(text)) > 1 and status != "moving"
        for name, _ in holders
    }
    found = set(connection.execute("SELECT item_no, name FROM redrive_holder"))
    if found != wanted:
        raise Broken(f"holders of items are {wanted}, and rows of them {found}")


def _check_records(connection: Any) -> None:
    """Histories, deaths, letters and old ids are those of items that exist, and as many as the items say."""
    for table in ("dead_letter", "history", "death", "former_id", "moving"):
        strays = _first(
            connection,
            f"SELECT count(*) FROM redrive_{table} AS t WHERE NOT EXISTS "
            "(SELECT 1 FROM redrive_item AS i WHERE i.item_no = t.item_no)",
        )
        if strays:
            raise Broken(f"redrive_{table} has {strays} rows of items that do not exist")
    if _first(connection, "SELECT 1 FROM redrive_former_id WHERE old_item_no IN (SELECT item_no FROM redrive_item)"):
        raise Broken("an item lives under its new id and its old one")
    for n, entries, deaths, written, died in connection.execute(
        f"""SELECT item_no, entries, deaths, (SELECT count(*) FROM redrive_history AS h WHERE h.item_no = p.item_no),
            (SELECT count(*) FROM redrive_death AS d WHERE d.item_no = p.item_no) FROM ({_STANDINGS}) AS p"""
    ):
        if (min(entries, 50), deaths) != (written, died):
            raise Broken(f"item {n} says {entries} entries, {deaths} deaths; there are {written} and {died}")


def _check_moving(connection: Any) -> None:
    """Whoever is on its way to another store has a row that says where to, and nobody else."""
    moving = set(connection.execute(f"SELECT item_no FROM ({_STANDINGS}) AS p WHERE status = 'moving'").fetchall())
    if moving != set(connection.execute("SELECT item_no FROM redrive_moving").fetchall()):
        raise Broken("items that are moving, and where they go, do not belong together")


def _check_letters(connection: Any) -> None:
    """Whoever is dead or archived has a letter, on the right section; and groups count what there is."""
    for n, status, section, same_queue in connection.execute(_LETTERS):
        if status is None or section is None or not same_queue:
            raise Broken(f"item {n} and its letter do not belong together")
        if (section < 0) != (status == "archived"):
            raise Broken(f"item {n} is {status} and its letter lies on section {section}")
    ended = f"SELECT item_no FROM ({_STANDINGS}) AS p WHERE status IN ('dead', 'archived') AND death_no IS NULL"
    if (n := _first(connection, ended)) is not None:
        raise Broken(f"item {n} is dead or archived and has no letter")
    if _first(
        connection,
        "SELECT 1 FROM redrive_search_tombstone WHERE death_no IN (SELECT death_no FROM redrive_dead_letter)",
    ):
        raise Broken("the words of a letter that is there are to be removed")
    recount = set(connection.execute(_RECOUNTED))
    for table, columns in (("group", "queue, fingerprint, count"), ("group_hour", "queue, fingerprint, sum(count)")):
        counted = set(connection.execute(f"SELECT {columns} FROM redrive_{table} GROUP BY queue, fingerprint"))
        if counted != recount:
            raise Broken(f"redrive_{table} counts {counted} and there are {recount}")


def _check_operations(connection: Any) -> None:
    """An operation says that it changed as many items as it did."""
    told = Counter(
        json.loads(detail).get("operation")
        for (detail,) in connection.execute("SELECT detail FROM redrive_feed WHERE detail IS NOT NULL")
    )
    items = dict(connection.execute("SELECT operation, count(*) FROM redrive_operation_item GROUP BY operation"))
    for number, id, data in connection.execute("SELECT number, id, data FROM redrive_operation").fetchall():
        said = json.loads(data)
        found, changed = items.get(number, 0), said["changed"]
        if told[id] != changed or (said["verb"] not in ("undo", "purge") and found != changed):
            raise Broken(
                f"operation {number} says that it changed {changed}; the feed tells {told[id]}, and it has {found}"
            )


def _first(connection: Any, statement: str) -> Any:
    """The first value of the first row; None where there is no row."""
    row = connection.execute(statement).fetchone()
    return None if row is None else row[0]
