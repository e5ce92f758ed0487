"""Gates: processes and threads that lease as fast as they can get the allowance of a queue, and not one lease more."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tests.acceptance import children
from tests.sizes import THOROUGH

from redrive import Broker, connect
from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.testing.conformance.gates import change_of

QUEUES = 200 if THOROUGH else 12
"""Each of them is one race."""
PROCESSES, ALLOWANCE, ITEMS = 4, 3, 10


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def prepare(broker: Broker) -> dict[str, list[str]]:
    """Queues with more items than their gates let through. The ids of their items."""
    ids: dict[str, list[str]] = {}
    for number in range(QUEUES):
        queue = broker.create_queue(f"q{number}")
        ids[queue.name] = [str(receipt.id) for receipt in broker.put_many(queue.name, range(ITEMS))]
        gate = Gate(BREAKER_GATE, Instant(0), ALLOWANCE)
        broker.submit(change_of(queue, gate=gate))
    return ids


def take(broker: Broker, ids: dict[str, list[str]], number: int) -> list[str]:
    """Lease in each queue until it gives nothing, by id in every second process. The queue of each lease."""
    taken: list[str] = []
    for queue, items in ids.items():
        if number % 2:
            results = [broker.lease_by_id([id])[0] for id in items]
            taken += [queue for result in results if not isinstance(result, RedriveError)]
        else:
            while leases := broker.lease(queue, 1 + number // 2):
                taken += [queue] * len(leases)
    return taken


def race(url: str) -> Counter[str]:
    """Let several processes lease at the same time. How many leases each queue gave."""
    with connect(url, maintenance=False) as broker:
        ids = prepare(broker)
    go, start = os.pipe()

    def work(say: children.Say, number: int) -> None:
        os.close(start)
        with connect(url, maintenance=False) as broker:
            broker.list_queues()
            os.read(go, 1)  # until the other side is closed
            say(" ".join(take(broker, ids, number)).encode())

    started = [children.fork(lambda say, number=number: work(say, number)) for number in range(PROCESSES)]  # type: ignore[misc]
    os.close(start)
    taken: Counter[str] = Counter(dict.fromkeys(ids, 0))
    for child in started:
        ended = children.join(*child)
        assert (ended.killed, ended.code) == (False, 0)
        taken.update(ended.said.decode().split())
    os.close(go)
    return taken


@pytest.mark.timeout(300)
def test_four_processes_get_the_allowance_and_not_one_lease_more(url: str) -> None:
    taken = race(url)
    assert taken == dict.fromkeys(taken, ALLOWANCE)
    with connect(url, maintenance=False) as broker:
        for queue in broker.list_queues():
            (gate,) = queue.gates
            assert len(set(gate.leased)) == ALLOWANCE
            assert broker.stats(queue.name).active == ALLOWANCE
