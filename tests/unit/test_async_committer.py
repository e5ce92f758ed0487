"""The committer as requests of a server use it: each has a receiver, which gets its result in the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive import Broker, connect, new_item
from redrive.broker.async_committer import MAX_TICKS
from redrive.contract import Call
from redrive.contract.item_calls import Put
from redrive.errors import DiskFull
from redrive.testing.fake_clock import PATIENCE_SECONDS


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with connect(f"sqlite:///{tmp_path}/redrive.db", maintenance=False, durability="relaxed") as broker:
        broker.create_queue("jobs")
        yield broker


class Receiver:
    """Takes the results of requests."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def done(self) -> bool:
        return False

    def set_result(self, result: Any) -> None:
        self.results.append(result)

    set_exception = set_result


@pytest.fixture
def sizes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls of each transaction."""
    store, sizes = broker.core.store, list[int]()
    commit = store.commit

    def counted(calls: Sequence[Call], now: Any = None) -> Any:
        sizes.append(len(calls))
        return commit(calls, now)

    monkeypatch.setattr(store, "commit", counted)
    return sizes


def test_requests_that_come_in_over_several_ticks_share_a_transaction(broker: Broker, sizes: list[int]) -> None:
    receiver = Receiver()

    async def come_in() -> None:
        for number in range(MAX_TICKS - 1):
            broker.core.committer.submit_to(Put("jobs", (new_item(number),)), receiver)
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not receiver.results:
                await asyncio.sleep(0)

    asyncio.run(come_in())
    assert sizes == [MAX_TICKS - 1]


def test_requests_that_come_in_without_a_pause_are_committed_meanwhile(broker: Broker, sizes: list[int]) -> None:
    receiver = Receiver()

    async def come_in() -> None:
        for number in range(20_000):
            if sizes:
                return
            broker.core.committer.submit_to(Put("jobs", (new_item(number),)), receiver)
            await asyncio.sleep(0)
        pytest.fail("the first of them still waits for the last")

    asyncio.run(come_in())


class BrokenReceiver(Receiver):
    """Raises what it gets."""

    def set_result(self, result: Any) -> None:
        raise ZeroDivisionError

    set_exception = set_result


@pytest.mark.parametrize("fails", [False, True])
def test_receiver_that_raises_keeps_no_result_from_others(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    def fail(calls: Sequence[Call], now: Any = None) -> Any:
        raise DiskFull("jobs.db")

    if fails:
        monkeypatch.setattr(broker.core.store, "commit", fail)
    receivers = [Receiver(), BrokenReceiver(), Receiver(), BrokenReceiver(), Receiver()]
    reported: list[Any] = []

    async def come_in() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context["exception"]))
        for number, receiver in enumerate(receivers):
            broker.core.committer.submit_to(Put("jobs", (new_item(number),)), receiver)
        future = broker.core.committer.submit(Put("jobs", (new_item("last"),)))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await asyncio.wait({future})
            while not reported:
                await asyncio.sleep(0)
            assert (future.exception() is not None) == fails

    asyncio.run(come_in())
    assert [len(receiver.results) for receiver in receivers] == [1, 0, 1, 0, 1]
    assert [type(error) for error in reported] == [ZeroDivisionError]
