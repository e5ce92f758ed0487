"""Groups of dead letters by cause, and stats that agree with a recount."""

from __future__ import annotations

from collections import Counter

import pytest

from redrive import Broker
from redrive.errors import QueueNotFound
from redrive.model.duration import SECOND
from redrive.model.group import Group, hour_of
from redrive.testing.conformance.actions import Boom, dead_queue, die, find_all, kill, perform, places, take, take_all
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock


def only(broker: Broker, queue: str | None = None) -> Group:
    """Return the only group."""
    groups = broker.groups(queue)
    assert len(groups) == 1, groups
    return groups[0]


def recounted(broker: Broker) -> dict[str, int]:
    """Return the number of dead letters by fingerprint, counted one by one."""
    return dict(Counter(item.deaths[-1].cause.fingerprint for item in find_all(broker)))


class GroupConformance(Suite):
    """The fields of a group."""

    def test_nothing_dead_gives_no_groups(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        assert broker.groups() == broker.groups("jobs") == ()
        with pytest.raises(QueueNotFound):
            broker.groups("nowhere")

    def test_group_tells_what_its_dead_letters_have_in_common(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        first_at = clock.now()
        die(broker, 2, ConnectionError("host 10.0.0.7 refused"))
        clock.advance("61m")
        newest = kill(broker, "x", "mails", ConnectionError("host 10.0.0.9 refused"))
        group = only(broker)
        assert (group.count, group.first_at, group.last_at) == (3, first_at, clock.now())
        assert (group.error_type, group.error_class) == ("ConnectionError", "network")
        assert group.title == "ConnectionError: host <address> refused"
        assert list(group.queues.items()) == [("morgue", 2), ("mails", 1)]
        assert list(group.hours.items()) == [(hour_of(first_at), 2), (hour_of(clock.now()), 1)]
        assert group.sample == newest.id
        assert group.fingerprint == broker.get(newest.id).deaths[-1].cause.fingerprint
        assert "redrive" in group.advice

    def test_groups_come_largest_first_then_newest(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        for error, count in (("alpha", 2), ("beta", 1), ("gamma", 3), ("delta", 1)):
            die(broker, count, error)
            clock.advance("1s")
        assert [group.title for group in broker.groups()] == [
            f"Error: {n}" for n in ("gamma", "alpha", "delta", "beta")
        ]
        assert [group.count for group in broker.groups(limit=2)] == [3, 2]

    def test_groups_of_one_queue(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        die(broker, 2, "alpha")
        die(broker, 3, "alpha", "mails")
        kill(broker, "x", "mails", "beta")
        assert [(group.count, dict(group.queues)) for group in broker.groups("mails")] == [
            (3, {"mails": 3}),
            (1, {"mails": 1}),
        ]
        assert only(broker, "morgue").count == 2
        assert broker.groups("jobs") == ()
        assert [group.count for group in broker.groups()] == [5, 1]

    def test_deaths_without_an_error_are_grouped_by_their_reason(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", max_losses=1)
        broker.put_many("jobs", range(2))
        broker.lease("jobs", 2)
        clock.advance("1h")
        broker.run_maintenance()
        group = only(broker)
        assert (group.count, group.error_type, group.error_class) == (2, "", "poison")
        assert "do not redrive" in group.advice


class GroupCountConformance(Suite):
    """The counts of a group follow every change of its items."""

    @pytest.mark.parametrize("to_dead_queue", [False, True])
    @pytest.mark.parametrize("verb", ["redrive", "retry", "archive", "drop", "complete_items", "move"])
    def test_who_is_no_dead_letter_any_more_is_not_counted(
        self, broker: Broker, verb: str, to_dead_queue: bool
    ) -> None:
        dead_queue(broker)
        broker.create_queue("other")
        queue = "jobs" if to_dead_queue else "other"
        ids = die(broker, 3, queue=queue)
        if verb == "move":
            broker.move(ids[0], "jobs")
        elif verb == "retry" and to_dead_queue:
            return  # after a retry inside its dead queue, it is still a dead letter
        else:
            getattr(broker, verb)(ids[0])
        assert {group.fingerprint: group.count for group in broker.groups()} == recounted(broker)
        if verb != "move":
            group = only(broker)
            assert (group.count, sum(group.queues.values()), sum(group.hours.values())) == (2, 2, 2)

    def test_completed_from_a_dead_queue_is_not_counted(self, broker: Broker) -> None:
        dead_queue(broker)
        die(broker, 2)
        lease = take(broker, "morgue")
        assert only(broker).count == 2
        broker.complete(lease)
        assert only(broker).count == 1

    def test_restored_is_counted_again_at_its_hour(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        died_at = clock.now()
        (id,) = die(broker, 1)
        broker.archive(id)
        assert broker.groups() == ()
        clock.advance("3h")
        broker.restore(id)
        group = only(broker)
        assert (group.count, dict(group.hours), dict(group.queues)) == (1, {hour_of(died_at): 1}, {"morgue": 1})
        assert (group.first_at, group.last_at, group.sample) == (died_at, died_at, broker.get(id).id)

    def test_first_death_is_the_first_since_the_group_was_empty(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        ids = die(broker, 2)
        clock.advance("1h")
        broker.redrive(ids)
        assert broker.groups() == ()
        clock.advance("1h")
        second_at = clock.now()
        broker.fail(take(broker), "boom")
        clock.advance("1h")
        broker.fail(take(broker), "boom")
        group = only(broker)
        assert (group.count, group.first_at, group.last_at) == (2, second_at, clock.now())
        assert sum(group.hours.values()) == 2

    def test_other_cause_of_the_next_death_is_another_group(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = die(broker, 2, "alpha")
        broker.redrive(ids[0])
        broker.fail(take(broker), Boom("beta"))
        assert {group.title: group.count for group in broker.groups()} == {"Error: alpha": 1, "Boom: beta": 1}

    def test_deleted_queue_takes_its_dead_letters_with_it(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.create_queue("mails")
        die(broker, 2)
        die(broker, 3, queue="mails")
        assert only(broker).count == 5
        broker.delete_queue("mails", confirm=3)
        group = only(broker)
        assert (group.count, dict(group.queues), sum(group.hours.values())) == (2, {"jobs": 2}, 2)
        assert broker.get(group.sample).queue == "jobs"
        broker.delete_queue("jobs", confirm=2)
        assert broker.groups() == ()

    def test_sample_is_the_newest_that_is_left(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = die(broker, 3)
        broker.redrive(ids[2])
        assert only(broker).sample == broker.get(ids[1]).id
        broker.drop(ids[1])
        assert only(broker).sample == broker.get(ids[0]).id

    def test_dropped_by_the_settings_is_not_counted(self, broker: Broker) -> None:
        broker.create_queue("jobs", on_dead="drop")
        kill(broker)
        assert broker.groups() == ()

    def test_retention_takes_from_the_group(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs", keep_dead="1h")
        die(broker, 2)
        clock.advance("50m")
        die(broker, 1)
        clock.advance("11m")
        broker.run_maintenance()
        assert only(broker).count == 1

    def test_born_dead_is_counted(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.put_failed("jobs", 1, "boom")
        assert (only(broker).count, dict(only(broker).queues)) == (1, {"morgue": 1})

    def test_operation_empties_a_group(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        die(broker, 5, "alpha")
        die(broker, 2, "beta")
        alpha = broker.groups()[0]
        perform(broker, clock, "redrive", fingerprint=alpha.fingerprint)
        assert [group.title for group in broker.groups()] == ["Error: beta"]


def recount(broker: Broker, ids: list[str]) -> dict[str, dict[str, int]]:
    """Return the number of these items by queue and status, counted item by item."""
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
                broker.run_maintenance()
            self.agree(broker, ids)
        broker.restore(ids)
        broker.drop(ids[::4], force=True)
        self.agree(broker, ids)

    def agree(self, broker: Broker, ids: list[str]) -> None:
        """Check that the counts agree with a recount."""
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
