"""Which queue may be the dead queue of which."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.errors import (
    InvalidSetting,
    QueueInUse,
)
from redrive.testing.conformance.deliveries import kill, take_all, values
from redrive.testing.conformance.suite import Suite


class DeadQueueRulesConformance(Suite):
    """Which queue may be the dead queue of which, checked from both sides, at create and at update."""

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
