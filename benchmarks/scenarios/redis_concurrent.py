"""Redis: concurrent async callers, one item per call; and the same by hand, many items per call."""

from functools import partial
from pathlib import Path

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload, rate, run_callers, run_one
from benchmarks.redis import SYNCS, open_async_broker, open_broker, server
from benchmarks.scenarios import redis_peers
from benchmarks.scenarios.concurrent import STEPS, WORDS
from benchmarks.subject import QUEUE, create_queue, fill, run_async

CALLERS = (1, 32, 256)
BACKLOG = 100_000
BATCH = 100
WHY_BY_HAND = "100 items share a round trip and a sync, gathered calls up to 256; 256 by hand are 1.3 to 1.8 × of those"


async def _callers(scenario: str, callers: int, url: str, sync: str) -> tuple[int, float]:
    async with open_async_broker(url, sync) as broker:
        step = STEPS[scenario](broker, 200)
        if scenario != "lease_complete":
            await step()  # connections are made, and scripts known
        return await run_callers(step, callers)


def measure(scenario: str, callers: int, sync: str, directory: Path) -> Measurement:
    with server(directory, sync) as running:
        with open_broker(running.url, sync) as broker:
            create_queue(broker)
            if scenario == "lease_complete":
                fill(broker, BACKLOG)
        items, seconds = run_async(_callers(scenario, callers, running.url, sync))
        return rate(items, seconds, callers=callers, appendfsync=sync)


def measure_by_hand(scenario: str, sync: str, directory: Path) -> Measurement:
    """A program that gathers by itself: many items in a call, one call after the other."""
    body = payload()
    with server(directory, sync) as running, open_broker(running.url, sync) as broker:
        create_queue(broker)

        def put() -> int:
            return len(broker.put_many(QUEUE, [body] * BATCH))

        def lease_complete() -> int:
            leases = broker.lease(QUEUE, limit=BATCH)
            if leases:
                store.commit([Complete(lease.token) for lease in leases])
            return len(leases)

        if scenario == "put":
            return rate(*run_one(put), appendfsync=sync)
        from redrive.contract.item_calls import Complete

        store = broker.core.store
        fill(broker, BACKLOG)
        return rate(*run_one(lease_complete), appendfsync=sync)


CASES = [
    Case(
        f"async.{scenario}.callers{callers}.{sync}",
        "Redrive, concurrent async callers, one item per call",
        f"{words}, {callers} callers, appendfsync {sync}",
        partial(measure, scenario, callers, sync),
    )
    for sync in SYNCS
    for scenario, words in WORDS.items()
    for callers in CALLERS
] + [
    Case(
        f"by_hand.{scenario}.k{BATCH}.{sync}",
        "Redrive, one caller, many items per call",
        f"{words}, {BATCH} per call, appendfsync {sync}",
        partial(measure_by_hand, scenario, sync),
    )
    for sync in SYNCS
    for scenario, words in (("put", "put_many"), ("lease_complete", "lease many, complete them in one commit"))
]


def _bars(sync: str) -> list[Bar]:
    put, lease_complete = f"async.put.callers256.{sync}", f"async.lease_complete.callers256.{sync}"
    return [
        Bar(
            f"256 async callers, put: at least 40 % of raw in batches of 100 ({sync})",
            put,
            (f"raw.put.k100.{sync}",),
            at_least=0.4,
        ),
        Bar(
            f"256 async callers, lease and complete: at least 40 % of raw in batches of 100 ({sync})",
            lease_complete,
            (f"raw.lease_complete.k100.{sync}",),
            at_least=0.4,
        ),
        Bar(
            f"256 async callers, put: at least 5 x the fastest peer, in bulk or not ({sync})",
            put,
            redis_peers.keys(sync, bulk=True),
            at_least=5.0,
            why="rq sends 1,000 jobs in one pipeline: 5 × that is 0.70 of our own raw batches, and 0.62 are reached",
        ),
        Bar(
            f"the same beside the fastest that puts one by one ({sync})",
            put,
            redis_peers.keys(sync, bulk=False),
            at_least=5.0,
        ),
        Bar(
            f"put_many of 100: not slower than 256 callers that put one each ({sync})",
            f"by_hand.put.k100.{sync}",
            (put,),
            at_least=1.0,
            why=WHY_BY_HAND,
        ),
        Bar(
            f"lease and complete of 100: not slower than 256 callers with one each ({sync})",
            f"by_hand.lease_complete.k100.{sync}",
            (lease_complete,),
            at_least=1.0,
            why=WHY_BY_HAND,
        ),
    ]


BARS = [bar for sync in SYNCS for bar in _bars(sync)]
