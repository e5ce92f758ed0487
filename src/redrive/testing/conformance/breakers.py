"""Circuit breakers: the conditions under which they open, and the items that they hold."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker, Failure, RetryVerdict
from redrive.broker.flows import breakers
from redrive.errors import InvalidSetting, QueueNotFound
from redrive.model.breaker import BreakerState, BreakerStatus
from redrive.model.duration import SECOND
from redrive.model.item import Lease
from redrive.testing.conformance.actions import take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

DOWN = ConnectionError("the other side is down")
RETRY = {"attempts": 100, "base": "10s"}


def guarded(broker: Broker, **breakers: dict[str, Any]) -> None:
    """Create a queue whose breakers open after three failures by default."""
    rules = {kind: {"failures": 3, **rule} for kind, rule in breakers.items()}
    broker.create_queue("jobs", retry=RETRY, breakers=rules)


def fail_all(broker: Broker, leases: list[Lease], error: BaseException | Failure = DOWN) -> None:
    """Report the same failure for all leases."""
    for lease in leases:
        broker.fail(lease, error)


def maintain(broker: Broker, clock: FakeClock, duration: str = "1s") -> None:
    """Advance the clock, and run maintenance until nothing is left to do."""
    clock.advance(duration)
    while broker.run_maintenance().full:
        pass
    broker.run_maintenance()


def break_down(broker: Broker, clock: FakeClock, count: int = 3) -> list[Lease]:
    """Put items, and let all fail, so that a breaker opens."""
    broker.put_many("jobs", range(count))
    leases = take_all(broker)
    fail_all(broker, leases)
    maintain(broker, clock)
    return leases


def only(broker: Broker) -> BreakerStatus:
    """Return the only breaker that is not closed."""
    (found,) = broker.list_breakers()
    return found


class OpeningConformance(Suite):
    """Conditions under which a breaker opens."""

    def test_breaker_opens_after_so_many_failures(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        broker.put_many("jobs", range(3))
        leases = take_all(broker)
        fail_all(broker, leases[:2])
        maintain(broker, clock)
        assert broker.list_breakers() == ()
        broker.fail(leases[2], DOWN)
        maintain(broker, clock)
        found = only(broker)
        assert (found.queue, found.kind, found.state, found.waiting) == ("jobs", "network", BreakerState.OPEN, 3)
        assert found.reason == "3 failures within 1m"
        assert found.next_probe_at - found.opened_at == 30 * SECOND

    @pytest.mark.parametrize(
        ("kind", "rule", "count"),
        [
            ("network", {"failures": 3}, 3),
            ("queue", {"failures": 2}, 2),
            ("fingerprint", {"failures": 4}, 4),
            ("network", {"share": 0.5, "minimum": 6}, 6),
        ],
    )
    def test_breaker_opens_within_the_second_in_which_its_failures_are_settled(
        self, broker: Broker, clock: FakeClock, kind: str, rule: dict[str, Any], count: int
    ) -> None:
        broker.create_queue("jobs", retry=RETRY, breakers={kind: rule})
        maintain(broker, clock)
        broker.put_many("jobs", range(count))
        opened: list[bool] = []
        for lease in take_all(broker):
            broker.fail(lease, DOWN)
            broker.run_maintenance()
            opened.append(bool(broker.list_breakers()))
        assert opened == [False] * (count - 1) + [True]

    def test_breaker_opens_in_time_by_items_that_die_into_another_queue(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", breakers={"queue": {"failures": 2}})
        maintain(broker, clock)
        broker.put_many("jobs", range(2))
        fail_all(broker, take_all(broker))
        broker.run_maintenance()
        assert only(broker).kind == "queue"

    def test_failures_outside_the_window_do_not_count(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={"window": "10s"})
        broker.put_many("jobs", range(4))
        for lease in take_all(broker):
            broker.fail(lease, DOWN)
            maintain(broker, clock, "6s")
        assert broker.list_breakers() == ()

    def test_failures_of_other_kinds_do_not_count(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        broker.put_many("jobs", range(9))
        fail_all(broker, take_all(broker), ValueError("bad data"))
        maintain(broker, clock)
        assert broker.list_breakers() == ()

    def test_failures_of_other_queues_do_not_count(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        broker.create_queue("others", retry=RETRY)
        broker.put_many("others", range(9))
        fail_all(broker, take_all(broker, "others"))
        maintain(broker, clock)
        assert broker.list_breakers() == ()

    def test_deaths_count(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", breakers={"network": {"failures": 3}})
        broker.put_many("jobs", range(3))
        fail_all(broker, take_all(broker))
        maintain(broker, clock)
        assert only(broker).kind == "network"

    def test_share_of_failures_over_a_minimum(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=RETRY, breakers={"queue": {"share": 0.5, "minimum": 10}})
        broker.run_maintenance()
        broker.put_many("jobs", range(20))
        leases = take_all(broker)
        fail_all(broker, leases[:4])
        for lease in leases[4:9]:
            broker.complete(lease)
        maintain(broker, clock)
        assert broker.list_breakers() == ()  # 4 of 9 failed: below the minimum of 10
        broker.complete(leases[9])
        maintain(broker, clock)
        assert broker.list_breakers() == ()  # 4 of 10 failed: below the share of 0.5
        fail_all(broker, leases[10:12])
        maintain(broker, clock)
        assert only(broker).reason == "6 of 12 deliveries failed within 1m"

    def test_each_fingerprint_has_its_own(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, fingerprint={})
        broker.put_many("jobs", range(7))
        leases = take_all(broker)
        fail_all(broker, leases[:3], Failure("ValueError", "no such column"))
        fail_all(broker, leases[3:5], Failure("ValueError", "another thing"))
        maintain(broker, clock)
        fingerprint = broker.get(leases[0].id).history[-1].failure.fingerprint  # type: ignore[union-attr]
        assert only(broker).kind == f"fingerprint:{fingerprint}"
        assert only(broker).waiting == 3

    def test_no_more_than_a_hundred_fingerprints(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", retry=RETRY, breakers={"fingerprint": {"failures": 1}})
        broker.put_many("jobs", range(130))
        for number, lease in enumerate(take_all(broker)):
            broker.fail(lease, Failure("ValueError", f"thing {'x' * number}", fingerprint=f"{number:016x}"))
        maintain(broker, clock)
        maintain(broker, clock)
        assert len(broker.list_breakers()) == 100

    def test_failures_are_counted_from_the_feed_after_a_restart(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        self.require("is_durable")
        first = open_broker()
        guarded(first, network={})
        first.put_many("jobs", range(3))
        leases = take_all(first)
        fail_all(first, leases[:2])
        maintain(first, clock)
        second = open_broker()
        second.fail(leases[2].token, DOWN)
        maintain(second, clock)
        assert only(second).kind == "network"

    def test_failures_of_the_window_are_counted_after_a_restart_behind_many_others(
        self, open_broker: OpenBroker, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.require("is_durable")
        monkeypatch.setattr(breakers, "_FEED_PAGE", 4)
        first = open_broker()
        guarded(first, network={})
        first.create_queue("others", retry=RETRY)
        for queue, count in (("jobs", 3), ("others", 11)):
            first.put_many(queue, range(count))
            fail_all(first, take_all(first, queue))
        second = open_broker()
        maintain(second, clock)
        assert only(second).queue == "jobs"

    def test_rules_are_checked(self, broker: Broker) -> None:
        wrong: list[Any] = [
            {"netwrok": {}},
            {"queue": {"share": 1.5}},
            {"queue": {"share": 0}},
            {"queue": {"share": float("nan")}},
            {"queue": {"window": 0}},
            {"queue": {"failures": 0}},
            {"queue": {"probes": 0}},
            {"queue": {"probes": True}},
            {"queue": {"open_for": "0s"}},
            {"queue": {"threshold": 5}},
            {"queue": 5},
            5,
        ]
        for rules in wrong:
            with pytest.raises(InvalidSetting, match="breakers"):
                broker.create_queue("jobs", breakers=rules)
        with pytest.raises(InvalidSetting, match="let 'feed' keep failed and dead"):
            broker.create_queue("jobs", breakers={"queue": {}}, feed="none")
        with pytest.raises(QueueNotFound):
            broker.get_queue("jobs")


class HoldingConformance(Suite):
    """Items that an open breaker holds, and items that it does not hold."""

    def test_what_failed_before_it_opened_is_held(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        leases = break_down(broker, clock)
        assert [broker.get(lease.id).held_by for lease in leases] == [("breaker:jobs:network",)] * 3
        clock.advance("15s")
        assert take_all(broker) == []

    def test_what_fails_while_it_is_open_is_held_from_its_failure_on(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        broker.put_many("jobs", range(5))
        leases = take_all(broker)
        fail_all(broker, leases[:3])
        maintain(broker, clock)
        broker.fail(leases[3], DOWN)
        assert broker.get(leases[3].id).held_by == ("breaker:jobs:network",)
        assert broker.get(leases[3].id).counters.failures == 1

    def test_new_items_and_other_failures_pass(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        broker.put("jobs", "new")
        lease = take(broker)
        assert lease.value == "new"
        broker.fail(lease, ValueError("bad data"))
        assert broker.get(lease.id).held_by == ()
        clock.advance("10s")
        assert take(broker).id == lease.id

    def test_captured_failure_is_held(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        break_down(broker, clock)
        for verdict in (None, RetryVerdict()):
            receipt = broker.put_failed("jobs", "outside", DOWN, verdict=verdict)
            assert broker.get(receipt.id).held_by == ("breaker:jobs:network",)

    def test_item_waits_for_all_of_its_breakers(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={}, fingerprint={})
        leases = break_down(broker, clock)
        assert len(broker.get(leases[0].id).held_by) == 2
        broker.close_breaker("jobs", "network")
        clock.advance("10s")
        assert take_all(broker) == []

    def test_retry_by_a_person_does_not_end_the_hold(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        leases = break_down(broker, clock)
        broker.retry(leases[0].id)
        assert take_all(broker) == []
        assert broker.get(leases[0].id).held_by == ("breaker:jobs:network",)

    def test_hold_of_an_item_that_died_holds_again_after_its_redrive(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, network={})
        leases = break_down(broker, clock)
        broker.bury_items(leases[0].id)
        broker.redrive(leases[0].id)
        assert take_all(broker) == []
        broker.close_breaker("jobs", "network")
        assert [lease.id for lease in take_all(broker)] == [leases[0].id]

    def test_pause_by_a_person_is_not_ended_by_a_closing_breaker(self, broker: Broker, clock: FakeClock) -> None:
        guarded(broker, queue={})
        break_down(broker, clock)
        broker.pause_queue("jobs")
        broker.close_breaker("jobs")
        clock.advance("10s")
        assert broker.get_queue("jobs").paused
        assert take_all(broker) == []
        broker.resume_queue("jobs")
        assert len(take_all(broker)) == 3
