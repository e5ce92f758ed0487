"""A guarded coroutine that is cancelled while its failure is being captured ends when the capture is durable."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from redrive import connect_async
from redrive.capture import AsyncDeadLetterQueue
from redrive.stores.memory.store import MemoryStore
from redrive.testing.fake_clock import PATIENCE_SECONDS


async def test_cancellation_waits_for_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    entered, may_commit, commit = threading.Event(), threading.Event(), MemoryStore.commit

    def held(store: MemoryStore, *given: Any) -> Any:
        entered.set()
        assert may_commit.wait(PATIENCE_SECONDS)
        return commit(store, *given)

    async with connect_async("memory://", maintenance=False) as broker, AsyncDeadLetterQueue(broker) as dlq:

        @dlq.guard()
        async def call() -> None:
            raise ConnectionError("down")

        with pytest.raises(ConnectionError):
            await call()
        monkeypatch.setattr(MemoryStore, "commit", held)
        running = asyncio.create_task(call())
        await asyncio.to_thread(entered.wait, PATIENCE_SECONDS)
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not running.done()
        may_commit.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(await dlq.list_tasks()) == 2
