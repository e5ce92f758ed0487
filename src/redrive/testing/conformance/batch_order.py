"""The order of calls in one batch, which a store keeps also where it executes a batch in parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from redrive.contract import Call
from redrive.contract.item_calls import Complete, Extend, LeaseByIds, LeaseItems, ReturnLease, Settle
from redrive.contract.queries import ReadFeed
from redrive.errors import IdempotencyConflict, LeaseLost, QueueFull
from redrive.model.death import DeadReason
from redrive.model.duration import HOUR, MINUTE
from redrive.model.failure import Failure
from redrive.model.feed import FeedKind
from redrive.model.ids import Token
from redrive.model.item import Lease, Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.testing.conformance.replies import request
from redrive.testing.conformance.suite import StoreDriver, StoreSuite, put


def dead_in_place(direct: StoreDriver) -> Lease:
    """Lease a dead letter of `jobs` by its id."""
    direct.put(b"dead", priority=9)
    (lease,) = direct.do(LeaseByIds((direct.bury(direct.take()).id,), "w", include_dead=True))
    assert isinstance(lease, Lease)
    return lease


def dead_in_a_dead_queue(direct: StoreDriver) -> Lease:
    """Lease a dead letter of `morgue`, a dead queue."""
    direct.queue("morgue", feed=tuple(FeedKind))
    direct.put(b"dead", priority=9)
    direct.bury(direct.take(), "morgue")
    return direct.take("morgue")


LETTERS = pytest.mark.parametrize("take_letter", [dead_in_place, dead_in_a_dead_queue])
TakeOne = Callable[[StoreDriver], Lease]
ENDS: dict[str, Callable[[Token], Call]] = {
    "completed": Complete,
    "returned": lambda token: ReturnLease(token, "not now"),
}


class BatchOrderConformance(StoreSuite):
    """A call takes effect after those that come before it in the batch, in each part that a store executes."""

    def test_answered_death_is_before_the_leases_of_its_batch(self, direct: StoreDriver) -> None:
        create_queues(direct)
        dying = request(direct)
        direct.put(b"next")
        last = last_number(direct)
        direct.commit(death(direct, dying.token), LeaseItems("jobs", 5))
        assert feed_after(direct, last) == ["dead jobs", "leased jobs"]

    def test_reply_to_a_death_is_leased_in_the_same_batch(self, direct: StoreDriver) -> None:
        create_queues(direct)
        leased, died = direct.commit(LeaseItems("replies", 5), death(direct, request(direct).token)).results
        assert isinstance(died, Settled)
        assert len(leased.leases) == 1

    def test_refusal_of_an_old_token_says_that_the_item_is_dead_by_the_same_batch(self, direct: StoreDriver) -> None:
        create_queues(direct)
        old = request(direct)
        direct.do(ReturnLease(old.token))
        (new,) = direct.do(LeaseByIds((old.id,), "w"))
        late = (release(direct, old.token), Complete(old.token), ReturnLease(old.token), Extend(old.token))
        died, *refusals = direct.commit(death(direct, new.token), *late).results
        assert died.status is Status.DEAD
        assert [(type(each), each.status) for each in refusals] == [(LeaseLost, Status.DEAD)] * len(late)

    @pytest.mark.parametrize("end", ENDS)
    def test_end_of_a_delivery_is_after_an_answered_death(self, direct: StoreDriver, end: str) -> None:
        create_queues(direct)
        direct.put(b"other", priority=9)
        other, dying = direct.take(), request(direct)
        last = last_number(direct)
        direct.commit(death(direct, dying.token), ENDS[end](other.token))
        assert feed_after(direct, last) == ["dead jobs", f"{end} jobs"]

    @LETTERS
    def test_of_two_completions_with_one_key_the_first_of_the_batch_puts(
        self, direct: StoreDriver, take_letter: TakeOne
    ) -> None:
        """The first completes a dead letter, which a store may execute differently."""
        create_queues(direct)
        direct.queue("next", idempotency_timeout=HOUR)
        direct.put(b"released", b"plain", priority=9)
        released, plain = direct.lease(limit=2)
        letter = take_letter(direct)
        last = last_number(direct)
        first, between, second = direct.commit(
            Complete(letter.token, puts=(put(b"1", queue="next", idempotency_key="k"),)),
            release(direct, released.token),
            Complete(plain.token, puts=(put(b"2", queue="next", idempotency_key="k"),)),
        ).results
        assert isinstance(first, Settled)
        assert isinstance(between, Settled)
        assert isinstance(second, IdempotencyConflict)
        assert [lease.payload for lease in direct.lease("next", 5)] == [b"1"]
        assert feed_after(direct, last) == [f"done {letter.queue}", "released jobs"]
        assert direct.get(plain.id).status is Status.ACTIVE

    @LETTERS
    def test_completion_makes_no_place_for_a_put_of_a_completion_before_it(
        self, direct: StoreDriver, take_letter: TakeOne
    ) -> None:
        create_queues(direct)
        letter = take_letter(direct)
        direct.queue("next", max_size=1)
        direct.put(b"active", queue="next")
        active = direct.take("next")
        calls = (Complete(letter.token, puts=(put(b"1", queue="next"),)), Complete(active.token))
        refused, completed = direct.commit(*calls).results
        assert isinstance(refused, QueueFull)
        assert isinstance(completed, Settled)
        assert direct.get(letter.id).status is Status.ACTIVE

    def test_put_is_before_the_leases_of_its_batch_beside_one_that_is_refused(self, direct: StoreDriver) -> None:
        direct.queue(max_size=1)
        first, second, leased = direct.commit(plain_put(b"1"), plain_put(b"2"), LeaseItems("jobs", 2)).results
        assert [type(first), type(second)] == [tuple, QueueFull]
        assert [lease.payload for lease in leased.leases] == [b"1"]

    def test_completion_makes_no_place_for_a_put_of_its_batch(self, direct: StoreDriver) -> None:
        direct.queue(max_size=2)
        direct.put(b"active")
        active = direct.take()
        results = direct.commit(plain_put(b"1"), plain_put(b"2"), Complete(active.token)).results
        assert [type(result) for result in results] == [tuple, QueueFull, Settled]

    def test_place_in_a_queue_is_for_the_first_put_of_the_batch(self, direct: StoreDriver) -> None:
        direct.queue(max_size=1)
        keyed = put(b"3", idempotency_key="k")
        results = direct.commit(plain_put(b"1"), plain_put(b"2"), keyed, LeaseItems("jobs", 3)).results
        assert [type(result) for result in results[:3]] == [tuple, QueueFull, QueueFull]
        assert [lease.payload for lease in results[3].leases] == [b"1"]

    def test_answered_death_is_before_the_leases_beside_a_put_that_is_refused(self, direct: StoreDriver) -> None:
        create_queues(direct, max_size=2)
        calls = (plain_put(b"1"), plain_put(b"2"), death(direct, request(direct).token), LeaseItems("replies", 5))
        *results, leased = direct.commit(*calls, LeaseItems("jobs", 5)).results[2:]
        assert isinstance(results[0], Settled)
        assert len(results[1].leases) == 1
        assert [lease.payload for lease in leased.leases] == [b"1"]


def create_queues(direct: StoreDriver, **settings: Any) -> None:
    """Create `jobs`, whose feed has every event, and `replies`."""
    direct.queue(feed=tuple(FeedKind), **settings)
    direct.queue("replies")


def death(direct: StoreDriver, token: Token) -> Settle:
    """Return a death in `jobs` by a failure that is final."""
    verdict = Dead(DeadReason.RETRIES_EXHAUSTED)
    return Settle(token, OutcomeKind.FAILED, verdict, direct.version(), Failure("ValueError", "boom"))


def release(direct: StoreDriver, token: Token) -> Settle:
    """Return a counted release of an item in `jobs`, for later."""
    return Settle(token, OutcomeKind.RELEASED, RetryVerdict(MINUTE), direct.version())


def plain_put(payload: bytes) -> Call:
    """Return a put of one item without options."""
    return put(payload, is_plain=True)


def last_number(direct: StoreDriver) -> int | None:
    """Return the number of the last entry of the feed."""
    entries = direct.read(ReadFeed(limit=1000)).entries
    return entries[-1].number if entries else None


def feed_after(direct: StoreDriver, number: int | None) -> list[str]:
    """Return kinds and queues of the entries after a number."""
    return [f"{entry.kind.value} {entry.queue}" for entry in direct.read(ReadFeed(number, 1000)).entries]
