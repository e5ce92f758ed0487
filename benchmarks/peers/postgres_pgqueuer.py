# /// script
# dependencies = ["pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"]
# ///
"""pgqueuer with asyncpg on uvloop, its fastest driver; its tables as it makes them, durable.

Bulk is its enqueue with lists: 1,000 jobs in one statement.
"""

import asyncio
import json
import sys
from importlib.metadata import version

import asyncpg
import uvloop
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

from benchmarks.load import payload, run_callers

BULK = 1_000
BODY = json.dumps(payload(), separators=(",", ":")).encode()


async def measure(scenario: str, url: str) -> dict[str, object]:
    connection = await asyncpg.connect(url)
    queries = Queries(AsyncpgDriver(connection))
    await queries.install()
    for name in ("fsync", "synchronous_commit"):
        assert await connection.fetchval(f"SHOW {name}") == "on"

    async def one() -> int:
        await queries.enqueue("job", BODY)
        return 1

    async def bulk() -> int:
        await queries.enqueue(["job"] * BULK, [BODY] * BULK, [0] * BULK)
        return BULK

    items, seconds = await run_callers({"one": one, "bulk": bulk}[scenario], 1)
    stored = await connection.fetchval("SELECT count(*) FROM pgqueuer")
    assert stored == items, f"{stored} of {items} are there"
    await connection.close()
    return {"peer": "pgqueuer", "version": version("pgqueuer"), "items": items, "rate": items / seconds}


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(sys.argv[1], sys.argv[2]))))
