"""Bad input that no other part of the suite meets: a typed error, the same on every store, and nothing changed."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import Again, Broker, Dead, DeadReason, Failure, RedriveError, Status
from redrive.errors import InvalidInput, QueueNotFound
from redrive.testing.conformance.deliveries import places, take, take_all, values
from redrive.testing.conformance.suite import Suite

BAD_VERDICTS: list[Any] = [
    Again(-1),
    Again(2**70),
    Again(1.5),  # type: ignore[arg-type]  # what is not typed is checked when it runs
    Again(0, Status.DEAD),
    Again(0, Status.ACTIVE),
    Dead("nonsense"),  # type: ignore[arg-type]
    Dead(DeadReason.POLICY, to="jobs"),
    Dead(DeadReason.POLICY, to="a\0b"),
    "dead",
    7,
]
BAD_TEXTS_IN_SETTINGS: list[dict[str, Any]] = [
    {"final_errors": ["\ud800"]},
    {"final_errors": "ValueError"},
    {"final_errors": None},
    {"final_errors": 7},
    {"final_errors": [7]},
    {"on_dead": "\ud800"},
    {"dead_queue": {"\ud800": "morgue"}},
    {"dead_queue": {7: "morgue"}},
    {"error_rules": [{"error_class": "network", "type": "\ud800"}]},
    {"error_rules": [{"error_class": "weather", "type": "Rain"}]},
    {"error_rules": "network"},
    {"retry": {"attempts": 2, "by_type": {"\ud800": "1s"}}},
    {"retry": {"attempts": 2, "by_class": {"weather": "1s"}}},
    {"retry": {"attempts": 2, "function": "a\0b"}},
]


class RefusalConformance(Suite):
    """What is refused before a store sees it, and what a store refuses."""

    @pytest.mark.parametrize("verdict", BAD_VERDICTS, ids=lambda verdict: repr(verdict)[:60])
    def test_bad_verdict_is_refused(self, broker: Broker, verdict: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(InvalidInput):
            broker.fail(lease, "boom", verdict=verdict)
        with pytest.raises(InvalidInput):
            broker.put_failed("jobs", 1, "boom", verdict=verdict)
        assert places(broker.stats("jobs")) == {"active": 1}
        broker.complete(lease)

    def test_verdict_that_names_an_unknown_queue_is_refused(self, broker: Broker) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        lease = take(broker)
        with pytest.raises(QueueNotFound):
            broker.fail(lease, "boom", verdict=Dead(DeadReason.POLICY, to="nowhere"))
        assert broker.get(lease.id).status == "active"

    @pytest.mark.parametrize("settings", BAD_TEXTS_IN_SETTINGS, ids=ascii)
    def test_bad_text_in_a_setting_is_refused(self, broker: Broker, settings: dict[str, Any]) -> None:
        broker.create_queue("morgue")
        before = broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.update_queue("jobs", **settings)
        assert broker.get_queue("jobs") == before

    @pytest.mark.parametrize("content_type", ["\0", "\ud800", "a" * 300, 7], ids=lambda text: ascii(text)[:10])
    def test_bad_content_type_is_refused(self, broker: Broker, content_type: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", b"x", content_type=content_type)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize("headers", ["a", ["a"], 7, b"a"], ids=repr)
    def test_headers_that_are_no_table_are_refused(self, broker: Broker, headers: Any) -> None:
        broker.create_queue("jobs")
        with pytest.raises(InvalidInput):
            broker.put("jobs", 1, headers=headers)
        assert places(broker.stats("jobs")) == {}

    @pytest.mark.parametrize(
        "page",
        [
            {"limit": 0},
            {"limit": -1},
            {"limit": 2**70},
            {"limit": "x"},
            {"before": "x"},
            {"before": 2**70},
            {"before": -1},
        ],
        ids=repr,
    )
    def test_bad_page_of_the_audit_is_refused(self, broker: Broker, page: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            broker.audit(**page)

    @pytest.mark.parametrize("confirm", [-1, 2, "1", 1.0, True], ids=repr)
    def test_bad_confirmation_is_refused(self, broker: Broker, confirm: Any) -> None:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        with pytest.raises(RedriveError):
            broker.delete_queue("jobs", confirm=confirm)
        assert values(take_all(broker)) == [1]

    @pytest.mark.parametrize("text", ["a\0b", "\ud800", "x" * 1_000_000, "\x1b[31m"], ids=lambda text: ascii(text)[:10])
    def test_words_of_a_worker_are_kept_whatever_they_are(self, broker: Broker, text: str) -> None:
        broker.create_queue("jobs", max_attempts=0, retry={"attempts": 9})
        receipt = broker.put("jobs", 1)
        broker.fail(take(broker), Failure(text, text, traceback=text, fingerprint=text, bases=(text,), worker=text))
        broker.release(take(broker), error=text)
        broker.release(take(broker), error=text, counted=False)
        broker.bury(take(broker), note=text)
        item = broker.get(receipt.id)
        assert [entry.event for entry in item.history] == ["failed", "released", "returned", "buried"]
        for entry in item.history:
            words = [entry.note or ""]
            if entry.failure is not None:
                words += [entry.failure.type, entry.failure.text, entry.failure.traceback or "", *entry.failure.bases]
            assert all("\0" not in word and len(word.encode()) < 50_000 for word in words)
