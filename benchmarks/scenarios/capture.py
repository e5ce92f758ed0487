"""Capture: what a guard adds to a call that succeeds, and how many failures are captured beside `fail`.

The calls do nothing, so that the difference is the guard. A failure is captured by a guarded coroutine function that
raises; its exception is made before the clock starts, as those of `fail` are.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, payload, run_callers
from benchmarks.scenarios.failure_cost import settings, settle_concurrently
from benchmarks.subject import (
    QUEUE,
    create_queue,
    fill,
    lease_many,
    open_async_broker,
    open_broker,
    raised,
    run_async,
)

GUARDED = "A guarded call that succeeds"
FAILURES = "256 async callers: failures per second, 200 B"
CALLS, REPEATS = 20_000, 20
SYNC_MICROSECONDS, ASYNC_MICROSECONDS = 2.0, 5.0
CALLERS = 256
ITEMS = 20_000
SECONDS_AT_MOST = 60
OF_FAIL, OF_THREE_CALLS = 0.6, 1.0


def charge(order: int, amount: float = 1.0) -> int:
    return order


async def charge_later(order: int, amount: float = 1.0) -> int:
    return order


def measure_guard(directory: Path) -> Measurement:
    """The smallest of the repeats of each, which alternate: guarded, bare."""
    from redrive.capture import DeadLetterQueue

    with open_broker(directory) as broker:
        guarded = DeadLetterQueue(broker).guard(charge)
        return _difference(partial(_repeat, guarded), partial(_repeat, charge))


def measure_async_guard(directory: Path) -> Measurement:
    """The same for a coroutine function, awaited on one event loop."""
    from redrive.capture import DeadLetterQueue

    with open_broker(directory) as broker:
        guarded = DeadLetterQueue(broker).guard(charge_later)
        loop = asyncio.new_event_loop()
        try:
            return _difference(
                lambda: loop.run_until_complete(_repeat_async(guarded)),
                lambda: loop.run_until_complete(_repeat_async(charge_later)),
            )
        finally:
            loop.close()


def _difference(guarded: Callable[[], float], bare: Callable[[], float]) -> Measurement:
    pairs = [(guarded(), bare()) for _ in range(REPEATS)]
    with_guard, without = min(pair[0] for pair in pairs), min(pair[1] for pair in pairs)
    facts = {"guarded": round(with_guard, 3), "bare": round(without, 3), "calls": CALLS, "repeats": REPEATS}
    return Measurement({"microseconds": with_guard - without}, facts)


def _repeat(call: Callable[..., Any]) -> float:
    started = time.perf_counter()
    for order in range(CALLS):
        call(order, amount=2.0)
    return (time.perf_counter() - started) / CALLS * 1e6


async def _repeat_async(call: Callable[..., Any]) -> float:
    started = time.perf_counter()
    for order in range(CALLS):
        await call(order, amount=2.0)
    return (time.perf_counter() - started) / CALLS * 1e6


def measure_capture(by: str, directory: Path) -> Measurement:
    """Failures that are captured, one by each caller at a time."""
    items, seconds = run_async(_capture(by, directory))
    return Measurement({"rate": items / seconds}, {"items": items, "callers": CALLERS})


async def _capture(by: str, directory: Path) -> tuple[int, float]:
    from redrive.capture import AsyncDeadLetterQueue

    async with open_async_broker(directory) as broker:
        dlq = AsyncDeadLetterQueue(broker, max_size=2 * ITEMS)
        errors, task = [raised(number) for number in range(ITEMS)], payload()
        await dlq.list_tasks()  # opens the queue

        @dlq.guard(on_failure="handle", name="call")
        async def call(task: dict[str, Any]) -> None:
            raise errors.pop()

        async def step() -> int:
            if not errors:
                return 0
            if by == "guard":
                await call(task)
            else:
                await dlq.enqueue(f"task-{len(errors)}", task, errors.pop())
            return 1

        items, seconds = await run_callers(step, CALLERS, SECONDS_AT_MOST)
        counted = (await dlq.get_statistics())["lifetime_stats"]["enqueued_total"]
        if counted != items:
            raise RuntimeError(f"{items} were captured, and the queue counts {counted}")
        return items, seconds


def measure_fail(directory: Path) -> Measurement:
    """`fail` of items that are leased already."""
    with open_broker(directory) as broker:
        create_queue(broker, **settings("retry"))
        fill(broker, ITEMS)
        leases = lease_many(broker, ITEMS)
    items, seconds = run_async(settle_concurrently("retry", CALLERS, leases, directory))
    return Measurement({"rate": items / seconds}, {"items": items, "callers": CALLERS})


def measure_three_calls(directory: Path) -> Measurement:
    """What a program does without capture: put the work, lease it, and fail it."""
    with open_broker(directory) as broker:
        create_queue(broker, **settings("retry"))
    items, seconds = run_async(_three_calls(directory))
    return Measurement({"rate": items / seconds}, {"items": items, "callers": CALLERS})


async def _three_calls(directory: Path) -> tuple[int, float]:
    async with open_async_broker(directory) as broker:
        errors, task = [raised(number) for number in range(ITEMS)], payload()

        async def step() -> int:
            if not errors:
                return 0
            error = errors.pop()
            await broker.put(QUEUE, task)
            (lease,) = await broker.lease(QUEUE)
            await broker.fail(lease, error)
            return 1

        return await run_callers(step, CALLERS, SECONDS_AT_MOST)


CASES = [
    Case("guard.sync", GUARDED, "a function", measure_guard),
    Case("guard.async", GUARDED, "a coroutine function", measure_async_guard),
    Case("capture.guard", FAILURES, "captured by a guard", partial(measure_capture, "guard")),
    Case("capture.enqueue", FAILURES, "enqueue, which returns the task", partial(measure_capture, "enqueue")),
    Case("capture.fail", FAILURES, "fail of a leased item", measure_fail),
    Case("capture.three", FAILURES, "put, lease and fail", measure_three_calls),
]
BARS = [
    Bar(
        f"a guard adds at most {SYNC_MICROSECONDS:g} µs to a function",
        "guard.sync",
        (),
        figure="microseconds",
        at_most=SYNC_MICROSECONDS,
    ),
    Bar(
        f"a guard adds at most {ASYNC_MICROSECONDS:g} µs to a coroutine function",
        "guard.async",
        (),
        figure="microseconds",
        at_most=ASYNC_MICROSECONDS,
    ),
    Bar(f"captures: at least {OF_FAIL:g} × the rate of fail", "capture.guard", ("capture.fail",), at_least=OF_FAIL),
    Bar(
        f"captures: at least {OF_THREE_CALLS:g} × the rate of put, lease and fail",
        "capture.guard",
        ("capture.three",),
        at_least=OF_THREE_CALLS,
        why="it does what fail does, and writes the content and the key of the item as well (ADR 22)",
    ),
    Bar("… of which the ceiling is fail alone", "capture.fail", ("capture.three",)),
    Bar("enqueue, beside put, lease and fail", "capture.enqueue", ("capture.three",)),
]
