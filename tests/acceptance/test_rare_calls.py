"""Rare calls of two processes, by the rules, beside two that work: each item stays in one place, and no count is lost.

Workers put, lease and settle under the shared lock of PostgreSQL. Deaths, changes by hand, holds, operations and
imports take the exclusive one; a completion of a dead letter with puts is left to it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import psycopg
import pytest
from tests.acceptance.children import fork, join
from tests.acceptance.places import places
from tests.sizes import THOROUGH

from redrive import Broker, connect
from redrive.errors import IdempotencyConflict, LeaseLost

ROUNDS = 2000 if THOROUGH else 40
KEYS = 12
QUEUES = ("jobs", "morgue")
_DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"

Change = Callable[[Broker, random.Random, Sequence[str]], object]
CHANGES: tuple[Change, ...] = (
    lambda broker, draw, ids: broker.redrive(ids),
    lambda broker, draw, ids: broker.archive(ids),
    lambda broker, draw, ids: broker.restore(ids),
    lambda broker, draw, ids: broker.drop(ids),
    lambda broker, draw, ids: broker.undo(ids),
    lambda broker, draw, ids: broker.bury_items(ids),
    lambda broker, draw, ids: broker.complete_items(ids),
    lambda broker, draw, ids: broker.move(ids, draw.choice(QUEUES)),
    lambda broker, draw, ids: broker.hold(ids, "ada"),
    lambda broker, draw, ids: broker.unhold("ada"),
    lambda broker, draw, ids: broker.run_operation(broker.start_operation("redrive", queue="morgue").id),
    lambda broker, draw, ids: broker.import_items(list(broker.export(status="archived"))[:20], queue="morgue"),
    lambda broker, draw, ids: broker.put_failed("jobs", 0, "outside", idempotency_key=str(draw.randrange(KEYS))),
)


def deadlocks(url: str) -> object:
    with psycopg.connect(url.partition("?")[0]) as connection:
        return connection.execute(_DEADLOCKS).fetchone()


def change(url: str, seed: int) -> None:
    draw = random.Random(seed)
    with connect(url, maintenance=False) as broker:
        for _ in range(ROUNDS):
            ids = [item.id for item in broker.find(status="any", limit=30).items]
            try:
                draw.choice(CHANGES)(broker, draw, draw.sample(ids, min(len(ids), draw.choice([1, 3, 12]))))
            except IdempotencyConflict:
                continue


def work(url: str, seed: int) -> None:
    draw = random.Random(seed)
    with connect(url, maintenance=False) as broker:
        for _ in range(ROUNDS):
            try:
                broker.put("jobs", 0, idempotency_key=draw.choice([None, str(draw.randrange(KEYS))]))
                for lease in [*broker.lease("jobs", 3), *broker.lease("morgue", 2)]:
                    end = draw.randrange(4)
                    if end == 0:
                        broker.complete(lease)
                    elif end == 1:
                        broker.complete(lease, puts=[("jobs", 0)])
                    else:
                        broker.fail(lease, "boom", final=end == 2)
            except (IdempotencyConflict, LeaseLost):
                continue


@pytest.mark.timeout(3600 if THOROUGH else 300)
@pytest.mark.parametrize("seed", range(3 if THOROUGH else 1))
def test_rare_calls_beside_workers_lose_nothing(seed: int, postgres_url: str) -> None:
    with connect(postgres_url, maintenance=False) as broker:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", idempotency_timeout="item", feed="all")
        broker.put_many("jobs", range(10))
    before = deadlocks(postgres_url)
    children = [
        fork(lambda say, each=each, number=number: each(postgres_url, 4 * seed + number))  # type: ignore[misc]
        for number, each in enumerate((change, change, work, work))
    ]
    assert [join(*child).code for child in children] == [0] * len(children)
    assert places(postgres_url)
    assert deadlocks(postgres_url) == before
