"""`redrive bench`: measurement of the throughput and latency of the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click
import msgspec

from redrive.cli.common_options import as_json, command
from redrive.cli.output import print_json, print_line, table
from redrive.cli.store_target import StoreTarget, find_target, open_place, open_place_async

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

NAMESPACE = "redrive-bench"
"""The namespace of the measurement, separate from all others."""
MOST_ITEMS = 20_000
"""The largest number of calls in one measurement."""
_COLUMNS = {"what": "<", "callers": ">", "items": ">", "per second": ">", "median ms": ">", "99% ms": ">"}


class Figure(msgspec.Struct, frozen=True):
    """One measurement."""

    what: str
    callers: int
    items: int
    per_second: float
    median_ms: float
    p99_ms: float


@command("bench", short_help="Measure the speed of this store.")
@click.option("--seconds", type=click.FloatRange(0.05, 60), default=1.0, show_default=True,
              help="Approximate duration of each of the four measurements.")  # fmt: skip
@click.option("--callers", type=click.IntRange(1, 1000), default=64, show_default=True, help="Concurrent callers.")
@click.option("--size", type=click.IntRange(0, 1_000_000), default=200, show_default=True, help="Bytes of a payload.")
def bench(seconds: float, callers: int, size: int) -> None:
    """Measure puts, and leases with completions: first one by one, then with many concurrent callers.

    It works in the namespace redrive-bench of the store, and removes its queue at the end. Other programs on the
    machine and on the store affect the figures. Acknowledged calls are as durable as always, and the figures include
    the time for that.
    """
    place = find_target()
    queue = f"bench-{uuid4().hex[:8]}"
    payload = b"x" * size
    open_place(place).close()  # fails if there is no store: none is created
    with open_place(place, namespace=NAMESPACE, create=True) as broker:
        level = broker.durability()
        broker.create_queue(queue)
        try:
            figures = [_put(broker, queue, payload, seconds), _work(broker, queue, seconds)]
            figures += asyncio.run(_gathered(place, queue, payload, seconds, callers))
        finally:
            broker.delete_queue(queue, confirm=broker.count(queue=queue, status="any", archived=True))
    if as_json():
        print_json({"url": place.shown, "durability": level, "payload_bytes": size, "figures": figures})
        return
    print_line(f"{place.shown}: durability {level.level}, payloads of {size:,} bytes")
    print_line()
    table(_COLUMNS, map(_row, figures), least=("items", "99% ms", "median ms", "callers"))


def _row(figure: Figure) -> tuple[object, ...]:
    return (figure.what, figure.callers, f"{figure.items:,}", f"{figure.per_second:,.0f}",
            f"{figure.median_ms:.2f}", f"{figure.p99_ms:.2f}")  # fmt: skip


def _put(broker: Broker, queue: str, payload: bytes, seconds: float) -> Figure:
    return _repeated("put", seconds, lambda: broker.put(queue, payload))


def _work(broker: Broker, queue: str, seconds: float) -> Figure:
    def once() -> bool:
        leases = broker.lease(queue, worker="bench")
        for lease in leases:
            broker.complete(lease)
        return bool(leases)

    return _repeated("lease + complete", seconds, once)


def _repeated(what: str, seconds: float, act: Callable[[], Any]) -> Figure:
    """Repeat a call until the time has expired. Ends early if there is nothing more to do."""
    took: list[float] = []
    began = time.perf_counter()
    last = began
    while not took or (last - began < seconds and len(took) < MOST_ITEMS):
        done = act()
        now = time.perf_counter()
        if done is False:
            break
        took.append(now - last)
        last = now
    return _figure(what, 1, took, time.perf_counter() - began)


async def _gathered(place: StoreTarget, queue: str, payload: bytes, seconds: float, callers: int) -> list[Figure]:
    async with open_place_async(place, namespace=NAMESPACE) as broker:

        async def put() -> bool:
            await broker.put(queue, payload)
            return True

        async def work() -> bool:
            leases = await broker.lease(queue, worker="bench")
            for lease in leases:
                await broker.complete(lease)
            return bool(leases)

        first = await _at_once("put", seconds, callers, put)
        return [first, await _at_once("lease + complete", seconds, callers, work)]


async def _at_once(what: str, seconds: float, callers: int, act: Callable[[], Awaitable[bool]]) -> Figure:
    took: list[float] = []
    began = time.perf_counter()

    async def caller() -> None:
        last = time.perf_counter()
        while not took or (last - began < seconds and len(took) < MOST_ITEMS):
            done = await act()
            now = time.perf_counter()
            if not done:
                return
            took.append(now - last)
            last = now

    await asyncio.gather(*(caller() for _ in range(callers)))
    return _figure(what, callers, took, time.perf_counter() - began)


def _figure(what: str, callers: int, took: list[float], passed: float) -> Figure:
    ordered = sorted(took) or [0.0]
    median, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return Figure(what, callers, len(took), len(took) / passed, median * 1000, p99 * 1000)
