"""Redrive as the scenarios use it: the one place to adapt when its public interface moves.

Nothing here is imported before a case runs, so the harness works without Redrive.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness import NotReady
from benchmarks.load import payload

QUEUE = "q"
# Leases taken while a case is being prepared must not run out while it is measured.
LONG_SECONDS = 86_400
FILL_BATCH = 1000


def url(directory: Path) -> str:
    return f"sqlite:///{directory / 'redrive.db'}"


@contextmanager
def open_broker(directory: Path) -> Iterator[Any]:
    """A blocking Broker on the directory's database, closed at the end."""
    try:
        from redrive import connect
    except ImportError as error:
        raise NotReady(f"redrive: {error}") from error
    with connect(url(directory)) as broker:
        yield broker


@asynccontextmanager
async def open_async_broker(directory: Path) -> AsyncIterator[Any]:
    """An AsyncBroker on the directory's database, closed at the end."""
    try:
        from redrive import connect_async
    except ImportError as error:
        raise NotReady(f"redrive: {error}") from error
    async with connect_async(url(directory)) as broker:
        yield broker


def create_queue(broker: Any, name: str = QUEUE, **settings: Any) -> None:
    """Leases far longer than any run, so that only the measured calls settle items."""
    broker.create_queue(name, lease_timeout=LONG_SECONDS, **settings)


def retry_settings() -> dict[str, Any]:
    """Queue settings under which a reported failure waits for its next attempt beyond the end of the run."""
    return {"retry": {"attempts": 5, "cooldown": LONG_SECONDS}, "max_attempts": 0}


def every_setting(broker: Any) -> dict[str, Any]:
    """Queue settings with the whole dead-letter machinery switched on."""
    broker.create_queue("dead")
    return {**retry_settings(), "dead_queue": "dead", "search": True, "archive_after": LONG_SECONDS}


def fill(broker: Any, count: int, size: int = 200, **options: object) -> None:
    """Puts `count` items in batches."""
    from redrive import new_item

    items = [new_item(payload(size), **options) for _ in range(min(count, FILL_BATCH))]  # type: ignore[arg-type]
    for start in range(0, count, FILL_BATCH):
        broker.put_many(QUEUE, items[: count - start])


def lease_many(broker: Any, count: int) -> list[Any]:
    """Leases `count` items in batches."""
    leases: list[Any] = []
    while len(leases) < count:
        taken = broker.lease(QUEUE, limit=min(FILL_BATCH, count - len(leases)))
        if not taken:
            raise RuntimeError(f"only {len(leases)} of {count} items could be leased")
        leases += taken
    return leases


async def settle_all(directory: Path, count: int, settle: Callable[[Any, Any], Awaitable[Any]]) -> None:
    """Leases `count` items and ends each with a call of its own, many at a time."""
    async with open_async_broker(directory) as broker:
        for start in range(0, count, FILL_BATCH):
            leases = await broker.lease(QUEUE, limit=min(FILL_BATCH, count - start))
            await asyncio.gather(*(settle(broker, lease) for lease in leases))


def raised(number: int) -> Exception:
    """An exception as a handler raises it: through a few frames, with a text of its own."""

    def handler(depth: int) -> None:
        if depth:
            handler(depth - 1)
        raise TimeoutError(f"timeout after {number % 90} ms for user {number}")

    try:
        handler(4)
    except TimeoutError as error:
        return error
    raise AssertionError


def run_async(main: Coroutine[Any, Any, Any]) -> Any:
    """Runs on uvloop where it is installed; the report's machine facts say whether it is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)
