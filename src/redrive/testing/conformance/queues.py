"""Queues: create, update, get, list, delete, pause; rules for dead queues."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.errors import (
    ConfirmationMismatch,
    InvalidInput,
    InvalidSetting,
    ItemActive,
    ItemNotFound,
    QueueExists,
    QueueInUse,
    QueueNotFound,
)
from redrive.model.queue import OnDead
from redrive.testing.conformance.actions import kill, places, take, take_all, values
from redrive.testing.conformance.suite import Suite
from redrive.testing.fake_clock import FakeClock

MINUTE = 60_000_000

BAD_SETTINGS: list[dict[str, Any]] = [
    {"lease_timeout": "0s"},
    {"lease_timeout": "soon"},
    {"lease_timeout": -1},
    {"lease_timeout": "200000d"},
    {"max_attempts": -1},
    {"max_attempts": 2.5},
    {"max_attempts": True},
    {"max_losses": -1},
    {"max_size": 0},
    {"max_payload_size": 0},
    {"keep_dead": "-5m"},
    {"expire_timeout": 0},
    {"idempotency_timeout": "0ms"},
    {"on_dead": "forget"},
    {"retry": {"attempts": -1}},
    {"retry": {"attempts": 3, "cooldown": "a while"}},
    {"retry": {"attempts": 3, "delay": "sometimes"}},
    {"retry": {"tries": 3}},
    {"retry": 3},
    {"retry": {"attempts": 3}, "max_attempts": 2},
    {"dead_queue": {}},
    {"dead_queue": "no good"},
    {"colour": "red"},
]


class QueueConformance(Suite):
    """Queues and their settings."""

    def test_created_queue_has_the_documented_defaults(self, broker: Broker, clock: FakeClock) -> None:
        queue = broker.create_queue("jobs")
        assert (queue.name, queue.paused, queue.is_dead_queue) == ("jobs", False, False)
        assert queue.created_at == clock.now()
        settings = queue.settings
        assert settings.lease_timeout == MINUTE
        assert (settings.max_attempts, settings.max_losses, settings.retry.attempts) == (None, 5, 0)
        assert (settings.dead_queue, settings.on_dead, settings.keep_dead) == (None, OnDead.KEEP, None)
        assert (settings.expire_timeout, settings.max_size, settings.keep_completed) == (None, None, 0)
        assert settings.idempotency_timeout == 24 * 60 * MINUTE
        assert settings.max_payload_size == 1024 * 1024

    def test_get_returns_what_create_returned(self, broker: Broker) -> None:
        created = broker.create_queue("jobs", lease_timeout="5m", retry={"attempts": 3, "cooldown": "30s"}, max_size=7)
        assert broker.get_queue("jobs") == created

    def test_creating_it_again_with_the_same_settings_is_no_error(self, broker: Broker) -> None:
        first = broker.create_queue("jobs", lease_timeout="5m")
        broker.put("jobs", 1)
        assert broker.create_queue("jobs", lease_timeout="5m").settings == first.settings
        assert values(take_all(broker)) == [1]

    def test_creating_it_again_with_other_settings_is_refused(self, broker: Broker) -> None:
        first = broker.create_queue("jobs", lease_timeout="5m")
        with pytest.raises(QueueExists, match="update it"):
            broker.create_queue("jobs", lease_timeout="6m")
        assert broker.get_queue("jobs") == first

    def test_queues_are_listed_by_name(self, broker: Broker) -> None:
        assert broker.list_queues() == ()
        for name in ("beta", "alpha", "gamma", "Zeta"):
            broker.create_queue(name)
        assert [queue.name for queue in broker.list_queues()] == ["Zeta", "alpha", "beta", "gamma"]

    def test_update_changes_what_is_given_and_nothing_else(self, broker: Broker) -> None:
        before = broker.create_queue("jobs", lease_timeout="5m", max_size=7)
        after = broker.update_queue("jobs", max_size=8)
        assert (after.settings.lease_timeout, after.settings.max_size) == (5 * MINUTE, 8)
        assert after.version > before.version
        assert broker.get_queue("jobs") == after

    def test_update_can_unset_a_setting(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_size=7, max_attempts=3)
        settings = broker.update_queue("jobs", max_size=None, max_attempts=None).settings
        assert (settings.max_size, settings.max_attempts) == (None, None)

    @pytest.mark.parametrize("settings", BAD_SETTINGS, ids=repr)
    def test_bad_setting_is_refused_at_create_and_at_update(self, broker: Broker, settings: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            broker.create_queue("jobs", **settings)
        with pytest.raises(QueueNotFound):
            broker.get_queue("jobs")
        before = broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.update_queue("jobs", **settings)
        assert broker.get_queue("jobs") == before

    def test_update_is_checked_together_with_what_is_set_already(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_attempts=5)
        with pytest.raises(InvalidSetting, match=r"max_attempts 5 is lower than retry\.attempts 6"):
            broker.update_queue("jobs", retry={"attempts": 6})

    def test_unknown_queue_is_named_with_what_to_do(self, broker: Broker) -> None:
        text = (
            "queue 'nowhere' does not exist; create it first, or correct the name; the list of queues has all there are"
        )
        for call in (
            lambda: broker.get_queue("nowhere"),
            lambda: broker.update_queue("nowhere", max_size=1),
            lambda: broker.delete_queue("nowhere"),
            lambda: broker.pause_queue("nowhere"),
            lambda: broker.resume_queue("nowhere"),
            lambda: broker.stats("nowhere"),
            lambda: broker.put("nowhere", 1),
            lambda: broker.put_failed("nowhere", 1, "boom"),
            lambda: broker.lease("nowhere"),
        ):
            with pytest.raises(QueueNotFound) as refusal:
                call()
            assert str(refusal.value) == text
        assert broker.list_queues() == ()

    def test_empty_queue_is_deleted_without_confirmation(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        assert broker.delete_queue("jobs") == 0
        assert broker.list_queues() == ()

    def test_deleting_items_needs_their_number(self, broker: Broker) -> None:
        broker.create_queue("jobs", keep_completed="1d", retry={"attempts": 3, "cooldown": "1m"})
        kill(broker)
        broker.archive(kill(broker).id)
        broker.put_many("jobs", [1, 2, 3])
        broker.complete(take(broker))
        broker.fail(take(broker), "boom")
        before = places(broker.stats("jobs"))
        for confirm in (None, 4, 6):
            with pytest.raises(ConfirmationMismatch, match="pass confirm=5 if that is what you mean"):
                broker.delete_queue("jobs", confirm=confirm)
        assert places(broker.stats("jobs")) == before
        assert broker.delete_queue("jobs", confirm=5, actor="ada") == 5
        with pytest.raises(QueueNotFound):
            broker.stats("jobs")
        entry = broker.audit()[0]
        assert (entry.actor, entry.queue, entry.count) == ("ada", "jobs", 5)

    def test_queue_is_not_deleted_under_a_worker(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(ItemActive):
            broker.delete_queue("jobs", confirm=1)
        broker.complete(lease)
        assert broker.delete_queue("jobs") == 0

    def test_deleted_queue_can_be_created_anew_and_is_empty(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "old", idempotency_key="k")
        broker.delete_queue("jobs", confirm=1)
        broker.create_queue("jobs", lease_timeout="5m")
        assert take_all(broker) == []
        assert not broker.put("jobs", "new", idempotency_key="k").duplicate
        assert values(take_all(broker)) == ["new"]

    def test_items_of_a_deleted_queue_are_gone(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        receipt = broker.put("jobs", 1)
        broker.delete_queue("jobs", confirm=1)
        with pytest.raises(ItemNotFound, match="does not exist"):
            broker.get(receipt.id)

    def test_paused_queue_takes_puts_and_gives_no_leases(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        assert broker.pause_queue("jobs").paused
        broker.put("jobs", 1)
        assert take_all(broker) == []
        assert broker.get_queue("jobs").paused
        assert not broker.resume_queue("jobs").paused
        assert values(take_all(broker)) == [1]

    def test_pausing_twice_is_no_error(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.pause_queue("jobs")
        assert broker.pause_queue("jobs").paused
        broker.resume_queue("jobs")
        assert not broker.resume_queue("jobs").paused

    def test_pause_lets_a_running_delivery_end(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put_many("jobs", [1, 2])
        first, second = take_all(broker)
        broker.pause_queue("jobs")
        broker.extend(first)
        assert broker.complete(first).status is None
        assert broker.fail(second, "boom").status == "dead"

    def test_lifecycle_goes_on_while_paused(self, broker: Broker, clock: FakeClock) -> None:
        broker.create_queue("jobs")
        lost = broker.put("jobs", "lost").id
        take(broker, lease_timeout="1s")
        late = broker.put("jobs", "late", expire_timeout="1s").id
        broker.pause_queue("jobs")
        clock.advance("1s")
        broker.run_maintenance()
        assert (broker.get(lost).status, broker.get(lost).counters.losses) == ("pending", 1)
        assert (broker.get(late).status, broker.get(late).dead_reason) == ("dead", "expired")

    def test_pausing_does_not_change_the_settings(self, broker: Broker) -> None:
        settings = broker.create_queue("jobs", max_size=3).settings
        broker.pause_queue("jobs")
        assert broker.update_queue("jobs", max_size=3).paused
        assert broker.get_queue("jobs").settings == settings


class DeadQueueRulesConformance(Suite):
    """The rules for dead queues, checked from both sides, at create and at update."""

    def test_dead_queue_must_not_be_the_queue_itself(self, broker: Broker) -> None:
        with pytest.raises(InvalidSetting, match=r"^dead_queue cannot reference itself"):
            broker.create_queue("jobs", dead_queue="jobs")
        broker.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=r"^dead_queue cannot reference itself"):
            broker.update_queue("jobs", dead_queue="jobs")

    def test_dead_queue_must_exist(self, broker: Broker) -> None:
        text = r"^dead_queue 'morgue' does not exist; create it first"
        with pytest.raises(InvalidSetting, match=text):
            broker.create_queue("jobs", dead_queue="morgue")
        broker.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=text):
            broker.update_queue("jobs", dead_queue="morgue")
        assert broker.get_queue("jobs").settings.dead_queue is None

    def test_dead_queue_must_not_have_one_of_its_own(self, broker: Broker) -> None:
        text = r"^dead_queue 'morgue' cannot have its own dead_queue"
        broker.create_queue("cellar")
        broker.create_queue("morgue", dead_queue="cellar")
        with pytest.raises(InvalidSetting, match=text):
            broker.create_queue("jobs", dead_queue="morgue")
        broker.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=text):
            broker.update_queue("jobs", dead_queue="morgue")

    def test_dead_queue_cannot_be_given_one_later(self, broker: Broker) -> None:
        broker.create_queue("cellar")
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        with pytest.raises(InvalidSetting, match=r"^dead_queue 'morgue' cannot have its own dead_queue"):
            broker.update_queue("morgue", dead_queue="cellar")
        assert broker.get_queue("morgue").settings.dead_queue is None

    @pytest.mark.parametrize(
        ("table", "text"),
        [
            ({"ValueError": "jobs", "default": "morgue"}, "dead_queue cannot reference itself"),
            ({"ValueError": "morgue", "default": "nowhere"}, "dead_queue 'nowhere' does not exist; create it first"),
            ({"network": "chained"}, "dead_queue 'chained' cannot have its own dead_queue"),
        ],
    )
    def test_every_entry_of_a_table_is_checked(self, broker: Broker, table: dict[str, str], text: str) -> None:
        broker.create_queue("morgue")
        broker.create_queue("chained", dead_queue="morgue")
        with pytest.raises(InvalidSetting, match=f"^{text}"):
            broker.create_queue("jobs", dead_queue=table)
        broker.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=f"^{text}"):
            broker.update_queue("jobs", dead_queue=table)

    def test_queue_named_in_a_table_cannot_be_given_a_dead_queue_later(self, broker: Broker) -> None:
        for name in ("morgue", "cellar"):
            broker.create_queue(name)
        broker.create_queue("jobs", dead_queue={"ValueError": "morgue"})
        with pytest.raises(InvalidSetting, match="cannot have its own dead_queue"):
            broker.update_queue("morgue", dead_queue="cellar")

    def test_dead_queue_in_use_cannot_be_deleted(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        broker.create_queue("mails", dead_queue={"default": "morgue"})
        with pytest.raises(QueueInUse, match="jobs, mails"):
            broker.delete_queue("morgue")
        broker.update_queue("jobs", dead_queue=None)
        broker.delete_queue("mails")
        assert broker.delete_queue("morgue") == 0

    def test_queue_remembers_that_it_was_a_dead_queue(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue")
        assert broker.get_queue("morgue").is_dead_queue
        assert not broker.get_queue("jobs").is_dead_queue
        broker.update_queue("jobs", dead_queue=None)
        assert broker.get_queue("morgue").is_dead_queue

    def test_one_dead_queue_serves_many(self, broker: Broker) -> None:
        broker.create_queue("morgue")
        for name in ("jobs", "mails"):
            broker.create_queue(name, dead_queue="morgue")
            kill(broker, name, name)
        assert values(take_all(broker, "morgue")) == ["jobs", "mails"]
