"""Find by conditions on single items: ids, the prefix of an id, a holder; combined with words."""

from __future__ import annotations

import pytest

from redrive import Broker
from redrive.client.remote_store import RemoteStore
from redrive.contract.queries import FindItems
from redrive.errors import InvalidInput
from redrive.model.filter import Filter
from redrive.model.item import Status
from redrive.store import Store
from redrive.testing.conformance.actions import dead_queue, die, find_all, found, kill, take
from redrive.testing.conformance.suite import Suite

MOVED = 100


class NamedItemConformance(Suite):
    """Conditions that name items."""

    def test_found_by_ids_of_any_time_and_by_a_prefix(self, broker: Broker) -> None:
        dead_queue(broker)
        first, second, _ = die(broker, 3)
        moved = broker.get(second)
        missing = "f" * 32
        assert found(broker, ids=(first, moved.id, moved.id, missing)) == [0, 1]
        assert found(broker, ids=()) == []
        assert found(broker, ids=(second,), queue="jobs") == []
        assert found(broker, id_prefix=moved.id[:12]) == [1]
        assert found(broker, status=None, id_prefix=moved.id) == [1]
        assert found(broker, id_prefix="f" * 12) == []
        with pytest.raises(InvalidInput):
            broker.find(id_prefix="x")

    def test_prefix_of_any_length_finds_items_of_any_status(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.archive(kill(broker, "archived").id)
        kill(broker, "dead in another queue")
        broker.put_many("jobs", ["active", "pending", "also pending"])
        take(broker)
        every = {item.id: item.value for item in find_all(broker, status=None, archived=True)}
        assert len(every) == 5
        for id in every:
            for length in (1, 2, 8, 15, 16, 17, 31, 32):
                expected = [payload for each, payload in every.items() if each.startswith(id[:length])]
                assert sorted(found(broker, status=None, id_prefix=id[:length])) == sorted(expected)

    def test_prefix_is_one_condition_among_others(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.put_many("jobs", list(range(40)))
        ids = {item.value: item.id for item in find_all(broker, order="oldest", status="pending")}
        digit = max("01234567", key=lambda each: sum(id[0] == each for id in ids.values()))
        expected = [n for n, id in ids.items() if id[0] == digit]
        assert found(broker, status="pending", id_prefix=digit, queue="jobs") == expected
        assert found(broker, status="pending", id_prefix=digit, queue="morgue") == []
        assert found(broker, id_prefix=digit) == []
        page = broker.find(status="pending", id_prefix=digit, limit=2, order="newest")
        seen = list(page.items)
        while page.cursor is not None:
            page = broker.find(status="pending", id_prefix=digit, limit=2, order="newest", cursor=page.cursor)
            seen += page.items
        assert [item.value for item in seen] == expected[::-1]

    def test_prefix_finds_all_among_very_many_that_moved(self, broker: Broker) -> None:
        for name in ("jobs", "others"):
            broker.create_queue(name)
        ids = [receipt.id for receipt in broker.put_many("jobs", range(MOVED))]
        broker.move(ids, "others")
        moved = {item.id for item in find_all(broker, status="pending", limit=1000)}
        digit = max("01234567", key=lambda each: sum(id[0] == each for id in moved))
        expected = {id for id in moved if id[0] == digit}
        page = {item.id for item in find_all(broker, status="pending", id_prefix=digit, limit=1000)}
        assert page == expected

    def test_words_of_dead_letters_that_are_found_by_another_condition(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 1})
        ids = [broker.put("jobs", word).id for word in ("amber", "birch")]
        broker.hold(ids, "person", lasting=True)
        for id in ids:
            broker.bury_items(id, note="x")
        dead = {item.value: item.id for item in broker.find(held_by="person").items}
        assert found(broker, words="amber", held_by="person") == ["amber"]
        assert found(broker, words="amber", ids=tuple(dead.values())) == ["amber"]
        for payload, id in dead.items():
            assert found(broker, words="amber", id_prefix=id[:16]) == ["amber"][: payload == "amber"]

    def test_search_without_a_word_finds_every_dead_letter_and_nothing_else(self, broker: Broker, store: Store) -> None:
        broker.create_queue("jobs", retry={"attempts": 1}, keep_completed="1h")
        kill(broker, "dead")
        broker.archive(kill(broker, "archived").id)
        broker.drop(broker.put("jobs", "dropped").id)
        for status in ("dead", "archived"):
            query = FindItems(Filter(status=Status(status), words="!?"))
            if isinstance(store, RemoteStore):  # brokers and servers refuse such words
                with pytest.raises(InvalidInput):
                    store.read(query)
            else:
                assert [item.value for item in store.read(query).items] == [status]
