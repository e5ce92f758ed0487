"""ListStats: the stats of all queues, or of some, in one query."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.contract.queries import ListStats
from redrive.testing.conformance.actions import dead_queue, kill
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite
from redrive.testing.fake_clock import FakeClock


class ListStatsConformance(StoreSuite):
    """The stats of existing queues, by name, each equal to `stats`."""

    def test_each_is_what_stats_gives_and_they_are_by_name(self, broker: Broker, clock: FakeClock) -> None:
        dead_queue(broker)
        broker.create_queue("Mails")
        broker.create_queue("empty")
        broker.put_many("jobs", range(3))
        broker.put("Mails", "soon", delay="1m")
        broker.put("Mails", "held", held_by="x")
        clock.advance("2m")
        broker.put("jobs", "urgent", priority=9)
        kill(broker)
        names = ["Mails", "empty", "jobs", "morgue"]
        expected = tuple(map(broker.stats, names))
        assert broker.list_stats() == expected
        broker.run_maintenance()
        assert broker.list_stats() == tuple(map(broker.stats, names))
        assert [stats.oldest_ready_at is None for stats in expected] == [False, True, False, False]

    @pytest.mark.parametrize(
        ("names", "found"),
        [
            (["jobs"], ["jobs"]),
            (["mails", "jobs", "mails"], ["jobs", "mails"]),
            (["nowhere", "jobs"], ["jobs"]),
            ([], []),
        ],
    )
    def test_only_those_that_are_named_and_there(self, broker: Broker, names: list[str], found: list[str]) -> None:
        for name in ("jobs", "mails", "other"):
            broker.create_queue(name)
            broker.put(name, 1)
        assert [stats.queue for stats in broker.list_stats(names)] == found
        assert all(stats.pending == stats.put_total == 1 for stats in broker.list_stats(names))

    def test_queues_of_other_namespaces_and_deleted_ones_are_not_there(self, open_broker: OpenBroker) -> None:
        here, elsewhere = open_broker("here"), open_broker("elsewhere")
        for name in ("jobs", "gone"):
            here.create_queue(name)
        elsewhere.create_queue("jobs")
        elsewhere.put("jobs", 1)
        here.delete_queue("gone")
        assert [(stats.queue, stats.pending) for stats in here.list_stats()] == [("jobs", 0)]
        assert [(stats.queue, stats.pending) for stats in elsewhere.list_stats()] == [("jobs", 1)]

    def test_there_may_be_no_queue(self, direct: StoreDriver) -> None:
        assert direct.read(ListStats()) == ()
        assert direct.read(ListStats(("jobs",))) == ()

    def test_there_may_be_many_queues(self, direct: StoreDriver) -> None:
        for number in range(40):
            direct.queue(f"q{number:02}")
        direct.put(b"x", queue="q17")
        found = direct.read(ListStats())
        assert [stats.queue for stats in found] == [f"q{number:02}" for number in range(40)]
        assert [stats.queue for stats in found if stats.pending] == ["q17"]
