"""Settings that a config file manages, and the effect of its retry policy on items."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redrive import Broker
from redrive.broker.flows import queues
from redrive.config.apply import ApplyResult, apply
from redrive.config.loader import parse
from redrive.errors import InvalidConfig, InvalidSetting, QueueNotFound, WrongStatus
from redrive.model.duration import MINUTE, SECOND
from redrive.model.item import Counters
from redrive.testing.conformance.actions import take, take_all
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

FILE = Path("/srv/shop/redrive.toml")


def applied(broker: Broker, text: str, file: Path = FILE, *, take_over: bool = False) -> ApplyResult:
    """Apply the text of a file."""
    return apply(broker, parse(text, file), take_over=take_over)


def settings_of(broker: Broker) -> dict[str, Any]:
    """Return all settings."""
    return {queue.name: queue.settings for queue in broker.list_queues()}


class ManagedConformance(Suite):
    """The settings of a config file in a store."""

    def test_file_creates_queues_with_dead_queues_first(self, broker: Broker) -> None:
        text = """
        [queue.emails]
        dead_queue = { ValueError = "malformed", default = "morgue" }
        retry = { attempts = 3, cooldown = "30s" }
        [queue.morgue]
        keep_dead = "7d"
        """
        assert applied(broker, text) == ApplyResult(created=("emails", "malformed", "morgue"))
        settings = broker.get_queue("emails").settings
        assert settings.dead_queue == {"ValueError": "malformed", "default": "morgue"}
        assert (settings.retry.attempts, settings.retry.delay.base) == (3, 30 * SECOND)
        assert broker.get_queue("morgue").is_dead_queue

    def test_same_file_again_changes_nothing(self, broker: Broker) -> None:
        text = "[queue.emails]\nmax_size = 5\n"
        applied(broker, text)
        version = broker.get_queue("emails").version
        assert applied(broker, text).is_empty
        assert broker.get_queue("emails").version == version

    def test_managed_setting_is_changed_by_nothing_else(self, broker: Broker) -> None:
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        with pytest.raises(InvalidSetting, match=r"max_size of queue 'emails' is managed by /srv/shop/redrive\.toml"):
            broker.update_queue("emails", max_size=6)
        assert broker.get_queue("emails").settings.max_size == 5

    def test_setting_that_the_file_leaves_out_is_anybodys_and_stays(self, broker: Broker) -> None:
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        broker.update_queue("emails", lease_timeout="2m", max_size=5)
        applied(broker, "[queue.emails]\nmax_size = 7\n")
        settings = broker.get_queue("emails").settings
        assert (settings.max_size, settings.lease_timeout) == (7, 2 * MINUTE)

    def test_every_process_refuses(self, broker: Broker, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        other = open_broker()
        with pytest.raises(InvalidSetting, match="managed by"):
            other.update_queue("emails", max_size=6)
        with pytest.raises(InvalidSetting, match="managed by"):
            other.delete_queue("emails")

    def test_management_holds_in_its_own_namespace(self, broker: Broker, open_broker: OpenBroker) -> None:
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        other = open_broker("elsewhere")
        other.create_queue("emails", max_size=5)
        assert other.update_queue("emails", max_size=6).settings.max_size == 6

    def test_queue_of_a_file_is_not_deleted(self, broker: Broker) -> None:
        applied(broker, "[queue.emails]\n")
        with pytest.raises(InvalidSetting, match=r"'emails' is managed by .*redrive\.toml: remove it there first"):
            broker.delete_queue("emails")
        assert broker.get_queue("emails").name == "emails"

    def test_queue_that_vanished_from_the_file_stays_and_is_anybodys(self, broker: Broker) -> None:
        applied(broker, "[queue.emails]\nmax_size = 5\n[queue.other]\n")
        broker.put("emails", 1)
        assert applied(broker, "[queue.other]\n") == ApplyResult(released=("emails",))
        assert broker.get_queue("emails").settings.max_size == 5
        broker.update_queue("emails", max_size=6)
        assert broker.delete_queue("emails", confirm=1) == 1

    def test_setting_that_vanished_from_the_file_has_its_default_again(self, broker: Broker) -> None:
        applied(broker, '[queue.emails]\nmax_size = 5\nretry = { attempts = 3 }\nlease_timeout = "5m"\n')
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        settings = broker.get_queue("emails").settings
        assert (settings.max_size, settings.retry.attempts, settings.lease_timeout) == (5, 0, MINUTE)
        broker.update_queue("emails", lease_timeout="3m")

    def test_other_file_takes_a_queue_over_only_on_request(self, broker: Broker) -> None:
        applied(broker, "[queue.emails]\nmax_size = 5\n", Path("/srv/old/redrive.toml"))
        with pytest.raises(InvalidConfig, match=r"/srv/old/redrive\.toml"):
            applied(broker, "[queue.emails]\nmax_size = 6\n")
        assert broker.get_queue("emails").settings.max_size == 5
        applied(broker, "[queue.emails]\nmax_size = 6\n", take_over=True)
        with pytest.raises(InvalidSetting, match="/srv/shop"):
            broker.update_queue("emails", max_size=7)
        assert applied(broker, "", Path("/srv/old/redrive.toml")).is_empty

    def test_queue_of_a_file_that_is_gone_is_freed_by_hand(self, broker: Broker) -> None:
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        assert broker.run_flow(queues.release_queue("emails")) is True
        assert broker.run_flow(queues.release_queue("emails")) is False
        assert broker.update_queue("emails", max_size=6).settings.max_size == 6

    def test_dead_queues_may_change_places(self, broker: Broker) -> None:
        applied(broker, '[queue.a]\ndead_queue = "b"\n[queue.b]\n[queue.c]\ndead_queue = "b"\n')
        applied(broker, '[queue.a]\n[queue.b]\ndead_queue = "a"\n[queue.c]\ndead_queue = "a"\n')
        names = {name: settings.dead_queue for name, settings in settings_of(broker).items()}
        assert names == {"a": None, "b": "a", "c": "a"}

    def test_file_that_the_store_refuses_changes_nothing(self, broker: Broker) -> None:
        broker.create_queue("last")
        broker.create_queue("middle", dead_queue="last")
        before = settings_of(broker)
        text = '[queue.new]\n[queue.last]\nmax_size = 5\n[queue.first]\ndead_queue = "middle"\n'
        with pytest.raises(InvalidConfig) as refused:
            applied(broker, text)
        assert (refused.value.line, refused.value.key) == (5, "queue.first.dead_queue")
        assert "'middle' cannot have its own dead_queue" in refused.value.problem
        assert settings_of(broker) == before
        broker.update_queue("last", max_size=7)

    def test_settings_at_odds_with_what_the_store_has_are_told_with_their_line(self, broker: Broker) -> None:
        broker.create_queue("emails", max_attempts=2)
        with pytest.raises(
            InvalidConfig, match=r"redrive\.toml:\d+: queue\.emails.*: 2 is lower than retry\.attempts 3"
        ):
            applied(broker, "[queue.emails]\nretry = { attempts = 3 }\n")
        with pytest.raises(QueueNotFound):
            broker.get_queue("other")

    def test_dead_queue_in_another_store_is_told(self, broker: Broker) -> None:
        with pytest.raises(InvalidConfig, match=r"dead_queue: .* is in a store that \[stores\] does not name"):
            applied(broker, '[queue.emails]\ndead_queue = "morgue@archive"\n')
        assert settings_of(broker) == {}

    def test_change_by_the_file_is_in_the_audit(self, broker: Broker) -> None:
        broker.create_queue("emails")
        applied(broker, "[queue.emails]\nmax_size = 5\n")
        entry = broker.audit()[0]
        assert (entry.actor, entry.verb, entry.queue) == ("redrive.toml", "update_queue", "emails")


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
            broker.run_maintenance()
            assert broker.get(receipt.id).counters.failures == failures
        settled = broker.fail(take(broker), "boom")
        assert (settled.status, settled.dead_reason) == ("dead", "retries_exhausted")
        clock.advance("1h")
        broker.run_maintenance()
        assert take_all(broker) == []

    def test_cooldown_ends_at_its_instant_and_not_before(self, broker: Broker, clock: FakeClock) -> None:
        applied(broker, THREE)
        broker.put("jobs", 1)
        broker.fail(take(broker), "boom")
        clock.advance("29.999999s")
        broker.run_maintenance()
        assert take_all(broker) == []
        clock.advance("0.001ms")
        assert len(take_all(broker)) == 1

    def test_cooldown_goes_on_when_the_program_is_started_again(
        self, open_broker: OpenBroker, clock: FakeClock
    ) -> None:
        self.require("is_durable")
        first = open_broker()
        applied(first, THREE)
        first.put("jobs", 1)
        first.fail(take(first), "boom")
        first.close()
        clock.advance("30s")
        second = open_broker()
        assert applied(second, THREE).is_empty
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
        self.require("supports_processes")
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
        with pytest.raises(InvalidConfig) as refused:
            applied(broker, text)
        assert (refused.value.line, refused.value.key) == (line, key)
        broker.put("jobs", 1)
        assert broker.fail(take(broker), "boom").status == "failed"
