"""Gates of a queue: how many leases it gives, exactly; when it gives them again; and the state of its breakers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive import Broker, Lease
from redrive.clock import Instant
from redrive.contract.admin_calls import CreateQueue, SetBreakers, SetPaused, UpdateQueue
from redrive.contract.item_calls import LeaseByIds, Leased, LeaseItems, ReturnLease, Settle, StaleSettings
from redrive.contract.queries import GetQueue, ListAudit, ListQueues
from redrive.errors import QueueGated, QueueNotFound, QueuePaused
from redrive.model.breaker import Breaker
from redrive.model.death import DeadReason
from redrive.model.duration import SECOND
from redrive.model.failure import Failure
from redrive.model.gate import BREAKER_GATE, RETRY_AFTER_GATE, Gate
from redrive.model.item import Settled, Status
from redrive.model.judge import Dead, OutcomeKind, RetryVerdict
from redrive.model.queue import Queue, QueueSettings
from redrive.testing.conformance.actions import Background, values
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, Suite
from redrive.testing.conformance.wakeups import waiting
from redrive.testing.fake_clock import FakeClock


def after(direct: StoreDriver, seconds: int) -> Instant:
    """The instant so many seconds from now."""
    return Instant(direct.clock.now() + seconds * SECOND)


def close(direct: StoreDriver, seconds: int = 30, allowance: int | None = None, queue: str = "jobs") -> Queue:
    """Close the gate of the queue's breaker for so many seconds; after that it gives `allowance` leases."""
    until = after(direct, seconds)
    return set_breakers(direct, queue=queue, set_gate=True, gate=Gate(BREAKER_GATE, until, allowance))


def open_gate(direct: StoreDriver, queue: str = "jobs") -> Queue:
    """Remove the gate of the queue's breaker."""
    return set_breakers(direct, queue=queue, set_gate=True)


def set_breakers(direct: StoreDriver, *breakers: Breaker, queue: str = "jobs", **options: Any) -> Queue:
    """Set the breakers of a queue, and its gate by `options`."""
    call = SetBreakers(queue, breakers, direct.version(queue), "ada", "open_breaker", **options)
    changed = direct.do(call)
    assert isinstance(changed, Queue), changed
    return changed


def breaker(kind: str, now: Instant, **options: Any) -> Breaker:
    """A breaker that opened now, for 30 seconds."""
    until = Instant(now + 30 * SECOND)
    return Breaker(kind, now, until, f"20 failures of {kind}", 30 * SECOND, until, **options)


def look(direct: StoreDriver, limit: int = 1) -> Leased:
    """Lease, with all that the store says."""
    leased: Leased = direct.do(LeaseItems("jobs", limit))
    return msgspec.structs.replace(leased, leases=tuple(leased.leases))


def refuse(direct: StoreDriver, lease: Lease, seconds: int, kind: OutcomeKind = OutcomeKind.FAILED) -> Any:
    """End a delivery by a Retry-After of so many seconds."""
    until = after(direct, seconds)
    verdict = RetryVerdict(0, Status.FAILED)
    failure = Failure("HTTPError", "429 Too Many Requests")
    return direct.do(Settle(lease.token, kind, verdict, direct.version(lease.queue), failure, close_until=until))


class GateConformance(StoreSuite):
    """A queue whose gate is closed gives nothing; then it gives its allowance, and not one more."""

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
        set_breakers(direct, breaker("queue", now), set_gate=True, gate=Gate(BREAKER_GATE, until))
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


class SetBreakersConformance(StoreSuite):
    """The state of breakers is part of the queue, and changes by version."""

    def test_breakers_are_kept_with_the_queue(self, direct: StoreDriver) -> None:
        direct.queue()
        now = direct.clock.now()
        ids = tuple(direct.put(b"a", b"b"))
        before = direct.read(GetQueue("jobs"))
        assert (before.breakers, before.gates) == ((), ())
        found = (
            breaker("queue", now, opened_by="ada", is_swept=True),
            breaker("fingerprint:0123456789abcdef", now, probes=ids, probing_since=now, is_closing=True),
        )
        changed = set_breakers(direct, *found)
        assert changed.breakers == found
        assert changed.version > before.version
        assert direct.read(GetQueue("jobs")) == changed
        assert direct.read(ListQueues()) == (changed,)
        assert set_breakers(direct, found[1]).breakers == found[1:]
        assert set_breakers(direct).breakers == ()

    def test_stale_version_changes_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        old = direct.version()
        now = close(direct)
        gate = Gate(BREAKER_GATE, Instant(0))
        stale = direct.do(SetBreakers("jobs", (), old, "ada", "close_breaker", None, True, gate))
        assert stale == StaleSettings(now)
        assert direct.read(GetQueue("jobs")) == now
        assert [entry.verb for entry in direct.read(ListAudit())] == ["open_breaker"]

    def test_of_two_in_one_transaction_the_first_one_wins(self, direct: StoreDriver) -> None:
        direct.queue()
        version = direct.version()
        calls = [SetBreakers("jobs", (), version, who, "open_breaker") for who in ("ada", "bob")]
        results = direct.commit(*calls).results
        assert [type(each) for each in results] == [Queue, StaleSettings]

    def test_verdict_that_was_judged_before_is_judged_again(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        version, lease = direct.version(), direct.take()
        now = set_breakers(direct, breaker("network", direct.clock.now()))
        settle = Settle(lease.token, OutcomeKind.FAILED, RetryVerdict(0, Status.FAILED), version)
        assert direct.do(settle) == StaleSettings(now)
        assert direct.get(lease.id).status is Status.ACTIVE

    def test_update_of_settings_keeps_gates_and_breakers(self, direct: StoreDriver) -> None:
        direct.queue()
        now = direct.clock.now()
        gate = Gate(BREAKER_GATE, now, 2)
        changed = set_breakers(direct, breaker("queue", now), set_gate=True, gate=gate)
        updated = direct.do(UpdateQueue("jobs", QueueSettings(max_losses=3), changed.version, "ada"))
        assert (updated.gates, updated.breakers) == (changed.gates, changed.breakers)
        assert direct.read(GetQueue("jobs")) == updated
        assert direct.do(CreateQueue("jobs", QueueSettings(max_losses=3))) == updated

    def test_gate_changes_only_where_it_is_named(self, direct: StoreDriver) -> None:
        direct.queue()
        gates = close(direct, allowance=2).gates
        assert set_breakers(direct, breaker("network", direct.clock.now())).gates == gates
        assert set_breakers(direct).gates == gates
        assert open_gate(direct).gates == ()

    def test_audit_says_who_did_what_and_why(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.do(SetBreakers("jobs", (), direct.version(), "ada", "close_breaker", "the peer is back"))
        (entry,) = direct.read(ListAudit())
        assert (entry.actor, entry.verb, entry.queue) == ("ada", "close_breaker", "jobs")
        assert (entry.ids, entry.count, entry.note) == ((), 0, "the peer is back")

    def test_unknown_queue_is_refused(self, direct: StoreDriver) -> None:
        assert isinstance(direct.do(SetBreakers("none", (), 1, "ada", "open_breaker")), QueueNotFound)

    def test_what_is_ready_arrives_when_the_gate_opens(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        close(direct, 0, allowance=0)
        opened = SetBreakers("jobs", (), direct.version(), "ada", "close_breaker", None, True)
        assert direct.commit(opened).arrivals.get("jobs", 0) >= 2

    def test_new_time_to_wait_for_is_reported(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        close(direct, 60)
        sooner = Gate(BREAKER_GATE, after(direct, 1))
        commit = direct.commit(SetBreakers("jobs", (), direct.version(), "ada", "open_breaker", None, True, sooner))
        assert "jobs" in commit.arrivals


class RetryAfterConformance(StoreSuite):
    """A peer that asks to be left alone closes the gate of the queue, for an hour at most."""

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


class GateWaitConformance(StoreSuite):
    """A waiting worker is woken when a gate opens, by time or by hand."""

    def test_woken_when_the_time_is_over(self, broker: Broker, direct: StoreDriver, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        close(direct, 30)
        worker = waiting(broker, clock)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_though_the_item_came_while_it_was_closed(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs")
        worker = waiting(broker, clock)
        close(direct, 30)
        broker.put("jobs", 1)
        clock.advance("30s")
        assert values(worker.result()) == [1]

    def test_woken_when_the_gate_is_removed(self, broker: Broker, direct: StoreDriver, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        close(direct, 0, allowance=0)
        worker = waiting(broker, clock)
        version = broker.get_queue("jobs").version
        call = SetBreakers("jobs", (), version, "ada", "close_breaker", None, True)
        broker._core.call(call)
        assert values(worker.result()) == [1]

    def test_all_that_wait_are_woken_one_after_the_other(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(3))
        close(direct, 30)
        workers = [waiting(broker, clock) for _ in range(3)]
        clock.advance("30s")
        assert sorted(value for each in workers for value in values(each.result())) == [0, 1, 2]

    def test_threads_of_one_broker_share_the_allowance(self, broker: Broker, direct: StoreDriver) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", range(40))
        close(direct, 0, allowance=5)
        workers = [Background(lambda: sum(len(broker.lease("jobs", 2)) for _ in range(5))) for _ in range(4)]
        assert sum(worker.result() for worker in workers) == 5

    def test_closed_queue_with_due_items_leaves_maintenance_idle(
        self, broker: Broker, direct: StoreDriver, clock: FakeClock
    ) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1, delay="1s")
        close(direct, 600)
        clock.advance("1s")
        broker.run_maintenance()
        assert broker.run_maintenance().promoted == 0
        assert broker.lease("jobs") == []


class SharedGateConformance(Suite):
    """Gates among several brokers of one store, and after a restart."""

    def test_allowance_is_exact_among_brokers(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(3)]
        brokers[0].create_queue("jobs")
        brokers[0].put_many("jobs", range(20))
        assert [len(broker.lease("jobs")) for broker in brokers] == [1, 1, 1]
        self.set_gate(brokers[1], allowance=4)
        assert [len(brokers[n % 3].lease("jobs")) for n in range(7)] == [1, 1, 1, 1, 0, 0, 0]

    def test_allowance_is_exact_among_threads(self, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(4)]
        brokers[0].create_queue("jobs")
        brokers[0].put_many("jobs", range(60))
        for allowance in (1, 3, 7):
            self.set_gate(brokers[0], allowance=allowance)
            workers = [
                Background(lambda broker=broker: sum(len(broker.lease("jobs", 2)) for _ in range(5)))  # type: ignore[misc]
                for broker in brokers
            ]
            assert sum(worker.result() for worker in workers) == allowance

    def test_gate_closed_by_one_holds_for_all(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("supports_processes")
        one, two = open_broker(), open_broker()
        one.create_queue("jobs")
        one.put_many("jobs", range(3))
        (lease,) = two.lease("jobs")
        StoreDriver(two._core.store, clock).do(
            Settle(
                lease.token,
                OutcomeKind.FAILED,
                RetryVerdict(0, Status.FAILED),
                two.get_queue("jobs").version,
                close_until=Instant(clock.now() + 10 * SECOND),
            )
        )
        assert one.lease("jobs") == []
        clock.advance("10s")
        assert len(one.lease("jobs", 5)) == 3

    def test_gates_and_breakers_survive_a_restart(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("is_durable")
        with open_broker() as before:
            before.create_queue("jobs")
            before.put_many("jobs", range(5))
            self.set_gate(before, breaker("queue", clock.now()), allowance=3)
            assert len(before.lease("jobs", 2)) == 2
            queue = before.get_queue("jobs")
        with open_broker() as after:
            assert after.get_queue("jobs") == queue
            assert len(queue.gates[0].leased) == 2
            assert len(after.lease("jobs", 5)) == 1

    def set_gate(self, broker: Broker, *breakers: Breaker, allowance: int) -> None:
        """Give so many leases from now on."""
        gate = Gate(BREAKER_GATE, Instant(0), allowance)
        version = broker.get_queue("jobs").version
        call = SetBreakers("jobs", breakers, version, "ada", "open_breaker", None, True, gate)
        (changed,) = broker._core.store.commit([call]).results
        assert isinstance(changed, Queue), changed
