"""Stats: counts by status that agree with a recount, whatever happened."""

from __future__ import annotations

from collections import Counter

from redrive import Broker
from redrive.model.duration import SECOND
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill, places, take, take_all
from redrive.testing.conformance.suite import Suite


def recount(broker: Broker, ids: list[str]) -> dict[str, dict[str, int]]:
    """Where the items of these ids are, by queue and status, counted item by item."""
    found: dict[str, Counter[str]] = {}
    page = broker.find(ids=ids, status="any", limit=len(ids))
    assert page.cursor is None
    for item in page.items:
        found.setdefault(item.queue, Counter())[item.status.value] += 1
    return {queue: dict(counter) for queue, counter in found.items()}


class StatsConformance(Suite):
    """Counts by status, the oldest ready item, and totals for rates."""

    def test_empty_queue_counts_nothing(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        stats = broker.stats("jobs")
        assert (stats.queue, stats.at, places(stats)) == ("jobs", clock.now(), {})
        assert (stats.dead_letters, stats.oldest_ready_at, stats.oldest_age) == (0, None, 0)
        assert (stats.put_total, stats.completed_total, stats.failed_total, stats.dead_total) == (0, 0, 0, 0)

    def test_counts_agree_with_a_recount_after_mixed_operations(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("morgue")
        broker.create_queue("mails", dead_queue="morgue", keep_completed="1h")
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"}, keep_completed="1h", keep_dead="2h")
        ids: list[str] = []
        for queue in ("jobs", "mails"):
            for n in range(60):
                ids.append(broker.put(queue, n, delay=n % 3, expire_timeout="90m" if n % 7 == 0 else None).id)
        for minute in range(40):
            clock.advance("4m")
            for queue in ("jobs", "mails", "morgue"):
                for n, lease in enumerate(broker.lease(queue, 5, lease_timeout="2m")):
                    match (n + minute) % 6:
                        case 0:
                            broker.complete(lease)
                        case 1:
                            broker.fail(lease, "boom")
                        case 2:
                            broker.release(lease)
                        case 3:
                            broker.release(lease, counted=False)
                        case 4:
                            broker.bury(lease)
            if minute % 5 == 0:
                broker.archive(ids[minute : minute + 3])
            if minute % 7 == 0:
                broker.redrive(ids[minute * 2 : minute * 2 + 5])
            if minute % 3 == 0:
                broker.step()
            self.agree(broker, ids)
        broker.restore(ids)
        broker.drop(ids[::4], force=True)
        self.agree(broker, ids)

    def agree(self, broker: Broker, ids: list[str]) -> None:
        """Assert that the counts are those of a recount."""
        counted = {queue: places(broker.stats(queue)) for queue in ("jobs", "mails", "morgue")}
        assert {queue: found for queue, found in counted.items() if found} == recount(broker, ids)

    def test_oldest_ready_item_is_the_one_that_waited_longest(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "later", delay="1h")
        first_at = clock.now()
        broker.put("jobs", "first")
        clock.advance("10s")
        broker.put("jobs", "urgent", priority=9)
        clock.advance("10s")
        stats = broker.stats("jobs")
        assert (stats.oldest_ready_at, stats.oldest_age) == (first_at, 20 * SECOND)
        take_all(broker)
        assert broker.stats("jobs").oldest_ready_at is None

    def test_totals_count_what_happened(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 2})
        broker.put_many("jobs", range(5))
        for lease in broker.lease("jobs", 2):
            broker.complete(lease)
        broker.fail(take(broker), "boom")
        broker.bury(take(broker))
        stats = broker.stats("jobs")
        assert (stats.put_total, stats.completed_total, stats.failed_total, stats.dead_total) == (5, 2, 1, 1)

    def test_totals_do_not_go_down_when_items_go(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.drop(kill(broker).id)
        stats = broker.stats("jobs")
        assert (stats.put_total, stats.dead_total, stats.dead) == (1, 1, 0)

    def test_dead_letters_are_the_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker)
        kill(broker)
        assert broker.stats("jobs").dead_letters == 2
        broker.redrive(dead.id)
        assert broker.stats("jobs").dead_letters == 1
