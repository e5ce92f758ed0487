"""Search of dead letters by the words of their error and payload."""

from __future__ import annotations

import pytest

from redrive import Broker, RetryVerdict
from redrive.errors import InvalidInput
from redrive.model.limits import HISTORY_FIRST, HISTORY_LAST
from redrive.testing.conformance.actions import Boom, dead_queue, found, kill, take
from redrive.testing.conformance.suite import OpenBroker, Suite


class ConnectTimeoutError(Exception):
    """An error whose name has parts."""


class SearchConformance(Suite):
    """The condition `words`, and the items that it finds."""

    @pytest.mark.parametrize(
        ("words", "expected"),
        [
            ("refused", ["a", "b"]),
            ("server refused", ["a", "b"]),
            ("REFUSED Mail", ["a"]),
            ("refused nothing", []),
            ("refus", []),
            ("refus*", ["a", "b"]),
            ("ma* ser*", ["a"]),
            ("straße", ["c"]),
            ("STRASSE", ["c"]),
            ("the-mail/server!", ["a"]),
            ("zzz*", []),
        ],
    )
    def test_all_words_must_be_there_and_a_star_is_a_prefix(
        self, broker: Broker, words: str, expected: list[str]
    ) -> None:
        broker.create_queue("jobs")
        kill(broker, "a", error="the mail server refused")
        kill(broker, "b", error="another server refused")
        kill(broker, "c", error="no such Straße")
        assert found(broker, words=words) == expected

    @pytest.mark.parametrize("words", ["ConnectTimeoutError", "connect", "timeout", "connect timeout", "time*"])
    def test_parts_of_the_error_type_are_words(self, broker: Broker, words: str) -> None:
        broker.create_queue("jobs")
        kill(broker, "a", error=ConnectTimeoutError("no answer"))
        kill(broker, "b", error=Boom("no answer"))
        assert found(broker, words=words) == ["a"]
        assert found(broker, words=f"{words} answer") == ["a"]

    def test_words_of_the_payload(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        json = {"order": "A-4711", "name": "Zoë\nMüller"}
        kill(broker, json)
        broker.put("jobs", b"plain words", content_type="text/plain")
        broker.fail(take(broker), "boom")
        broker.put("jobs", b"plain words", content_type="application/octet-stream")
        broker.fail(take(broker), "boom")
        assert found(broker, words="4711") == found(broker, words="zoë müller") == [json]
        assert len(found(broker, words="plain words boom")) == 1
        assert len(found(broker, words="boom")) == 3

    def test_note_of_a_burial_has_words(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", "x")
        broker.bury(take(broker), note="looks like fraud")
        assert found(broker, words="fraud") == ["x"]

    def test_not_found_after_redrive_and_found_by_the_words_of_the_next_death(self, broker: Broker) -> None:
        dead_queue(broker)
        dead = kill(broker, "x", error="first trouble")
        assert found(broker, words="trouble") == ["x"]
        broker.redrive(dead.id)
        assert found(broker, words="trouble") == found(broker, words="trouble", status=None) == []
        broker.fail(take(broker), "second mishap")
        assert found(broker, words="mishap") == ["x"]
        assert found(broker, words="trouble") == found(broker, words="first") == []

    def test_redrive_that_is_taken_back_brings_the_words_back(self, broker: Broker) -> None:
        dead_queue(broker)
        for queue in ("jobs", "morgue"):
            dead = kill(broker, "x", queue, error=f"outage in {queue}")
            redriven = broker.redrive(dead.id)
            assert found(broker, words=f"outage {queue}") == []
            undone = broker.undo(redriven.id)
            assert found(broker, words=f"outage {queue}") == ["x"]
            broker.redrive(undone.id)
            broker.fail(take(broker, redriven.queue), f"mishap in {queue}")
            assert found(broker, words=f"mishap {queue}") == ["x"]
            assert found(broker, words="outage") == []

    def test_words_outlast_the_entry_of_the_death_in_the_history(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        id = broker.put("jobs", "x").id
        for _ in range(HISTORY_FIRST):
            broker.fail(take(broker), "before", verdict=RetryVerdict())
        broker.fail(take(broker), "boom\nafter an outage")
        for _ in range(HISTORY_LAST):
            assert found(broker, words="outage") == ["x"]
            broker.fail(broker.lease_by_id(id, include_dead=True), "again")
        assert "outage" not in repr(broker.get(id).history)
        assert found(broker, words="outage") == ["x"]
        broker.archive(id)
        assert found(broker, words="outage", status="archived") == ["x"]

    def test_edited_item_is_found_by_its_own_payload_and_the_original_by_the_old_one(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.redrive(kill(broker, "apple").id, payload="pear")
        broker.fail(take(broker), "boom")
        assert found(broker, words="pear") == ["pear"]
        assert found(broker, words="apple") == found(broker, words="pear", status="archived") == []
        assert found(broker, words="apple", status="archived") == ["apple"]

    def test_imported_dead_letter_is_found_by_its_words(self, broker: Broker, open_broker: OpenBroker) -> None:
        elsewhere = open_broker(namespace="elsewhere")
        for each in (broker, elsewhere):
            each.create_queue("jobs")
        broker.redrive(kill(broker, "x", error="first outage").id)
        broker.fail(take(broker), "second mishap")
        assert elsewhere.import_items(broker.export(redacted=False)).imported == 1
        assert found(elsewhere, words="mishap x") == ["x"]
        assert found(elsewhere, words="outage") == found(elsewhere, words="mishap", status="archived") == []
        elsewhere.archive(elsewhere.find().items[0].id)
        assert found(elsewhere, words="mishap") == []
        assert found(elsewhere, words="mishap x", status="archived") == ["x"]

    def test_not_found_after_it_was_removed_or_completed(self, broker: Broker) -> None:
        dead_queue(broker)
        kill(broker, "completed")
        broker.complete(take(broker, "morgue"))
        broker.drop(kill(broker, "dropped").id)
        broker.complete_items(kill(broker, "done").id)
        kill(broker, "here")
        for _ in range(3):
            assert found(broker, words="boom") == ["here"]
            broker.run_maintenance()

    def test_archived_items_keep_their_words(self, broker: Broker) -> None:
        dead_queue(broker)
        dead = kill(broker, "x", error="odd trouble")
        broker.archive(dead.id)
        broker.run_maintenance()
        assert found(broker, words="odd") == []
        assert found(broker, words="odd", status="archived") == ["x"]
        broker.restore(dead.id)
        assert found(broker, words="odd") == ["x"]

    def test_only_dead_letters_have_words(self, broker: Broker) -> None:
        broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "1m"})
        broker.put("jobs", "boom")
        broker.fail(take(broker), "boom")
        broker.put("jobs", "boom")
        for status in ("pending", "failed", None):
            assert found(broker, words="boom", status=status) == []

    def test_dead_of_a_queue_without_search_have_no_words(self, broker: Broker) -> None:
        broker.create_queue("jobs", search=False)
        broker.create_queue("mails")
        kill(broker, "a")
        kill(broker, "b", "mails")
        assert found(broker) == ["a", "b"]
        assert found(broker, words="boom") == ["b"]
        broker.update_queue("jobs", search=True)
        kill(broker, "c")
        assert found(broker, words="boom") == ["b", "c"]

    def test_words_go_with_other_conditions(self, broker: Broker) -> None:
        dead_queue(broker)
        broker.create_queue("mails")
        kill(broker, "a", error=Boom("no route to host"))
        kill(broker, "b", error=ConnectTimeoutError("no route to host"))
        kill(broker, "c", "mails", error=Boom("no route to host"))
        assert found(broker, words="no route") == ["a", "b", "c"]
        assert found(broker, words="no route", error_type="Boom") == ["a", "c"]
        assert found(broker, words="no route", error_type="Boom", queue="mails") == ["c"]
        assert found(broker, words="no route", limit=1, since="1h") == ["a", "b", "c"]

    @pytest.mark.parametrize("words", ["a AND", "NOT x", "x:y", "^x", "' OR 1=1", "NEAR(a b)", 'no"thing', "a -b"])
    def test_words_are_no_language(self, broker: Broker, words: str) -> None:
        broker.create_queue("jobs")
        kill(broker, "payload", error="nothing of the kind")
        assert found(broker, words=words) == []

    @pytest.mark.parametrize("words", ["", " ", '"', "*", "-", "("])
    def test_words_without_a_word_are_refused(self, broker: Broker, words: str) -> None:
        with pytest.raises(InvalidInput):
            broker.find(words=words)

    def test_words_are_there_after_reopening(self, open_broker: OpenBroker) -> None:
        self.require("is_durable")
        broker = open_broker()
        broker.create_queue("jobs")
        kill(broker, "x", error="odd trouble")
        groups, feed = broker.groups(), broker.feed()
        broker.close()
        broker = open_broker()
        assert found(broker, words="odd") == ["x"]
        assert (broker.groups(), broker.feed()) == (groups, feed)
