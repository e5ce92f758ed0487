"""A late settle against the sweep, against the next owner, and against itself: exactly one is accepted."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.sizes import THOROUGH

from redrive import Broker, Lease, connect
from redrive.contract import Query
from redrive.contract.queries import GetOverdue
from redrive.errors import LeaseLost
from redrive.testing.fake_clock import PATIENCE_SECONDS, FakeClock

ROUNDS = int(os.environ.get("REDRIVE_ROUNDS", 10_000 if THOROUGH else 80))
"""Races of each kind on each store. 40 are each of the five late calls with each of the eight head starts, once."""

HEAD_STARTS = 8
"""By how many reads one of them may start later than the other. By the last one, it starts when the other has ended."""

Late = Callable[[Broker, Lease], Any]
Rival = Callable[[Broker, Lease], bool]
"""Tries to take the item from its late owner; tells whether that was done."""

LATE: tuple[Late, ...] = (
    lambda broker, lease: broker.complete(lease),
    lambda broker, lease: broker.complete(lease, result="r", puts=[("other", "follow-up")]),
    lambda broker, lease: broker.fail(lease, "late"),
    lambda broker, lease: broker.release(lease, counted=False),
    lambda broker, lease: broker.extend(lease, "1h"),
)


def sweep(broker: Broker, lease: Lease) -> bool:
    return broker.run_maintenance().lost == 1


def next_owner(broker: Broker, lease: Lease) -> bool:
    """The next owner gets the item by a sweep; or, without one, an item that was given back."""
    return any(taken.id == lease.id and taken.losses == 1 for taken in broker.lease("jobs", lease_timeout="1h"))


def same_token(broker: Broker, lease: Lease) -> bool:
    return _accepted(lambda: broker.complete(lease))


@pytest.fixture(autouse=True)
def _threads_take_turns_often() -> Iterator[None]:
    """Else the first of two threads is done in memory before the second one gets the interpreter."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


STORES = (
    "memory",
    "SQLite, one broker",
    "SQLite, two brokers",
    "PostgreSQL, one broker",
    "PostgreSQL, two brokers",
    "Redis, one broker",
    "Redis, two brokers",
)


@pytest.fixture(params=STORES)
def brokers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Broker, Broker, FakeClock]]:
    clock = FakeClock()
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/redrive.db"
    if request.param.startswith("PostgreSQL"):
        url = request.getfixturevalue("postgres_url")
    if request.param.startswith("Redis"):
        url = request.getfixturevalue("redis_url")
    with ExitStack() as stack:
        one = stack.enter_context(connect(url, clock=clock, maintenance=False))
        two = one
        if request.param.endswith("two brokers"):
            two = stack.enter_context(connect(url, clock=clock, maintenance=False))
        one.create_queue("jobs", lease_timeout="1s", retry={"attempts": 9}, max_losses=0, max_attempts=0)
        one.create_queue("other")
        yield one, two, clock


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("rival", [sweep, next_owner])
def test_late_settle_or_its_rival_is_accepted_and_never_both(
    brokers: tuple[Broker, Broker, FakeClock], rival: Rival, record_property: Callable[[str, object], None]
) -> None:
    won, lost = race(*brokers, rival, LATE)
    record_property("won", f"{won} by the late one, {lost} by its rival")
    print(f"won: {won} by the late one, {lost} by its rival")
    assert min(won, lost) >= ROUNDS / 50, f"{won} to {lost} is no race"


@pytest.mark.timeout(1200)
def test_of_two_settles_with_one_token_one_is_accepted(brokers: tuple[Broker, Broker, FakeClock]) -> None:
    race(*brokers, same_token, LATE[:-1])


def test_extension_between_the_look_of_a_sweep_and_its_settle_wins(brokers: tuple[Broker, Broker, FakeClock]) -> None:
    extend_while_the_sweep_looks(*brokers)


def extend_while_the_sweep_looks(one: Broker, two: Broker, clock: FakeClock) -> None:
    """Force the order in which a sweep that trusts what it read would take an extended item."""
    one.put("jobs", "extended")
    lease = one.lease("jobs")[0]
    clock.advance("1s")
    store = two.core.store
    read = store.read

    def read_and_extend(query: Query) -> Any:
        answer = read(query)
        if isinstance(query, GetOverdue):
            assert len(answer) == 1
            one.extend(lease, "1h")
        return answer

    store.read = read_and_extend  # type: ignore[method-assign]
    assert two.run_maintenance().lost == 0, "the sweep took it although it was extended"
    one.complete(lease)


def race(
    one: Broker, two: Broker, clock: FakeClock, rival: Rival, late: Sequence[Late], rounds: int = ROUNDS
) -> tuple[int, int]:
    """Let both run at once, again and again. Gives how often each won. Raises if ever both did, or none."""
    start, finish = threading.Barrier(2), threading.Barrier(2)
    first_has_ended = threading.Event()
    leases: list[Lease] = []
    taken: list[bool] = []
    failed: list[BaseException] = []

    def wait_for_the_other(broker: Broker, is_later: bool, round: int) -> None:
        """Give the other one a head start, so that either of them wins now and then."""
        head_start = is_later * (round // len(late) % HEAD_STARTS)
        if head_start == HEAD_STARTS - 1:
            assert first_has_ended.wait(PATIENCE_SECONDS)
            return
        for _ in range(head_start):
            broker.stats("jobs")

    def compete() -> None:
        try:
            for round in range(rounds):
                start.wait(PATIENCE_SECONDS)
                wait_for_the_other(two, round % 2 == 1, round)
                taken.append(rival(two, leases[-1]))
                first_has_ended.set()
                finish.wait(PATIENCE_SECONDS)
        except BaseException as error:
            failed.append(error)
            first_has_ended.set()
            start.abort()
            finish.abort()

    thread = threading.Thread(target=compete, daemon=True)
    thread.start()
    won = 0
    for round in range(rounds):
        one.put("jobs", round)
        leases.append(one.lease("jobs")[0])
        clock.advance("1s")
        first_has_ended.clear()
        try:
            start.wait(PATIENCE_SECONDS)
            wait_for_the_other(one, round % 2 == 0, round)
            accepted = _accepted(partial(late[round % len(late)], one, leases[-1]))
            first_has_ended.set()
            finish.wait(PATIENCE_SECONDS)
        except threading.BrokenBarrierError:
            raise (failed or [AssertionError("the rival does not answer")])[0] from None
        assert accepted != taken[-1], f"round {round}: the late one {accepted}, its rival {taken[-1]}"
        won += accepted
        one.drop([leases[-1].id], force=True)  # whatever became of it: the next round has an item of its own
    thread.join(PATIENCE_SECONDS)
    return won, rounds - won


def _accepted(settle: Callable[[], Any]) -> bool:
    try:
        settle()
    except LeaseLost:
        return False
    return True
