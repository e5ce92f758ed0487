"""What a reported failure costs, in completes: settled one by one, and by 256 concurrent async callers."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import Bar, Case
from benchmarks.load import Measurement, Step, run_callers, run_one
from benchmarks.subject import (
    create_queue,
    fill,
    lease_many,
    open_async_broker,
    open_broker,
    raised,
    retry_settings,
    run_async,
)

ENDS = {"complete": "complete", "retry": "fail, tried again later", "dead": "fail, dead at once"}
ITEMS = {1: 1_500, 256: 30_000}
LIMIT = 8.0


def settings(end: str) -> dict[str, Any]:
    return retry_settings() if end == "retry" else {}


def calls(end: str, broker: Any, leases: list[Any]) -> list[Callable[[], Any]]:
    """One call per leased item. Exceptions are raised before the clock starts: that is the handler's cost."""
    if end == "complete":
        return [partial(broker.complete, lease) for lease in leases]
    return [partial(broker.fail, lease, raised(number)) for number, lease in enumerate(leases)]


def _next_call(pending: list[Callable[[], Any]]) -> Step:
    def step() -> int:
        if not pending:
            return 0
        pending.pop()()
        return 1

    return step


async def settle_concurrently(end: str, callers: int, leases: list[Any], directory: Path) -> tuple[int, float]:
    """End each lease by a call of its own."""
    async with open_async_broker(directory) as broker:
        pending = calls(end, broker, leases)

        async def step() -> int:
            if not pending:
                return 0
            await pending.pop()()
            return 1

        return await run_callers(step, callers, seconds=60)


def measure(end: str, callers: int, directory: Path, **others: Any) -> Measurement:
    with open_broker(directory) as broker:
        create_queue(broker, **settings(end), **others)
        fill(broker, ITEMS[callers])
        leases = lease_many(broker, ITEMS[callers])
        if callers == 1:
            items, seconds = run_one(_next_call(calls(end, broker, leases)), seconds=60)
    if callers > 1:
        items, seconds = run_async(settle_concurrently(end, callers, leases, directory))
    return Measurement({"microseconds": seconds / items * 1e6}, {"items": items, "callers": callers})


CASES = [
    Case(
        f"settle.{end}.callers{callers}",
        "The cost of a failure",
        f"{words}, {'one blocking caller' if callers == 1 else f'{callers} async callers'}",
        partial(measure, end, callers),
    )
    for callers in ITEMS
    for end, words in ENDS.items()
]
BARS = [
    Bar(
        f"{ENDS[end]}, {'one blocking caller' if callers == 1 else f'{callers} async callers'}: at most 8 completes",
        f"settle.{end}.callers{callers}",
        (f"settle.complete.callers{callers}",),
        figure="microseconds",
        at_most=LIMIT,
        why="a death describes an exception (9 to 15 µs) and writes seven rows, a completion deletes two (ADR 25)",
    )
    for callers in ITEMS
    for end in ("retry", "dead")
]
