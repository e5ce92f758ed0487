"""Gates of a queue: the exact number of leases that it allows, and the instant at which it opens."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive import Lease
from redrive.clock import Instant
from redrive.contract.admin_calls import SetBreakers, SetPaused
from redrive.contract.item_calls import LeaseByIds, Leased, LeaseItems, ReturnLease, Settle, StaleSettings
from redrive.contract.queries import GetQueue
from redrive.errors import QueueGated, QueuePaused
from redrive.model.breaker import Breaker
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.gate import BREAKER_GATE, RETRY_AFTER_GATE, Gate, gate_named
from redrive.model.item import Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.queue import Queue
from redrive.testing.conformance.suite import StoreDriver, StoreSuite


def after(direct: StoreDriver, seconds: int) -> Instant:
    """Return the instant some seconds from now."""
    return Instant(direct.clock.now() + seconds * SECOND)


def close(direct: StoreDriver, seconds: int = 30, allowance: int | None = None, queue: str = "jobs") -> Queue:
    """Close the breaker gate of a queue for some seconds; after that it allows `allowance` leases."""
    until = after(direct, seconds)
    return set_breakers(direct, queue=queue, gate=Gate(BREAKER_GATE, until, allowance))


def open_gate(direct: StoreDriver, queue: str = "jobs") -> Queue:
    """Remove the breaker gate of a queue."""
    return set_breakers(direct, queue=queue, gate=None)


def set_breakers(direct: StoreDriver, *breakers: Breaker, queue: str = "jobs", **options: Any) -> Queue:
    """Set the breakers of a queue, and its breaker gate if `options` has a gate."""
    changed = direct.do(change_of(direct.read(GetQueue(queue)), *breakers, **options))
    assert isinstance(changed, Queue), changed
    return changed


def change_of(queue: Queue, *breakers: Breaker, actor: str = "ada", **options: Any) -> SetBreakers:
    """Return the call that sets the breakers of a queue, and its breaker gate if `options` has a gate or None."""
    former = gate_named(queue.gates, BREAKER_GATE)
    return SetBreakers(queue.name, breakers, queue.version, actor, former_gate=former, **{"gate": former, **options})


def breaker(kind: str, now: Instant, **options: Any) -> Breaker:
    """Return a breaker that opened now, for 30 seconds."""
    until = Instant(now + 30 * SECOND)
    return Breaker(kind, now, until, f"20 failures of {kind}", 30 * SECOND, until, **options)


def look(direct: StoreDriver, limit: int = 1) -> Leased:
    """Lease items, and return the whole result of the store."""
    leased: Leased = direct.do(LeaseItems("jobs", limit))
    return msgspec.structs.replace(leased, leases=tuple(leased.leases))


def refuse(direct: StoreDriver, lease: Lease, seconds: int, kind: OutcomeKind = OutcomeKind.FAILED) -> Any:
    """Fail a delivery with a Retry-After."""
    until = after(direct, seconds)
    verdict = RetryVerdict(0, Status.FAILED)
    failure = Failure("HTTPError", "429 Too Many Requests")
    return direct.do(Settle(lease.token, kind, verdict, direct.version(lease.queue), failure, close_until=until))


class GateConformance(StoreSuite):
    """A closed gate allows no lease; after that, exactly its allowance."""

    def test_closed_gate_gives_nothing_and_says_when_it_opens(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        until = after(direct, 30)
        assert close(direct).gates == (Gate(BREAKER_GATE, until),)
        assert look(direct) == Leased((), next_at=until)
        direct.clock.advance("29s")
        assert look(direct) == Leased((), next_at=until)
        direct.clock.advance("1s")
        assert [lease.payload for lease in look(direct, 5).leases] == [b"a"]

    def test_gate_that_has_passed_changes_nothing(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=20 * SECOND)
        close(direct, 1)
        direct.clock.advance("1s")
        direct.put(*(b"%d" % n for n in range(20)))
        assert len(look(direct, 15).leases) == 15
        assert len(look(direct, 15).leases) == 5
        assert look(direct) == Leased((), next_at=after(direct, 20))
        assert direct.read(GetQueue("jobs")).gates == (Gate(BREAKER_GATE, direct.clock.now()),)

    def test_closed_queue_accepts_puts_and_is_not_swept_by_a_lease(self, direct: StoreDriver) -> None:
        direct.queue(lease_timeout=SECOND)
        direct.put(b"a")
        direct.take()
        close(direct)
        direct.put(b"b")
        direct.put(b"c", delay=SECOND)
        direct.clock.advance("2s")
        assert not look(direct).overdue
        assert direct.stats().pending == 2
        direct.clock.advance("30s")
        assert look(direct).overdue

    def test_allowance_is_given_and_not_one_lease_more(self, direct: StoreDriver) -> None:
        direct.queue()
        ids = direct.put(*(b"%d" % n for n in range(9)))
        close(direct, 1, allowance=3)
        direct.clock.advance("1s")
        assert [lease.id for lease in direct.lease(limit=2)] == ids[:2]
        assert [lease.id for lease in direct.lease(limit=5)] == ids[2:3]
        for limit in (1, 5):
            assert look(direct, limit) == Leased((), next_at=None)
        (gate,) = direct.read(GetQueue("jobs")).gates
        assert gate == Gate(BREAKER_GATE, direct.clock.now(), 3, tuple(ids[:3]))
        assert open_gate(direct).gates == ()
        assert [lease.id for lease in direct.lease(limit=9)] == ids[3:]

    def test_what_comes_back_does_not_renew_the_allowance(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        close(direct, 0, allowance=2)
        for _ in range(2):
            direct.do(ReturnLease(direct.take().token))
        assert look(direct) == Leased(())
        assert direct.stats().pending == 1

    def test_allowance_that_finds_nothing_ready_waits_for_what_falls_due(self, direct: StoreDriver) -> None:
        direct.queue()
        close(direct, 0, allowance=1)
        direct.put(b"a", delay=SECOND)
        assert look(direct) == Leased((), next_at=after(direct, 1))
        direct.clock.advance("1s")
        assert len(look(direct, 2).leases) == 1

    def test_allowance_is_shared_by_the_leases_of_one_transaction(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(*(b"%d" % n for n in range(9)))
        close(direct, 0, allowance=4)
        calls = [LeaseItems("jobs", 1), LeaseItems("jobs", 2, "w1"), LeaseItems("jobs", 1), LeaseItems("jobs", 5, "w2")]
        results = direct.commit(*calls).results
        assert sum(len(each.leases) for each in results) == 4
        assert direct.stats().active == 4

    def test_gates_of_other_queues_do_not_matter(self, direct: StoreDriver) -> None:
        for name in ("jobs", "others"):
            direct.queue(name)
            direct.put(b"a", b"b", queue=name)
        close(direct, 30)
        close(direct, 0, allowance=1, queue="others")
        results = direct.commit(LeaseItems("jobs", 2), LeaseItems("others", 2)).results
        assert [len(each.leases) for each in results] == [0, 1]

    def test_two_gates_are_open_when_both_are(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        refused = direct.take()
        close(direct, 10, allowance=1)
        assert isinstance(refuse(direct, refused, 20), Settled)
        assert look(direct).next_at == after(direct, 20)
        direct.clock.advance("10s")
        assert look(direct).next_at == after(direct, 10)
        direct.clock.advance("10s")
        assert len(look(direct, 3).leases) == 1
        assert look(direct) == Leased(())
        open_gate(direct)
        assert len(look(direct, 3).leases) == 2

    @pytest.mark.parametrize("first", ["pause", "gate"])
    def test_pause_and_gate_are_independent(self, direct: StoreDriver, first: str) -> None:
        direct.queue()
        direct.put(b"a")
        steps = [lambda: direct.do(SetPaused("jobs", True, "ada")), lambda: close(direct)]
        for step in steps if first == "pause" else reversed(steps):
            step()
        queue = direct.read(GetQueue("jobs"))
        assert (queue.paused, len(queue.gates)) == (True, 1)
        assert look(direct) == Leased(())
        resumed = direct.do(SetPaused("jobs", False, "ada"))
        assert (resumed.paused, len(resumed.gates)) == (False, 1)
        assert look(direct).next_at == queue.gates[0].until
        direct.do(SetPaused("jobs", True, "ada"))
        assert open_gate(direct).paused
        assert look(direct) == Leased(())
        direct.do(SetPaused("jobs", False, "ada"))
        assert len(look(direct).leases) == 1

    def test_lease_by_id_is_refused_with_when_and_why(self, direct: StoreDriver) -> None:
        direct.queue()
        (id,) = direct.put(b"a")
        now = direct.clock.now()
        until = Instant(now + 30 * SECOND)
        set_breakers(direct, breaker("queue", now), gate=Gate(BREAKER_GATE, until))
        (refusal,) = direct.do(LeaseByIds((id,)))
        assert isinstance(refusal, QueueGated)
        assert (refusal.queue, refusal.until, refusal.reason) == ("jobs", until, "20 failures of queue")
        direct.do(SetPaused("jobs", True, "ada"))
        assert isinstance(direct.do(LeaseByIds((id,)))[0], QueuePaused)
        direct.do(SetPaused("jobs", False, "ada"))
        direct.clock.advance("30s")
        assert isinstance(direct.do(LeaseByIds((id,)))[0], Lease)

    def test_lease_by_id_counts(self, direct: StoreDriver) -> None:
        direct.queue()
        ids = direct.put(*(b"%d" % n for n in range(5)))
        close(direct, 0, allowance=3)
        results = direct.do(LeaseByIds((ids[4], ids[3])))
        assert [lease.id for lease in results] == [ids[4], ids[3]]
        assert [lease.id for lease in direct.lease(limit=5)] == [ids[0]]
        (refusal,) = direct.do(LeaseByIds((ids[1],)))
        assert isinstance(refusal, QueueGated)
        assert refusal.until is None
        assert direct.read(GetQueue("jobs")).gates[0].leased == (ids[4], ids[3], ids[0])

    def test_ids_of_one_call_share_the_allowance(self, direct: StoreDriver) -> None:
        direct.queue()
        ids = direct.put(*(b"%d" % n for n in range(4)))
        close(direct, 0, allowance=3)
        results = direct.do(LeaseByIds(tuple(ids)))
        assert [type(each) for each in results] == [Lease, Lease, Lease, QueueGated]
        assert direct.stats().active == 3


class RetryAfterGateConformance(StoreSuite):
    """A Retry-After closes the gate of the queue, for one hour at most."""

    def test_gate_closes_with_the_settle(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        version, until = direct.version(), after(direct, 10)
        assert isinstance(refuse(direct, direct.take(), 10), Settled)
        queue = direct.read(GetQueue("jobs"))
        assert (queue.gates, queue.version) == ((Gate(RETRY_AFTER_GATE, until),), version)
        assert look(direct, 5) == Leased((), next_at=until)
        direct.clock.advance("10s")
        assert len(look(direct, 5).leases) == 2

    def test_nothing_is_leased_in_the_transaction_that_closes_it(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        until = after(direct, 10)
        verdict = RetryVerdict(0, Status.FAILED)
        settle = Settle(direct.take().token, OutcomeKind.FAILED, verdict, direct.version(), close_until=until)
        _, leased = direct.commit(settle, LeaseItems("jobs", 5)).results
        assert (list(leased.leases), leased.next_at) == ([], until)

    def test_refusal_says_why(self, direct: StoreDriver) -> None:
        direct.queue()
        _, id = direct.put(b"a", b"b")
        refuse(direct, direct.take(), 10)
        (refusal,) = direct.do(LeaseByIds((id,)))
        assert isinstance(refusal, QueueGated)
        assert "Retry-After" in str(refusal)

    def test_longest_time_is_an_hour(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        refuse(direct, direct.take(), 366 * 24 * 3600)
        assert look(direct).next_at == after(direct, 3600)

    def test_time_in_the_past_closes_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        for seconds in (-60, 0):
            assert isinstance(refuse(direct, direct.take(), seconds), Settled)
        assert direct.read(GetQueue("jobs")).gates == ()

    def test_later_time_counts_while_it_is_closed(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        leases = direct.lease(limit=3)
        for lease, seconds in zip(leases, (10, 30, 20), strict=True):
            refuse(direct, lease, seconds)
        assert look(direct).next_at == after(direct, 30)

    def test_answer_from_before_the_reopening_is_ignored(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b", b"c")
        early, late = direct.lease(limit=2)
        refuse(direct, early, 10)
        direct.clock.advance("10s")
        assert isinstance(refuse(direct, late, 10), Settled)
        later = direct.take()
        assert later.leased_at == direct.clock.now()
        refuse(direct, later, 10)
        assert look(direct).next_at == after(direct, 10)

    def test_death_may_close_it_too(self, direct: StoreDriver) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        direct.put(b"a", b"b")
        until = after(direct, 10)
        dead = Dead(DeadReason.RETRIES_EXHAUSTED, "morgue")
        token, version = direct.take().token, direct.version()
        direct.do(Settle(token, OutcomeKind.FAILED, dead, version, Failure("E", "429"), close_until=until))
        assert look(direct).next_at == until
        assert len(direct.lease("morgue")) == 1

    def test_stale_verdict_closes_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        lease, version = direct.take(), direct.version()
        set_breakers(direct)
        until = after(direct, 60)
        verdict = RetryVerdict(0, Status.FAILED)
        settle = Settle(lease.token, OutcomeKind.FAILED, verdict, version, close_until=until)
        assert isinstance(direct.do(settle), StaleSettings)
        assert direct.read(GetQueue("jobs")).gates == ()
