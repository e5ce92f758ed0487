"""Which queue may be the dead queue of one in another store, checked there; and what is known of it there."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.errors import InvalidSetting, QueueInUse
from redrive.store import SetUsedBy
from redrive.testing.conformance.deliveries import kill
from redrive.testing.conformance.pairs import Pair, PairSuite


class DeadQueueElsewhereRulesConformance(PairSuite):
    """The rules about dead queues, with another store between."""

    def refused(self, pair: Pair, dead_queue: Any, text: str) -> None:
        """At create and at update, and nothing was changed."""
        with pytest.raises(InvalidSetting, match=text):
            pair.source.create_queue("jobs", dead_queue=dead_queue)
        pair.source.create_queue("jobs")
        with pytest.raises(InvalidSetting, match=text):
            pair.source.update_queue("jobs", dead_queue=dead_queue)
        assert pair.source.get_queue("jobs").settings.dead_queue is None

    def test_store_must_be_known(self, pair: Pair) -> None:
        self.refused(pair, "morgue@nowhere", "^dead_queue .*knows no store 'nowhere', only here, there")

    def test_dead_queue_elsewhere_must_exist(self, pair: Pair) -> None:
        self.refused(pair, pair.there("morgue"), r"^dead_queue 'morgue@\w+' does not exist; create it first")

    def test_dead_queue_elsewhere_must_not_have_one_of_its_own(self, pair: Pair) -> None:
        pair.target.create_queue("cellar")
        pair.target.create_queue("morgue", dead_queue="cellar")
        self.refused(
            pair, {"default": pair.there("morgue")}, r"^dead_queue 'morgue@\w+' cannot have its own dead_queue"
        )

    def test_dead_queue_elsewhere_cannot_be_given_one_later(self, pair: Pair) -> None:
        pair.furnish()
        pair.target.create_queue("cellar")
        pair.source.create_queue("pit")
        for dead_queue in ("cellar", f"pit@{pair.source_name}"):
            with pytest.raises(InvalidSetting, match="'morgue' cannot have its own dead_queue"):
                pair.target.update_queue("morgue", dead_queue=dead_queue)
        assert pair.source.get_queue("pit").used_by == ()

    def test_dead_queue_knows_by_whom_it_is_used(self, pair: Pair) -> None:
        pair.furnish()
        morgue = pair.target.get_queue("morgue")
        assert (morgue.is_dead_queue, morgue.used_by) == (True, (f"jobs@{pair.source_name}",))
        pair.source.create_queue("mails", dead_queue={"default": pair.there("morgue")})
        with pytest.raises(QueueInUse, match=f"jobs@{pair.source_name}, mails@{pair.source_name}"):
            pair.target.delete_queue("morgue")
        pair.source.update_queue("jobs", dead_queue=None)
        assert pair.target.get_queue("morgue").used_by == (f"mails@{pair.source_name}",)
        pair.source.delete_queue("mails")
        assert pair.target.get_queue("morgue").used_by == ()
        assert pair.target.get_queue("morgue").is_dead_queue
        assert pair.target.delete_queue("morgue") == 0

    def test_update_of_another_setting_keeps_it(self, pair: Pair) -> None:
        pair.furnish()
        pair.source.update_queue("jobs", max_losses=7)
        assert pair.target.get_queue("morgue").used_by == (f"jobs@{pair.source_name}",)

    def test_refused_queue_leaves_nothing_behind(self, pair: Pair) -> None:
        pair.target.create_queue("morgue")
        pair.source.create_queue("jobs")
        with pytest.raises(InvalidSetting):
            pair.source.create_queue("other", dead_queue={"ValueError": pair.there("morgue"), "default": "missing"})
        assert pair.target.get_queue("morgue").used_by == ()

    def test_what_a_crash_left_behind_does_not_keep_a_queue(self, pair: Pair) -> None:
        pair.target.create_queue("morgue")
        pair.source.create_queue("mails")
        store = pair.target._core.store
        for user in ("gone", "mails"):
            store.commit([SetUsedBy("morgue", f"{user}@{pair.source_name}")])
        assert pair.target.delete_queue("morgue") == 0

    def test_user_in_a_store_that_is_not_known_keeps_it(self, pair: Pair) -> None:
        pair.target.create_queue("morgue")
        pair.target._core.store.commit([SetUsedBy("morgue", "jobs@far")])
        with pytest.raises(QueueInUse, match="jobs@far"):
            pair.target.delete_queue("morgue")

    def test_own_store_may_be_named_in_a_dead_queue(self, pair: Pair) -> None:
        pair.source.create_queue("morgue")
        queue = pair.source.create_queue("jobs", dead_queue=f"morgue@{pair.source_name}")
        assert queue.settings.dead_queue == "morgue"
        assert pair.source.create_queue("jobs", dead_queue="morgue") == pair.source.get_queue("jobs")
        assert kill(pair.source).queue == "morgue"
