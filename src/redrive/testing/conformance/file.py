"""What the retry of a redrive.toml does to items: cooldowns, deaths, and edits that hold for the next failure."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import InvalidFile, WrongStatus
from redrive.model.item import Counters
from redrive.testing.clock import FakeClock
from redrive.testing.conformance.deliveries import take, take_all
from redrive.testing.conformance.managed import applied
from redrive.testing.conformance.suite import OpenBroker, Suite

THREE = '[queue.jobs]\nretry = { attempts = 3, cooldown = "30s" }\n'


class FileConformance(Suite):
    """Queues that a file configures."""

    def test_failing_item_is_tried_after_each_cooldown_and_dead_after_the_last_try(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        applied(broker, THREE)
        receipt = broker.put("jobs", 1)
        for failures in (1, 2):
            settled = broker.fail(take(broker), "boom")
            assert (settled.status, settled.counters.failures) == ("failed", failures)
            assert take_all(broker) == []
            clock.advance("30s")
            broker.step()
            assert broker.get(receipt.id).counters.failures == failures
        settled = broker.fail(take(broker), "boom")
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")
        clock.advance("1h")
        broker.step()
        assert take_all(broker) == []

    def test_cooldown_ends_at_its_instant_and_not_before(self, broker: Broker, clock: FakeClock) -> None:
        applied(broker, THREE)
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        clock.advance("29.999999s")
        broker.step()
        assert take_all(broker) == []
        clock.advance("0.001ms")
        assert len(take_all(broker)) == 1

    def test_cooldown_goes_on_when_the_program_is_started_again(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        self.require("durable")
        first = open_broker()
        applied(first, THREE)
        first.put("jobs", 1)
        first.fail(take(first), "boom")
        first.close()
        clock.advance("30s")
        second = open_broker()
        assert applied(second, THREE).is_nothing
        assert take(second).failures == 1

    @pytest.mark.parametrize("text", ["[queue.jobs]\n", "[queue.jobs]\nretry = { attempts = 0 }\n"])
    def test_without_retry_the_first_failure_is_final(self, broker: Broker, text: str) -> None:
        applied(broker, text)
        broker.put("jobs", 1)
        assert broker.fail(take(broker), "boom").status == "dead"

    def test_dead_item_comes_back_by_hand_with_all_its_tries(self, broker: Broker, clock: FakeClock) -> None:
        applied(broker, THREE)
        receipt = broker.put("jobs", 1)
        for _ in range(3):
            broker.fail(take(broker), "boom")
            clock.advance("30s")
        settled = broker.retry(receipt.id)
        assert (settled.status, settled.counters) == ("pending", Counters(deliveries=3, redrives=1))
        assert [broker.fail(take(broker), "boom").status for _ in (1, 2, 3) if clock.advance("30s")] == [
            "failed",
            "failed",
            "dead",
        ]

    def test_failed_item_is_tried_at_once_by_hand(self, broker: Broker) -> None:
        applied(broker, THREE)
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        assert broker.retry(receipt.id).status == "pending"
        assert take(broker).id == receipt.id

    def test_retry_of_a_pending_item_is_an_error(self, broker: Broker) -> None:
        applied(broker, THREE)
        receipt = broker.put("jobs", 1)
        with pytest.raises(WrongStatus):
            broker.retry(receipt.id)
        assert broker.get(receipt.id).counters == Counters()

    def test_edit_holds_for_the_next_failure_of_an_item_that_was_put_before(
        self, broker: Broker, clock: FakeClock
    ) -> None:
        applied(broker, THREE)
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        clock.advance("30s")
        lease = take(broker)
        applied(broker, "[queue.jobs]\nretry = { attempts = 2 }\n")
        assert broker.fail(lease, "boom").status == "dead"

    def test_edit_holds_for_a_process_that_knows_the_old_settings(
        self, broker: Broker, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        self.require("shared")
        applied(broker, "[queue.jobs]\n")
        broker.put("jobs", 1)
        lease = take(broker)
        applied(open_broker(), THREE)
        settled = broker.fail(lease, "boom")
        assert (settled.status, settled.ready_at) == ("failed", clock.now() + 30_000_000)

    @pytest.mark.parametrize(
        ("text", "line", "key"),
        [
            ('[queue.jobs]\nretry = { attempts = 3, cooldown = "soon" }\n', 2, "queue.jobs.retry.cooldown"),
            ('[queue.jobs]\ntype = "external"\nlist = "ls"\nretry = { attempts = 3 }\n', 4, "queue.jobs.retry"),
        ],
    )
    def test_mistake_in_the_file_is_refused_before_anything_changes(
        self, broker: Broker, text: str, line: int, key: str
    ) -> None:
        applied(broker, THREE)
        with pytest.raises(InvalidFile) as refused:
            applied(broker, text)
        assert (refused.value.line, refused.value.key) == (line, key)
        broker.put("jobs", 1)
        assert broker.fail(take(broker), "boom").status == "failed"
