"""Dead letters as a busy system has them: many causes, some of them frequent, with headers and words of their own."""

import asyncio
from pathlib import Path
from typing import Any

from benchmarks.subject import FILL_BATCH, QUEUE, create_queue, open_async_broker, open_broker, run_async

CAUSES = 200
TENANTS = 100
SECOND_QUEUE = "second"
# One letter in 20 speaks of the gateway, one in 50 has the wanted type, one in 200 the wanted cause.
WORDS = "gateway refused"
ERROR_TYPE = "app.PaymentError"
HEADERS = {"tenant": "t7"}


def failure(number: int) -> Any:
    """The failure of one item, as a worker in another language would report it."""
    from redrive.model.failure import failure_from_fields

    cause = number % CAUSES
    kind = ERROR_TYPE if cause % 50 == 3 else f"app.Error{cause % 40}"
    words = "the gateway refused the call" if cause % 20 == 7 else "the call took too long"
    return failure_from_fields(kind, f"{words} in step {'abcdefghijklmnopqrst'[cause % 20]}{cause:x}z")


def fill(directory: Path, count: int, **settings: Any) -> None:
    """Makes `count` dead letters, a tenth of them in a second queue."""
    with open_broker(directory) as broker:
        for name in (QUEUE, SECOND_QUEUE):
            create_queue(broker, name, **settings)
    run_async(_fill(directory, count))


async def _fill(directory: Path, count: int) -> None:
    from redrive import new_item

    async with open_async_broker(directory) as broker:
        for start in range(0, count, FILL_BATCH):
            queue = SECOND_QUEUE if start // FILL_BATCH % 10 == 9 else QUEUE
            numbers = range(start, min(start + FILL_BATCH, count))
            items = [
                new_item({"order": number, "text": "x" * 150}, headers={"tenant": f"t{number % TENANTS}"})
                for number in numbers
            ]
            await broker.put_many(queue, items)
            leases = await broker.lease(queue, limit=len(items))
            await asyncio.gather(
                *(broker.fail(lease, failure(number)) for lease, number in zip(leases, numbers, strict=True))
            )
