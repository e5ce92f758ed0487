"""Redrive with another payload: the edited item goes to work, and the original is kept."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Broker
from redrive.errors import InvalidInput, PayloadTooLarge, RedriveError
from redrive.testing.conformance.deliveries import dead_queue, kill, take, take_all, values
from redrive.testing.conformance.many import die, found
from redrive.testing.conformance.suite import Suite


class EditConformance(Suite):
    """`redrive(…, payload=, headers=, edit=, edit_headers=)`."""

    @pytest.mark.parametrize("to_dead_queue", [False, True])
    def test_edited_payload_is_what_the_worker_gets(self, broker: Broker, to_dead_queue: bool) -> None:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue" if to_dead_queue else None)
        dead = kill(broker, {"n": "1", "keep": True})
        settled = broker.redrive(dead.id, edit=lambda value: {**value, "n": int(value["n"])}, actor="ada")
        assert (settled.queue, settled.status) == ("jobs", "pending")
        lease = take(broker)
        assert (lease.id, lease.value) == (settled.id, {"n": 1, "keep": True})
        assert broker.get(settled.id).counters.redrives == 1
        broker.complete(lease)
        assert found(broker) == []

    def test_original_is_archived_and_linked(self, broker: Broker) -> None:
        dead_queue(broker)
        receipt = broker.put("jobs", {"n": "1"}, headers={"h": "1"})
        dead = broker.fail(take(broker), "boom")
        settled = broker.redrive(dead.id, edit={"n": 1})
        (original,) = broker.find(status="archived").items
        edited = broker.get(settled.id)
        assert (original.value, original.status) == ({"n": "1"}, "archived")
        assert (edited.value, edited.headers, edited.status) == ({"n": 1}, {"h": "1"}, "pending")
        assert edited.source_id == original.id
        assert edited.id != original.id
        assert edited.origin_id == receipt.id
        assert edited.deaths == original.deaths
        assert edited.history[-1].event == "redriven"

    def test_merge_patch_changes_adds_and_removes(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker, {"a": 1, "b": {"c": 2, "d": 3}, "e": 4})
        broker.redrive(dead.id, edit={"a": None, "b": {"c": 20, "f": [1, None]}, "g": "new"})
        assert take(broker).value == {"b": {"c": 20, "d": 3, "f": [1, None]}, "e": 4, "g": "new"}

    def test_payload_and_headers_take_the_place_of_the_old_ones(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", {"n": 1}, headers={"old": "1"})
        dead = broker.fail(take(broker), "boom")
        broker.redrive(dead.id, payload=[1, 2], headers={"new": "2"})
        lease = take(broker)
        assert (lease.value, lease.headers) == ([1, 2], {"new": "2"})

    def test_headers_can_be_edited_alone(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", {"n": 1}, headers={"a": "1", "b": "2"})
        dead = broker.fail(take(broker), "boom")
        broker.redrive(dead.id, edit_headers={"a": None, "c": "3"})
        lease = take(broker)
        assert (lease.value, lease.headers) == ({"n": 1}, {"b": "2", "c": "3"})

    def test_each_of_many_is_edited_by_itself(self, broker: Broker) -> None:
        dead_queue(broker)
        ids = die(broker, 3)
        broker.redrive(ids, edit=lambda value: value * 10)
        assert values(take_all(broker)) == [0, 10, 20]

    def test_edit_that_fails_for_one_leaves_that_one_dead(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        ids = [kill(broker, value).id for value in (2, 0, 5)]

        def edit(value: int) -> Any:
            return 10 // value

        results = broker.redrive(ids, edit=edit)
        assert [isinstance(result, RedriveError) for result in results] == [False, True, False]
        assert found(broker) == [0]
        assert values(take_all(broker)) == [5, 2]

    def test_edited_payload_keeps_the_limits_of_the_queue(self, broker: Broker) -> None:
        broker.create_queue("jobs", max_payload_size=20)
        dead = kill(broker, "x")
        with pytest.raises(PayloadTooLarge):
            broker.redrive(dead.id, payload="x" * 30)
        assert found(broker) == ["x"]

    def test_payload_and_edit_are_alternatives(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        dead = kill(broker, {"n": 1})
        with pytest.raises(InvalidInput):
            broker.redrive(dead.id, payload=1, edit={"n": 2})
        with pytest.raises(InvalidInput):
            broker.redrive(dead.id, edit="no")  # type: ignore[call-overload]
        assert found(broker) == [{"n": 1}]

    def test_payload_none_is_a_payload(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.redrive(kill(broker, {"n": 1}).id, payload=None)
        assert take(broker).value is None
