"""Registrations of many processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from redrive import connect
from redrive.contract.admin_calls import CreateQueue, Register, Registration, VersionConflict
from redrive.contract.queries import GetStats, ListRegistrations
from redrive.model.duration import SECOND
from redrive.model.queue import QueueSettings
from redrive.store import Store
from redrive.testing.conformance.actions import Background
from redrive.testing.conformance.suite import put

PROCESSES = 6
ROUNDS = 15


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def stores(url: str) -> Iterator[list[Store]]:
    """As many processes have them: each with connections of its own."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(connect(url, maintenance=False)) for _ in range(PROCESSES)]
        yield [broker.core.store for broker in brokers]


def do(store: Store, call: Any) -> Any:
    (result,) = store.commit([call]).results
    assert not isinstance(result, Exception), result
    return result


def at_once(work: Callable[[Store], Any], stores: list[Store]) -> list[Any]:
    return [each.result() for each in [Background(lambda store=store: work(store)) for store in stores]]


def test_of_many_who_fire_at_once_each_tick_is_put_by_one(stores: list[Store]) -> None:
    do(stores[0], CreateQueue("jobs", QueueSettings()))

    def fire(store: Store) -> int:
        fired, version = 0, 0
        while version < ROUNDS:
            tick = Register("schedule", "nightly", b"", version=version, puts=(put(b"tick"),))
            match do(store, tick):
                case Registration():
                    fired, version = fired + 1, version + 1
                case VersionConflict(Registration(version=present)):
                    assert present > version
                    version = present
        return fired

    fired = at_once(fire, stores)
    (registration,) = stores[0].read(ListRegistrations("schedule"))
    # One that saw the last version but one may go beyond it.
    assert ROUNDS <= registration.version < ROUNDS + PROCESSES
    assert sum(fired) == registration.version == stores[0].read(GetStats("jobs")).put_total


def test_no_announcement_of_many_at_once_is_lost(stores: list[Store]) -> None:
    def announce(store: Store) -> list[int]:
        versions = []
        for _ in range(ROUNDS):
            store.commit([Register("worker", "own", b"", 60 * SECOND)])
            versions.append(do(store, Register("worker", "shared", b"", 60 * SECOND)).version)
        return versions

    versions = [version for found in at_once(announce, stores) for version in found]
    assert sorted(versions) == list(range(1, PROCESSES * ROUNDS + 1))
