"""256 concurrent async callers, one item per call; batches by hand; deaths and keys. Each awaits a durable result."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import AsyncStep, Measurement, Step, payload, rate, run_callers, run_one
from benchmarks.postgres import open_async_broker, open_broker, server
from benchmarks.scenarios.failure_cost import ENDS, settings
from benchmarks.scenarios.postgres_peers import BULK
from benchmarks.subject import QUEUE, create_queue, fill, lease_many, raised, run_async

CALLERS = 256
BACKLOG = 60_000
SETTLED = 15_000
PUT_MANY, TAKEN = 1_000, 100

WORDS = {"put": "put", "lease_complete": "lease and complete", "keyed": "put under a key"}


def put_step(broker: Any) -> AsyncStep:
    body = payload()

    async def step() -> int:
        await broker.put(QUEUE, body)
        return 1

    return step


def keyed_step(broker: Any) -> AsyncStep:
    body, keys = payload(), itertools.count()

    async def step() -> int:
        await broker.put(QUEUE, body, idempotency_key=f"order-{next(keys)}")
        return 1

    return step


def lease_complete_step(broker: Any) -> AsyncStep:
    async def step() -> int:
        leases = await broker.lease(QUEUE, limit=1)
        if not leases:
            return 0
        await broker.complete(leases[0])
        return 1

    return step


STEPS: dict[str, Callable[[Any], AsyncStep]] = {
    "put": put_step,
    "lease_complete": lease_complete_step,
    "keyed": keyed_step,
}


async def _call(scenario: str, callers: int, url: str) -> Measurement:
    async with open_async_broker(url) as broker:
        return rate(*await run_callers(STEPS[scenario](broker), callers), callers=callers)


def measure_calls(scenario: str, callers: int, directory: Path) -> Measurement:
    with server(directory) as url:
        with open_broker(url) as broker:
            create_queue(broker)
            if scenario == "lease_complete":
                fill(broker, BACKLOG)
        result: Measurement = run_async(_call(scenario, callers, url))
    return result


async def _settle(end: str, leases: list[Any], url: str) -> tuple[int, float]:
    async with open_async_broker(url) as broker:
        pending = [
            partial(broker.complete, lease) if end == "complete" else partial(broker.fail, lease, raised(number))
            for number, lease in enumerate(leases)
        ]

        async def step() -> int:
            if not pending:
                return 0
            await pending.pop()()
            return 1

        return await run_callers(step, CALLERS, seconds=60)


def measure_settle(end: str, directory: Path) -> Measurement:
    with server(directory) as url:
        with open_broker(url) as broker:
            create_queue(broker, **settings(end))
            fill(broker, SETTLED)
            leases = lease_many(broker, SETTLED)
        return rate(*run_async(_settle(end, leases, url)), callers=CALLERS)


def put_many(broker: Any) -> Step:
    body = payload()

    def step() -> int:
        return len(broker.put_many(QUEUE, [body] * PUT_MANY))

    return step


def lease_many_complete(broker: Any) -> Step:
    """What one blocking caller does who takes 100 at a time: there is no call that completes many, so they are handed
    to the store in one batch, as the committer would."""
    from redrive.contract.item_calls import Complete

    store = broker.core.store

    def step() -> int:
        leases = broker.lease(QUEUE, limit=TAKEN)
        return len(store.commit([Complete(lease.token) for lease in leases]).results) if leases else 0

    return step


HAND = {"put": (put_many, "put_many of 1,000"), "lease_complete": (lease_many_complete, "lease 100, complete 100")}


def measure_by_hand(scenario: str, directory: Path) -> Measurement:
    with server(directory) as url, open_broker(url) as broker:
        create_queue(broker)
        if scenario == "lease_complete":
            fill(broker, BACKLOG)
        return rate(*run_one(HAND[scenario][0](broker)))


CASES = (
    [
        Case(
            f"async.{scenario}.callers{CALLERS}",
            "Redrive, concurrent async callers, one item per call",
            f"{words}, 200 B, {CALLERS} callers",
            partial(measure_calls, scenario, CALLERS),
        )
        for scenario, words in WORDS.items()
    ]
    + [
        Case(
            f"hand.{name}", "Redrive, batches by hand", f"{words}, one blocking caller", partial(measure_by_hand, name)
        )
        for name, (_, words) in HAND.items()
    ]
    + [
        Case(
            f"settle.{end}",
            "Redrive, how deliveries end",
            f"{words}, {CALLERS} async callers",
            partial(measure_settle, end),
        )
        for end, words in ENDS.items()
    ]
)
BARS = [
    Bar(
        f"256 async callers, {WORDS[name]}: at least 50 % of raw in batches of 100",
        f"async.{name}.callers256",
        (f"raw.{name}.k100",),
        at_least=0.5,
    )
    for name in HAND
] + [
    Bar(
        "256 async callers, put: at least 15 × raw one by one",
        "async.put.callers256",
        ("raw.put.k1",),
        at_least=15.0,
    ),
    Bar("put_many: at least 1.5 × pgqueuer's bulk enqueue", "hand.put", (BULK,), at_least=1.5),
    *(
        Bar(
            f"{words}: no slower than {CALLERS} gathered callers",
            f"hand.{name}",
            (f"async.{name}.callers{CALLERS}",),
            at_least=1.0,
            why="within the spread; by hand, 100 items take two commits in turn, gathered leases and ends share one",
        )
        for name, (_, words) in HAND.items()
    ),
    Bar("put under a key, beside put", "async.keyed.callers256", ("async.put.callers256",)),
    Bar("a death, beside a completion", "settle.dead", ("settle.complete",)),
    Bar("a failure that is tried again, beside a completion", "settle.retry", ("settle.complete",)),
]
