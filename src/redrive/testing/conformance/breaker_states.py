"""The state of the breakers of a queue: part of the queue, and changed by version."""

from __future__ import annotations

import msgspec

from redrive.clock import Instant
from redrive.contract.admin_calls import CreateQueue, SetBreakers, UpdateQueue
from redrive.contract.item_calls import Settle, StaleSettings
from redrive.contract.queries import GetQueue, ListAudit, ListQueues, ReadFeed
from redrive.errors import QueueNotFound
from redrive.model.gate import BREAKER_GATE, Gate
from redrive.model.item import Status
from redrive.model.judge import OutcomeKind, RetryVerdict
from redrive.model.queue import Queue, QueueSettings
from redrive.testing.conformance.gates import after, breaker, change_of, close, open_gate, set_breakers
from redrive.testing.conformance.suite import StoreDriver, StoreSuite


class SetBreakersConformance(StoreSuite):
    """The state of breakers is part of the queue, and changes by version."""

    def test_breakers_are_kept_with_the_queue(self, direct: StoreDriver) -> None:
        direct.queue()
        now = direct.clock.now()
        ids = tuple(direct.put(b"a", b"b"))
        before = direct.read(GetQueue("jobs"))
        assert (before.breakers, before.gates) == ((), ())
        found = (
            breaker("queue", now, opened_by="ada", mark=7),
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
        old = direct.read(GetQueue("jobs"))
        now = set_breakers(direct)
        assert (now.gates, now.version > old.version) == (old.gates, True)
        assert direct.do(change_of(old, breaker("network", direct.clock.now()), gate=None)) == StaleSettings(now)
        assert direct.read(GetQueue("jobs")) == now
        assert direct.read(ListAudit()) == ()

    def test_gate_under_which_something_was_leased_since_is_stale(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        old = close(direct, 0, allowance=2)
        direct.take()
        now = direct.read(GetQueue("jobs"))
        assert now.version == old.version
        assert direct.do(change_of(old, gate=Gate(BREAKER_GATE, Instant(0), 2))) == StaleSettings(now)
        assert direct.read(GetQueue("jobs")) == now
        assert open_gate(direct).gates == ()

    def test_of_two_in_one_transaction_the_first_one_wins(self, direct: StoreDriver) -> None:
        direct.queue()
        queue = direct.read(GetQueue("jobs"))
        calls = [change_of(queue, actor=who) for who in ("ada", "bob")]
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
        changed = set_breakers(direct, breaker("queue", now), gate=gate)
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
        opened = set_breakers(direct, breaker("network", direct.clock.now()))
        direct.do(change_of(opened, actor="bob", note="the peer is back"))
        closed, first = direct.read(ListAudit())
        assert (first.actor, first.verb, first.queue) == ("ada", "open_breaker", "jobs")
        assert (first.ids, first.count, first.note) == ((), 0, "network: 20 failures of network")
        assert (closed.actor, closed.verb, closed.note) == ("bob", "close_breaker", "network: the peer is back")

    def test_feed_says_what_opened_and_closed(self, direct: StoreDriver) -> None:
        direct.queue()
        found = breaker("network", direct.clock.now())
        set_breakers(direct, found)
        closing = msgspec.structs.replace(found, is_closing=True)
        direct.do(change_of(set_breakers(direct, closing), actor="bob"))
        opened, closed = direct.read(ReadFeed()).entries
        assert (opened.kind, opened.queue, opened.id, opened.breaker) == ("breaker_opened", "jobs", None, "network")
        assert (opened.title, opened.actor) == (found.reason, "ada")
        assert (closed.kind, closed.breaker, closed.actor) == ("breaker_closed", "network", "ada")

    def test_unknown_queue_is_refused(self, direct: StoreDriver) -> None:
        assert isinstance(direct.do(SetBreakers("none", (), 1, "ada")), QueueNotFound)

    def test_what_is_ready_arrives_when_the_gate_opens(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a", b"b")
        close(direct, 0, allowance=0)
        opened = change_of(direct.read(GetQueue("jobs")), gate=None)
        assert direct.commit(opened).arrivals.get("jobs", 0) >= 2

    def test_new_time_to_wait_for_is_reported(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.put(b"a")
        close(direct, 60)
        sooner = Gate(BREAKER_GATE, after(direct, 1))
        commit = direct.commit(change_of(direct.read(GetQueue("jobs")), gate=sooner))
        assert "jobs" in commit.arrivals
