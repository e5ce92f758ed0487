"""Leases by id: many want the same item, and one gets it; who has it is killed, and what was dead is dead again."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from pathlib import Path

import pytest
from tests.acceptance import children
from tests.acceptance.places import Where, places
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.errors import ItemActive, RedriveError
from redrive.testing.fake_clock import FakeClock

ITEMS = 200 if THOROUGH else 20
"""Items of each kind that all want."""
THREADS, PROCESSES = 4, 2
STORES = ("sqlite", "postgres", "redis")


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


def where(url: str) -> Where:
    """The database, as `places` takes it."""
    return Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else url


def prepare(broker: Broker, count: int = ITEMS) -> list[str]:
    """Items that wait, have failed, and are dead, in turn."""
    broker.create_queue("jobs", retry={"attempts": 9, "cooldown": "1h"}, lease_timeout="1m")
    ids = [str(receipt.id) for receipt in broker.put_many("jobs", range(3 * count))]
    for place, lease in enumerate(broker.lease("jobs", 3 * count)):
        if place % 3 == 0:
            broker.release(lease)
        else:
            broker.fail(lease, "boom", final=place % 3 == 2)
    return ids


def take_all(broker: Broker, ids: list[str], threads: int) -> list[str]:
    """Let each of several threads lease one item after the other. The ids, once for each lease that was given."""
    start = threading.Barrier(threads)
    taken: list[str] = []

    def take() -> None:
        start.wait()
        for id in ids:
            try:
                taken.append(broker.lease_by_id(id, include_dead=True).id)
            except ItemActive:
                continue
            except RedriveError as problem:  # which no other thread's lease is a reason for
                taken.append(f"{type(problem).__name__:32}"[:32])

    workers = [threading.Thread(target=take) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return taken


def test_of_eight_threads_one_gets_each_item() -> None:
    with connect("memory://", clock=FakeClock(), maintenance=False) as broker:
        ids = prepare(broker)
        assert Counter(take_all(broker, ids, THREADS * PROCESSES)) == Counter(ids)


@pytest.mark.timeout(300)
def test_of_threads_in_two_processes_one_gets_each_item(url: str) -> None:
    with connect(url, clock=FakeClock(), maintenance=False) as broker:
        ids = prepare(broker)
    go, start = os.pipe()

    def work(say: children.Say) -> None:
        os.close(start)
        with connect(url, clock=FakeClock(), maintenance=False) as broker:
            os.read(go, 1)  # until the other side is closed
            say("".join(take_all(broker, ids, THREADS)).encode())

    started = [children.fork(work) for _ in range(PROCESSES)]
    os.close(start)
    taken: Counter[str] = Counter()
    for child in started:
        ended = children.join(*child)
        assert (ended.killed, ended.code) == (False, 0)
        said = ended.said.decode()
        taken.update(said[at : at + 32] for at in range(0, len(said), 32))
    os.close(go)
    assert taken == Counter(ids)
    assert {(each.status, each.deliveries) for each in places(where(url))} == {("active", 2)}


@pytest.mark.timeout(300)
def test_what_a_killed_process_had_is_as_before(url: str) -> None:
    clock = FakeClock()
    with connect(url, clock=clock, maintenance=False) as broker:
        ids = prepare(broker, 2)
        dead = [broker.get(id) for id in ids[2::3]]

    def work(say: children.Say) -> None:
        with connect(url, clock=clock, maintenance=False) as broker:
            leases = broker.lease_by_id(ids, include_dead=True, worker="w")
            assert all(isinstance(lease, Lease) for lease in leases)
            say(b"leased")
            os.kill(os.getpid(), signal.SIGKILL)

    ended = children.join(*children.fork(work))
    assert (ended.killed, ended.said) == (True, b"leased")
    clock.advance("1m")
    with connect(url, clock=clock, maintenance=False) as broker:
        assert broker.run_maintenance().lost == len(ids)
        assert [broker.get(id).status for id in ids] == ["pending", "pending", "dead"] * 2
        for before in dead:
            item = broker.get(before.id)
            assert (item.deaths, item.counters.losses, item.history[-1].event) == (before.deaths, 1, "lost")
    assert Counter(each.status for each in places(where(url))) == {"pending": 4, "dead": 2}
