"""Idempotency keys that end with their items leave nothing behind, and cost a completion nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import apsw
import psycopg
import pytest
import redis

from redrive import Broker, connect, new_item
from redrive.contract.base import ENDED_KEY_RETENTION
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.model.duration import SECOND
from redrive.testing import FakeClock

MANY = 40
LATER = ENDED_KEY_RETENTION // SECOND + 1
KEYS = "SELECT count(*) FROM redrive_idempotency"

Stored = Callable[[Broker], int]


def in_memory(broker: Broker) -> int:
    queue = broker.core.store._state.queues["jobs"]  # type: ignore[attr-defined]
    assert len(queue.keys) == len(queue.keys_until)
    return len(queue.keys)


def on_redis(url: str) -> Stored:
    prefix = urlsplit(url).query.removeprefix("prefix=")

    def stored(broker: Broker) -> int:
        with closing(redis.Redis.from_url(url.partition("?")[0])) as client:
            root = f"{{{prefix}:default}}:"
            count: Any = client.hlen(f"{root}keys:jobs")
            assert client.zcard(f"{root}key_expiry:jobs") == count
            return int(count)

    return stored


def in_schema(url: str) -> Stored:
    server, _, schema = url.partition("?schema=")

    def stored(broker: Broker) -> int:
        with psycopg.connect(server, options=f"-c search_path={schema}") as connection:
            row = connection.execute(KEYS).fetchone()
            assert row is not None
            return int(row[0])

    return stored


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Stored]:
    """A URL, and how many keys are stored there."""
    if request.param == "memory":
        return "memory://", in_memory
    if request.param == "sqlite":
        path = str(tmp_path / "jobs.db")
        return f"sqlite:///{path}", lambda broker: int(apsw.Connection(path).execute(KEYS).get)
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url, (in_schema if request.param == "postgres" else on_redis)(url)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(store: tuple[str, Stored], clock: FakeClock) -> Iterator[Broker]:
    with connect(store[0], clock=clock, maintenance=False) as broker:
        broker.create_queue("morgue")
        broker.create_queue("jobs", idempotency_timeout="item")
        yield broker


@pytest.fixture
def stored(store: tuple[str, Stored], broker: Broker) -> Callable[[], int]:
    return lambda: store[1](broker)


def put(broker: Broker, count: int = MANY) -> list[str]:
    receipts = broker.put_many("jobs", [new_item(n, idempotency_key=str(n)) for n in range(count)])
    return [receipt.id for receipt in receipts]


def test_keys_of_ended_items_are_gone_after_a_while(
    broker: Broker, clock: FakeClock, stored: Callable[[], int]
) -> None:
    ids = put(broker)
    completed, dropped, dead, moved, waiting = ids[:10], ids[10:20], ids[20:25], ids[25:30], ids[30:]
    broker.complete_items(completed)
    broker.drop(dropped)
    broker.purge(dropped)
    broker.bury_items(dead)
    broker.move(moved, "morgue")
    assert stored() == MANY
    clock.advance(LATER)
    broker.run_maintenance()
    assert stored() == len(dead) + len(moved) + len(waiting)
    broker.archive(dead)
    broker.purge(dead)
    broker.delete_queue("morgue", confirm=len(moved))
    for lease in broker.lease("jobs", MANY):
        broker.complete(lease)
    clock.advance(LATER)
    broker.run_maintenance()
    assert stored() == 0


def test_key_that_is_used_again_stays_one_key(broker: Broker, clock: FakeClock, stored: Callable[[], int]) -> None:
    for _ in range(5):
        put(broker, 3)
        for lease in broker.lease("jobs", 3):
            broker.complete(lease)
    put(broker, 1)
    assert stored() == 3
    clock.advance(LATER)
    broker.run_maintenance()
    assert stored() == 1


def test_each_round_examines_no_more_than_its_limit(
    broker: Broker, clock: FakeClock, stored: Callable[[], int]
) -> None:
    ids = put(broker)
    broker.drop(ids[: MANY // 2])
    broker.purge(ids[: MANY // 2])
    assert broker.submit(ApplyRetention(limit=7)) == 0
    clock.advance(LATER)
    rounds = [broker.submit(ApplyRetention(limit=7)) for _ in range(MANY // 7 + 2)]
    assert rounds == [*[7] * (MANY // 7), MANY % 7, 0]
    assert stored() == MANY // 2


def test_keys_with_a_time_and_those_of_items_are_cleaned_side_by_side(
    broker: Broker, clock: FakeClock, stored: Callable[[], int]
) -> None:
    put(broker, 4)
    broker.update_queue("jobs", idempotency_timeout="1h")
    broker.put("jobs", 1, idempotency_key="timed")
    clock.advance("2h")
    broker.run_maintenance()
    assert stored() == 4
    clock.advance(LATER)
    broker.run_maintenance()
    assert stored() == 4


def test_completion_executes_the_same_statements_with_such_a_key(tmp_path: Path) -> None:
    seen: dict[str, list[str]] = {}
    with connect(f"sqlite:///{tmp_path}/jobs.db", maintenance=False) as broker:
        broker.create_queue("plain")
        broker.create_queue("keyed", idempotency_timeout="item")
        broker.put("plain", 1, headers={"h": "x"})
        broker.put("keyed", 1, idempotency_key="k")
        writer = broker.core.store._engine.writer  # type: ignore[attr-defined]
        for queue in ("plain", "keyed"):
            (lease,) = broker.lease(queue)
            statements = seen.setdefault(queue, [])
            writer.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event, to=statements: to.append(event["sql"]))
            broker.complete(lease)
            writer.trace_v2(0, None)
    assert [re.sub(r"\s+", " ", each) for each in seen["keyed"]] == [re.sub(r"\s+", " ", e) for e in seen["plain"]]
    assert len(seen["keyed"]) > 3
