"""Circuit breakers: probes, closing, manual changes by an operator, and views."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import BreakerNotOpen, InvalidInput, QueueNotFound
from redrive.model.breaker import BreakerState
from redrive.model.duration import MINUTE, SECOND
from redrive.testing.conformance.actions import Background, take, take_all, values
from redrive.testing.conformance.breakers import DOWN, RETRY, break_down, fail_all, guarded, maintain, only
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock


class ProbeConformance(Suite):
    """Probes of a half-open breaker, and the closing of a breaker."""

    @pytest.mark.parametrize("kind", ["network", "queue"])
    def test_one_probe_is_let_through_and_closes_it(self, broker: Broker, clock: FakeClock, kind: str) -> None:
        guarded(broker, **{kind: {}})
        break_down(broker, clock, 5)
        clock.advance("29s")
        maintain(broker, clock, "0s")
        assert take_all(broker) == []
        maintain(broker, clock)
        (probe,) = take_all(broker)
        assert only(broker).state is BreakerState.HALF_OPEN
        maintain(broker, clock)
        assert take_all(broker) == []
        broker.complete(probe)
        maintain(broker, clock)
        assert broker.list_breakers() == ()
        assert len(take_all(broker)) == 4

    @pytest.mark.parametrize("kind", ["network", "queue"])
    def test_failed_probe_counts_nothing_and_doubles_the_time(
        self, broker: Broker, clock: FakeClock, kind: str
    ) -> None:
        guarded(broker, **{kind: {}})
        break_down(broker, clock)
        maintain(broker, clock, "30s")
        waits = []
        for _ in range(7):
            (probe,) = take_all(broker)
            before = broker.get(probe.id).counters
            broker.fail(probe, DOWN)
            after = broker.get(probe.id)
            assert (after.counters.attempts, after.counters.failures) == (before.attempts - 1, before.failures)
            assert after.history[-1].event == "returned"
            maintain(broker, clock)
            found = only(broker)
            assert found.state is BreakerState.OPEN
            waits.append((found.next_probe_at - clock.now()) // SECOND)
            clock.advance((found.next_probe_at - clock.now()) / SECOND - 1)
            maintain(broker, clock, "0s")
            assert take_all(broker) == []
            maintain(broker, clock)
        assert waits == [60, 120, 240, 480, 600, 600, 600]

    def test_failed_probe_goes_to_the_tail(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        seen = []
        for _ in range(3):
            clock.advance("10m")
            maintain(broker, clock)
            (probe,) = take_all(broker)
            seen.append(probe.value)
            broker.fail(probe, DOWN)
            maintain(broker, clock)
        assert sorted(seen) == [0, 1, 2]

    def test_failure_of_another_kind_shows_that_this_one_is_over(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        maintain(broker, clock, "30s")
        (probe,) = take_all(broker)
        broker.fail(probe, ValueError("bad data"))
        assert broker.get(probe.id).counters.failures == 2
        maintain(broker, clock)
        assert broker.list_breakers() == ()

    def test_several_probes(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={"probes": 2})
        break_down(broker, clock, 6)
        maintain(broker, clock, "30s")
        first, second = take_all(broker)
        broker.complete(first)
        maintain(broker, clock)
        assert take_all(broker) == []
        assert only(broker).state is BreakerState.HALF_OPEN
        broker.complete(second)
        maintain(broker, clock)
        assert broker.list_breakers() == ()

    @pytest.mark.parametrize("kind", ["network", "queue"])
    def test_lost_probe_leaves_nothing_stuck(self, broker: Broker, clock: FakeClock, kind: str) -> None:
        guarded(broker, **{kind: {}})
        break_down(broker, clock)
        maintain(broker, clock, "30s")
        take(broker, lease_timeout="5s")  # the worker never settles the probe
        maintain(broker, clock, "2s")
        assert take_all(broker) == []
        maintain(broker, clock, "5s")
        maintain(broker, clock)
        (probe,) = take_all(broker)
        broker.complete(probe)
        maintain(broker, clock)
        assert broker.list_breakers() == ()
        assert len(take_all(broker)) == 2

    def test_probe_that_a_person_drops_is_replaced(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        maintain(broker, clock, "30s")
        (probe,) = take_all(broker)
        broker.drop(probe.id, force=True)
        maintain(broker, clock)
        (another,) = take_all(broker)
        assert another.id != probe.id
        assert only(broker).state is BreakerState.HALF_OPEN

    def test_breaker_for_which_nothing_waits_closes(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        for lease in break_down(broker, clock):
            broker.drop(lease.id)
        maintain(broker, clock, "30s")
        assert broker.list_breakers() == ()

    def test_failures_from_before_the_closing_do_not_open_it_again(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={"window": "1h"})
        break_down(broker, clock)
        maintain(broker, clock, "30s")
        broker.complete(take(broker))
        maintain(broker, clock)
        maintain(broker, clock)
        assert broker.list_breakers() == ()
        leases = take_all(broker)
        fail_all(broker, leases)
        maintain(broker, clock)
        assert broker.list_breakers() == ()  # only two failures after it closed
        maintain(broker, clock, "10s")
        broker.fail(take(broker), DOWN)
        maintain(broker, clock)
        assert only(broker).kind == "network"

    def test_two_brokers_let_one_probe_through(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("supports_processes")
        brokers = [open_broker() for _ in range(2)]
        for kind in ("network", "queue"):
            brokers[0].create_queue(kind, retry=RETRY, breakers={kind: {"failures": 3}})
            brokers[0].put_many(kind, range(20))
            fail_all(brokers[0], take_all(brokers[0], kind))
        for _ in range(40):
            clock.advance("1s")
            for broker in brokers:
                broker.run_maintenance()
        for kind in ("network", "queue"):
            taken = [Background(lambda broker=broker, kind=kind: take_all(broker, kind)) for broker in brokers]  # type: ignore[misc]
            assert sum(len(each.result()) for each in taken) == 1
            for broker in brokers:
                broker.run_maintenance()
                assert take_all(broker, kind) == []

    def test_rule_that_is_removed_closes_its_breaker(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        broker.update_queue("jobs", breakers={})
        maintain(broker, clock)
        assert broker.list_breakers() == ()
        clock.advance("10s")
        assert len(take_all(broker)) == 3

    def test_open_breaker_survives_a_restart(self, open_broker: OpenBroker, clock: FakeClock) -> None:
        self.require("is_durable")
        first = open_broker()
        guarded(first, network={})
        break_down(first, clock)
        first.close()
        second = open_broker()
        maintain(second, clock)
        assert only(second).state is BreakerState.OPEN
        clock.advance("15s")
        assert take_all(second) == []
        maintain(second, clock, "15s")
        second.complete(take(second))
        maintain(second, clock)
        assert second.list_breakers() == ()


class BreakerControlConformance(Suite):
    """Manual changes of breakers by an operator, and their views."""

    def test_person_opens_and_closes(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=RETRY)
        broker.put_many("jobs", range(3))
        opened = broker.open_breaker("jobs", open_for="10m", note="the bank is down", actor="ada")
        assert (opened.reason, opened.opened_by, opened.waiting) == ("the bank is down", "ada", 3)
        assert opened.next_probe_at - opened.opened_at == 10 * MINUTE
        assert broker.open_breaker("jobs", actor="bob").opened_by == "ada"
        assert take_all(broker) == []
        assert broker.close_breaker("jobs", note="it is back", actor="bob") == 0
        assert values(take_all(broker)) == [0, 1, 2]
        verbs = [(entry.verb, entry.actor, entry.note) for entry in broker.audit(limit=10)]
        assert ("open_breaker", "ada", "queue: the bank is down") in verbs
        assert ("close_breaker", "bob", "queue: it is back") in verbs

    def test_breaker_of_a_person_is_probed_like_any(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=RETRY)
        broker.put_many("jobs", range(3))
        fail_all(broker, take_all(broker))
        assert broker.open_breaker("jobs", "network", actor="ada").waiting == 3
        maintain(broker, clock, "31s")
        maintain(broker, clock)
        broker.complete(take(broker))
        maintain(broker, clock)
        assert broker.list_breakers("jobs") == ()

    def test_closing_releases_all(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock, 50)
        assert broker.close_breaker("jobs", "network") == 50
        assert broker.list_breakers() == ()
        clock.advance("10s")
        assert len(take_all(broker)) == 50

    def test_what_cannot_be_opened_or_closed(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        for kind in ("netwrok", "", "fingerprint", "fingerprint:xyz", 5):
            with pytest.raises(InvalidInput, match="no kind of breaker"):
                broker.open_breaker("jobs", kind)  # type: ignore[arg-type]
        with pytest.raises(BreakerNotOpen, match="breaker 'network' of queue 'jobs' is not open"):
            broker.close_breaker("jobs", "network")
        with pytest.raises(QueueNotFound):
            broker.open_breaker("others")
        with pytest.raises(QueueNotFound):
            broker.list_breakers("others")
        assert broker.list_breakers() == ()

    def test_feed_and_health_show_it(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        assert any("breaker" in warning for warning in broker.health().warnings)
        broker.close_breaker("jobs", "network", actor="ada")
        assert broker.health().is_healthy
        kinds = ("breaker_opened", "breaker_closed")
        entries = broker.feed(kinds=kinds, limit=10).entries
        assert [(entry.kind, entry.queue, entry.breaker, entry.id) for entry in entries] == [
            ("breaker_opened", "jobs", "network", None),
            ("breaker_closed", "jobs", "network", None),
        ]
        assert (entries[0].title, entries[1].actor) == ("3 failures within 1m", "ada")

    def test_hooks_are_called(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        seen: list[str] = []
        broker.on_breaker_change(lambda change: seen.append(f"{change.kind} {change.queue} {change.breaker}"))
        maintain(broker, clock)
        break_down(broker, clock)
        maintain(broker, clock)
        Background(lambda: [None for _ in iter(lambda: not seen, False)]).result()
        assert seen == ["breaker_opened jobs network"]
        with pytest.raises(InvalidInput):
            broker.on_breaker_change(5)  # type: ignore[arg-type]
