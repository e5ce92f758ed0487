"""Health: what a person should look at."""

from __future__ import annotations

from redrive import Broker
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import kill
from redrive.testing.conformance.pairs import Pair, PairSuite
from redrive.testing.conformance.suite import Suite


class HealthConformance(Suite):
    """A store that nothing is wrong with."""

    def test_new_store_is_well(self, broker: Broker) -> None:
        health = broker.health()
        assert health.is_well
        assert health.durability == broker.durability()
        assert health.durability.survives in str(health)


class StuckConformance(PairSuite):
    """Items that do not arrive in another store."""

    def test_items_that_do_not_arrive_are_told_of_after_five_minutes(self, pair: Pair, clock: FakeClock) -> None:
        pair.furnish()
        kill(pair.source, "x")
        clock.advance("5m")
        assert pair.source.health().is_well
        clock.advance("1s")
        (warning,) = pair.source.health().warnings
        assert f"on their way to {pair.there('morgue')} for 5m1s" in warning
        assert warning in str(pair.source.health())
        pair.source.step()
        assert pair.source.health().is_well
